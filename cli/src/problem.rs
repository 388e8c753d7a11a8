//! What can go wrong, as a sentence: what is wrong, and what to do about it.

#![forbid(unsafe_code)]

use std::fmt::{self, Display, Formatter};

use jitlisten_report::printable;

/// A failure in words, without a full stop.
#[derive(Debug)]
pub(crate) struct Problem(String);

impl Problem {
    /// What is wrong and what to do.
    pub(crate) fn new(sentence: impl Display) -> Problem {
        Problem(sentence.to_string())
    }
}

impl Display for Problem {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        // Names of files and events are in it, of recordings that others have made.
        formatter.write_str(&printable(&self.0))
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
    }
}
