//! The current thread.

/// Numbers threads; the number may come again when a thread has ended.
pub(crate) fn this_thread() -> u64 {
    // SAFETY: pthread_self has no precondition.
    unsafe { libc::pthread_self() }
}
