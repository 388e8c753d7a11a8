//! What can be wrong with what we are given, or with where we are asked to write.

#![forbid(unsafe_code)]

use core::fmt;

/// Everything this crate refuses, named by what was found.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not an ELF object this crate can read; the text is the reader's.
    NotAnObject(object::Error),
    /// The object is for another machine (`e_machine`).
    OtherMachine(u16),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NotAnObject(error) => write!(f, "not a readable ELF object: {error}"),
            Error::OtherMachine(machine) => write!(f, "object of another machine: e_machine {machine}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<object::Error> for Error {
    fn from(error: object::Error) -> Self {
        Error::NotAnObject(error)
    }
}
