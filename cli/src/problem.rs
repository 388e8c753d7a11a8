//! Error type of all commands: a message that names the failure and its object, followed by causes and advice.

use std::fmt::{self, Display, Formatter};
use std::process::ExitCode;

use jitlisten_report::sanitize;

/// A failure, as a message without a full stop.
#[derive(Debug)]
pub(crate) struct Problem {
    message: String,
    causes: Vec<String>,
    help: Option<String>,
    status: u8,
}

/// Exit status for a failed command.
const FAILURE: u8 = 2;

impl Problem {
    /// Creates a failure. The message names the object, and the cause if it is short.
    pub(crate) fn new(message: impl Display) -> Problem {
        Problem { message: message.to_string(), causes: Vec::new(), help: None, status: FAILURE }
    }

    /// Adds an underlying problem as a cause. Also adopts its advice, unless this problem already has some.
    pub(crate) fn because(mut self, problem: &Problem) -> Problem {
        self.causes.push(problem.message.clone());
        self.causes.extend_from_slice(&problem.causes);
        self.help = self.help.or_else(|| problem.help.clone());
        self
    }

    /// Sets advice for the user.
    pub(crate) fn help(self, advice: impl Display) -> Problem {
        Problem { help: Some(advice.to_string()), ..self }
    }

    /// Uses the exit status of the user's program if the program has failed.
    pub(crate) fn with_program_status(self, program: u8) -> Problem {
        Problem { status: if program == 0 { self.status } else { program }, ..self }
    }

    pub(crate) fn status(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl Display for Problem {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        // The message may quote file names and event names from an untrusted recording.
        formatter.write_str(&sanitize(&self.message))?;
        let causes = self.causes.iter().map(|cause| ("because", cause));
        let mut lines = causes.chain(self.help.iter().map(|advice| ("help", advice)));
        lines.try_for_each(|(name, line)| write!(formatter, "\n  {name}: {}", sanitize(line)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_name_in_a_sentence_does_not_move_the_terminal() {
        let problem = Problem::new(Path::new("/bundle/perf.data\x1b]0;owned\x07").display()).to_string();
        assert_eq!(problem, "/bundle/perf.data\u{241b}]0;owned\u{2407}");
        let chain = Problem::new("no").because(&Problem::new("\x07").help("try\n")).to_string();
        assert_eq!(chain, "no\n  because: \u{2407}\n  help: try\u{240a}");
    }
}
