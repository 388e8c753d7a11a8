//! The number of an object.

#![forbid(unsafe_code)]

/// A loaded object of a session. Never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);
