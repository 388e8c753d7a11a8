//! Errors that make a recording unreadable. Smaller problems are notes of the
//! [`Recording`](crate::Recording).

use std::fmt;
use std::path::PathBuf;

/// Why nothing could be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    Io {
        /// What was being done: `open`, `read`, `write`.
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file does not begin like a `perf.data`.
    NotARecording {
        /// Its first bytes, at most eight.
        begins_with: Vec<u8>,
    },
    /// The file was written on a machine of the other byte order.
    OtherByteOrder,
    /// The recording names an architecture whose code this program does not read.
    OtherArchitecture(String),
    /// The header ends early or contradicts itself.
    BadHeader(&'static str),
    /// The recording describes no event.
    NoEvent,
    /// What is wrong with one of several files.
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<Error>,
    },
    /// Recordings of different events cannot be added up.
    DifferentEvents {
        /// That of the first.
        first: String,
        /// Another one.
        other: String,
    },
    /// The event that was asked for is not in the recording; these are.
    UnknownEvent {
        /// The name that was asked for.
        wanted: String,
        /// The names that are there.
        present: Vec<String>,
    },
}

impl Error {
    pub(crate) fn io(verb: &'static str, path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { verb, path: path.into(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { verb, path, source } => write!(out, "cannot {verb} {}: {source}", path.display()),
            Error::NotARecording { begins_with } => {
                write!(out, "not a perf.data: it begins with {:?}", String::from_utf8_lossy(begins_with))
            }
            Error::OtherByteOrder => {
                write!(out, "unsupported: recorded with the other byte order")
            }
            Error::OtherArchitecture(name) => {
                write!(out, "unsupported: recorded on {name:?} (only x86_64 and aarch64)")
            }
            Error::BadHeader(what) => write!(out, "the header of the perf.data is damaged: {what}"),
            Error::NoEvent => write!(out, "the perf.data describes no event, so its samples cannot be read"),
            Error::InFile { path, error } => write!(out, "{}: {error}", path.display()),
            Error::DifferentEvents { first, other } => {
                write!(out, "cannot add samples of {first} to samples of {other}: choose one event with -e")
            }
            Error::UnknownEvent { wanted, present } => {
                write!(out, "no event {wanted:?} in the recording; it has {}", present.join(", "))
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
