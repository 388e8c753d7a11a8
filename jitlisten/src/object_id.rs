//! Identifier of an object.

#![forbid(unsafe_code)]

/// Identifier of a loaded object. Ids are never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);
