//! Errors that make a recording unreadable. Smaller problems are notes of the [`Recording`](crate::Recording).

use std::fmt;
use std::path::PathBuf;

/// Reason why a recording could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    Io {
        /// Failed operation: `open`, `read` or `write`.
        verb: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error from the system.
        source: std::io::Error,
    },
    /// The file does not start with the magic of a `perf.data`.
    NotARecording {
        /// First bytes of the file, at most eight.
        begins_with: Vec<u8>,
    },
    /// The file was written on a machine with the other byte order.
    OtherByteOrder,
    /// The recording is of an architecture that this program does not support.
    OtherArchitecture(String),
    /// The header ends early or contradicts itself.
    BadHeader(&'static str),
    /// The recording describes no event.
    NoEvent,
    /// One of several files is unreadable.
    InFile {
        /// Path of the file.
        path: PathBuf,
        /// Error that occurred for this file.
        error: Box<Error>,
    },
    /// Recordings of different events cannot be merged.
    DifferentEvents {
        /// Event of the first recording.
        first: String,
        /// Event of another recording.
        other: String,
    },
    /// The requested event is not in the recording.
    UnknownEvent {
        /// Requested name.
        wanted: String,
        /// Events in the recording.
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
            Error::BadHeader(problem) => write!(out, "the header of the perf.data is damaged: {problem}"),
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
