//! Per-thread reentrancy guard without thread-local variables.
//!
//! The loader may announce a change while we query it for a library that is already loaded (glibc 2.41 does so for
//! `dlopen(RTLD_NOLOAD)`). A hook that queries the loader again at that point would recurse forever. The usual guard is
//! a thread-local flag, but its first use in a thread may take the loader's lock. Instead, threads are recorded in a
//! table, keyed by the address of their descriptor (`pthread_self`).
//!
//! If the table is crowded, a thread enters unrecorded: it is not guarded, but its work is still done.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const TABLE_ENTRIES: usize = 1024;

/// Maximum number of table entries to probe for a free one.
const MAX_PROBES: usize = 32;

/// Reentrancy guard for one piece of code, with the threads that are inside it.
#[derive(Debug)]
pub struct ReentrancyGuard {
    threads: [AtomicUsize; TABLE_ENTRIES],
    /// PID of the process that owns the recorded threads. In the child of a fork, only one of them exists.
    pid: AtomicU32,
}

/// Marks a thread as inside until dropped by the same thread.
#[derive(Debug)]
#[must_use = "dropping it leaves"]
pub struct ReentrancyToken<'a> {
    entry: Option<(&'a AtomicUsize, usize)>,
    _not_send: PhantomData<*mut ()>,
}

impl ReentrancyGuard {
    /// Creates a guard without any thread inside.
    #[expect(clippy::new_without_default, reason = "for statics only")]
    pub const fn new() -> ReentrancyGuard {
        ReentrancyGuard { threads: [const { AtomicUsize::new(0) }; TABLE_ENTRIES], pid: AtomicU32::new(0) }
    }

    /// Enters the guarded code. Returns `None` if this thread is already inside. The caller must block signals whose
    /// handlers may also enter it.
    pub fn enter(&self) -> Option<ReentrancyToken<'_>> {
        self.clear_after_fork();
        // SAFETY: pthread_self has no precondition.
        let thread = unsafe { libc::pthread_self() } as usize;
        // Thread descriptors are at least a page apart, so the lowest bits carry no information.
        let first = (thread >> 6) ^ (thread >> 12);
        let probed_entries = || (0..MAX_PROBES).map(|probe| &self.threads[first.wrapping_add(probe) % TABLE_ENTRIES]);
        if probed_entries().any(|entry| entry.load(Ordering::Relaxed) == thread) {
            return None;
        }
        let try_claim =
            |entry: &&AtomicUsize| entry.compare_exchange(0, thread, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let entry = probed_entries().find(try_claim).map(|entry| (entry, thread));
        Some(ReentrancyToken { entry, _not_send: PhantomData })
    }

    /// Returns true if this thread is inside.
    pub fn is_inside(&self) -> bool {
        self.enter().is_none()
    }

    /// Removes the parent's threads after a fork.
    fn clear_after_fork(&self) {
        let pid = std::process::id();
        if self.pid.load(Ordering::Relaxed) != pid && self.pid.swap(pid, Ordering::Relaxed) != pid {
            self.threads.iter().for_each(|thread| thread.store(0, Ordering::Relaxed));
        }
    }
}

impl Drop for ReentrancyToken<'_> {
    fn drop(&mut self) {
        if let Some((entry, thread)) = self.entry {
            // After a fork, the entry may belong to another thread.
            let _ = entry.compare_exchange(thread, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_once_and_others_too() {
        static INSIDE: ReentrancyGuard = ReentrancyGuard::new();
        let entered = INSIDE.enter();
        assert!(entered.is_some() && INSIDE.enter().is_none() && INSIDE.is_inside());
        std::thread::spawn(|| assert!(INSIDE.enter().is_some())).join().expect("it ends");
        drop(entered);
        assert!(!INSIDE.is_inside() && INSIDE.enter().is_some());
    }
}
