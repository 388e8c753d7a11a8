//! The process: its loader, its libraries, and patches of them. Nothing here knows LLVM.

pub(crate) mod detour;
pub(crate) mod dlsym_entry;
pub(crate) mod held;
pub(crate) mod host;
pub(crate) mod known;
pub(crate) mod library;
pub(crate) mod loader;
pub(crate) mod lookup;
pub(crate) mod next;
pub(crate) mod relocation_slot;
pub(crate) mod search;
pub(crate) mod slot;

/// Numbers threads; the number may come again when a thread has ended.
pub(crate) fn this_thread() -> u64 {
    // SAFETY: pthread_self has no precondition.
    unsafe { libc::pthread_self() }
}
