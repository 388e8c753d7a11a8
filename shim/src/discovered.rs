//! The LLVMs of the process that are listened to, for people who ask.

#![forbid(unsafe_code)]

use std::path::PathBuf;

/// An LLVM that is listened to.
#[derive(Clone, Debug)]
pub struct DiscoveredLlvm {
    /// The library it is in; `/proc/self/exe` for the program itself.
    pub path: PathBuf,
    /// Whether it calls us for each object. Otherwise its list is read whenever it makes memory executable.
    pub detoured: bool,
    /// How many of its objects are in its list for debuggers now.
    pub objects: usize,
}
