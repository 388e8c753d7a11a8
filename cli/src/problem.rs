//! The error type of every command: the failure with its object, and on lines of their own the causes and what to do.

#![forbid(unsafe_code)]

use std::fmt::{self, Display, Formatter};
use std::process::ExitCode;

use jitlisten_report::printable;

/// A failure in words, without a full stop.
#[derive(Debug)]
pub(crate) struct Problem {
    what: String,
    causes: Vec<String>,
    help: Option<String>,
    status: u8,
}

/// The exit status of a failure of this command.
const FAILURE: u8 = 2;

impl Problem {
    /// The failure: what, and to which object. The cause, if it is short.
    pub(crate) fn new(what: impl Display) -> Problem {
        Problem { what: what.to_string(), causes: Vec::new(), help: None, status: FAILURE }
    }

    /// The problem behind this one. Its advice counts, if there is none yet.
    pub(crate) fn because(mut self, problem: &Problem) -> Problem {
        self.causes.push(problem.what.clone());
        self.causes.extend_from_slice(&problem.causes);
        self.help = self.help.or_else(|| problem.help.clone());
        self
    }

    /// What the user can do.
    pub(crate) fn help(self, advice: impl Display) -> Problem {
        Problem { help: Some(advice.to_string()), ..self }
    }

    /// A failure after the user's program has failed, whose exit status counts; not after its success.
    pub(crate) fn after(self, program: u8) -> Problem {
        Problem { status: if program == 0 { self.status } else { program }, ..self }
    }

    /// The exit status of this command.
    pub(crate) fn status(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl Display for Problem {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        // Names of files and events are in it, of recordings that others have made.
        formatter.write_str(&printable(&self.what))?;
        let causes = self.causes.iter().map(|cause| ("because", cause));
        let mut lines = causes.chain(self.help.iter().map(|advice| ("help", advice)));
        lines.try_for_each(|(name, line)| write!(formatter, "\n  {name}: {}", printable(line)))
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
