//! The host process: its loader and libraries, and how they are patched. This code does not depend on LLVM's internals.

pub(crate) mod detour;
pub(crate) mod forward;
pub(crate) mod host;
pub(crate) mod known;
pub(crate) mod library;
pub(crate) mod loader;
pub(crate) mod lookup;
pub(crate) mod mapped_proof;
pub(crate) mod relocations;
pub(crate) mod search;
pub(crate) mod segments;
pub(crate) mod slot;

/// Identifier of the calling thread. It may be reused after the thread has exited.
pub(crate) fn this_thread() -> u64 {
    // SAFETY: `pthread_self` has no preconditions.
    unsafe { libc::pthread_self() }
}
