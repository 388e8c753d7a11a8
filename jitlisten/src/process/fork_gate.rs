//! Delays `fork(2)` while one of our threads enumerates the process's libraries.
//!
//! Such a thread holds one of the loader's locks (`dl_load_write_lock`). glibc 2.36 resets its other locks in the child
//! of a fork, but not this one, so the child would hang at its next `dlopen` or C++ exception. Therefore a fork waits
//! until no thread of ours enumerates libraries, and none starts meanwhile.
//!
//! This is not a lock: some threads enumerate while they hold the loader's locks, others acquire these locks during the
//! enumeration, and both may happen concurrently. For the same reason, the fork's wait has a timeout.

use crate::process::clock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Maximum delay of a fork.
const FORK_TIMEOUT_NS: u64 = 200_000_000;

static ENUMERATING_THREADS: AtomicUsize = AtomicUsize::new(0);
static FORKING: AtomicBool = AtomicBool::new(false);

/// Runs `work`, which enumerates libraries, unless a fork is in progress.
pub(crate) fn enumerate_libraries<R>(work: impl FnOnce() -> R) -> Option<R> {
    struct CountGuard;
    impl Drop for CountGuard {
        fn drop(&mut self) {
            ENUMERATING_THREADS.fetch_sub(1, Ordering::SeqCst);
        }
    }
    ENUMERATING_THREADS.fetch_add(1, Ordering::SeqCst);
    let _guard = CountGuard;
    (!FORKING.load(Ordering::SeqCst)).then(work)
}

/// Guard that blocks [`enumerate_libraries`] while it exists.
pub(crate) struct ClosedGate;

impl ClosedGate {
    pub(crate) fn close() -> ClosedGate {
        FORKING.store(true, Ordering::SeqCst);
        // Use the kernel's clock, because libfaketime may stop libc's, and then this loop would never end.
        let deadline = clock::monotonic() + FORK_TIMEOUT_NS;
        while ENUMERATING_THREADS.load(Ordering::SeqCst) > 0 && clock::monotonic() < deadline {
            std::thread::yield_now();
        }
        ClosedGate
    }
}

/// Resets the count in the child of a fork, which has a single thread.
pub(crate) fn in_child() {
    ENUMERATING_THREADS.store(0, Ordering::SeqCst);
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        FORKING.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns true if a fork that begins during an enumeration waits for the enumeration to finish.
    fn fork_waits_for_enumeration() -> bool {
        let (began, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                enumerate_libraries(|| {
                    began.store(true, Ordering::SeqCst);
                    while !FORKING.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    ended.store(true, Ordering::SeqCst);
                })
            });
            while !began.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let _gate = ClosedGate::close();
            ended.load(Ordering::SeqCst)
        })
    }

    /// A single test, because both cases use the same statics.
    #[test]
    fn a_fork_and_a_look_exclude_each_other() {
        // At least one of the forks must have waited; on a busy machine some may hit the 200 ms timeout.
        assert!((0..20).any(|_| fork_waits_for_enumeration()));
        assert_eq!(enumerate_libraries(|| 1), Some(1));
        let gate = ClosedGate::close();
        assert_eq!(enumerate_libraries(|| 1), None);
        in_child();
        drop(gate);
        assert_eq!(enumerate_libraries(|| 1), Some(1));
    }
}
