//! What can go wrong, as a sentence: what is wrong, and what to do about it.

#![forbid(unsafe_code)]

use std::fmt::{self, Display, Formatter};

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
        formatter.write_str(&self.0)
    }
}
