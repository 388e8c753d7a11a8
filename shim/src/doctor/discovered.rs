//! Descriptions of the observed LLVM instances, for the API.

#![forbid(unsafe_code)]

use std::path::PathBuf;

use wire::facts::ObservedLlvm;

/// An observed LLVM instance.
#[derive(Clone, Debug)]
pub struct DiscoveredLlvm {
    /// Path of the library that contains this LLVM instance; `/proc/self/exe` for the program itself.
    pub path: PathBuf,
    /// True if `__jit_debug_register_code` is hooked, so this LLVM instance notifies us of each object. Otherwise its
    /// GDB JIT list is read whenever it makes memory executable.
    pub detoured: bool,
    /// Number of objects currently in this LLVM instance's GDB JIT list.
    pub objects: usize,
    /// Number of objects that the linkers have reported. JITLink's objects count once they have been found in memory.
    pub linked: u64,
    /// Its entry in the facts for other processes; without the counts.
    pub facts: ObservedLlvm,
}
