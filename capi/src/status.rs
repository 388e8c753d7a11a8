//! `jitlisten_status`: the result of every call.

use std::ffi::{CStr, c_char};
use std::fmt;

use jitlisten::Error;

/// Status of a call. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Ok = 0,
    InvalidArgument = 1,
    NotOpen = 2,
    UnknownSink = 3,
    SwitchedOff = 4,
    Internal = 5,
    UnknownObject = 6,
    WrongOrder = 7,
    NotUnderstood = 8,
    IoError = 9,
    AlreadyRecording = 10,
    AlreadyOpen = 11,
    Closed = 12,
    NotRecording = 13,
    CannotRecord = 14,
}

impl Status {
    const ALL: [(Status, &CStr); 15] = [
        (Status::Ok, c"success"),
        (Status::InvalidArgument, c"invalid argument"),
        (Status::NotOpen, c"the session of this process is not open"),
        (Status::UnknownSink, c"no sink has that name"),
        (Status::SwitchedOff, c"jitlisten is switched off in this process"),
        (Status::Internal, c"internal error of jitlisten"),
        (Status::UnknownObject, c"no object or registration has that number"),
        (Status::WrongOrder, c"calls in the wrong order"),
        (Status::NotUnderstood, c"malformed or unsupported object, code or unwind table"),
        (Status::IoError, c"a file cannot be written"),
        (Status::AlreadyRecording, c"a recording is running"),
        (Status::AlreadyOpen, c"the session of this process is open with other options"),
        (Status::Closed, c"the session of this process was closed"),
        (Status::NotRecording, c"no recording is running"),
        (Status::CannotRecord, c"this process cannot be recorded"),
    ];

    pub(crate) fn text(self) -> &'static CStr {
        Status::ALL.iter().find(|(status, _)| *status == self).map_or(c"unknown status", |(_, text)| text)
    }
}

/// A failed call: its status, and details of the failure.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl fmt::Display) -> Failure {
        Failure { status, message: message.to_string() }
    }

    /// Creates a failure caused by an invalid argument.
    pub(crate) fn argument(message: impl fmt::Display) -> Failure {
        Failure::new(Status::InvalidArgument, message)
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Failure::new(status, status.text().to_string_lossy())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error {
            Error::UnknownObject(_) => Status::UnknownObject,
            Error::AlreadyFinalized(_) => Status::WrongOrder,
            Error::Padding { .. } | Error::NoFunction | Error::FunctionSize { .. } => Status::InvalidArgument,
            _ => Status::NotUnderstood,
        };
        Failure::new(status, error)
    }
}

/// Description of a status.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_status_text(status: i32) -> *const c_char {
    let entry = Status::ALL.iter().find(|(candidate, _)| *candidate as i32 == status);
    entry.map_or(c"unknown status", |(_, text)| text).as_ptr()
}
