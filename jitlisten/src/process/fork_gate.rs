//! Delays `fork(2)` while a thread of ours lists the libraries of the process.
//!
//! Such a thread holds a lock of the loader. glibc resets its other locks in the child of a fork, but not that one
//! (`dl_load_write_lock`, 2.36): the child would hang at its next `dlopen` or C++ exception. Therefore a fork waits
//! until no thread of ours lists libraries, and no thread starts to meanwhile.
//!
//! It is not a lock: some threads list under the loader's locks, others take them while listing, and both may happen at
//! once. For the same reason the fork waits only for a limited time.

#![forbid(unsafe_code)]

use crate::process::clock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// In nanoseconds.
const PATIENCE: u64 = 200_000_000;

static INSIDE: AtomicUsize = AtomicUsize::new(0);
static FORKING: AtomicBool = AtomicBool::new(false);

/// Runs `work`, which lists libraries, unless a fork is under way.
pub(crate) fn look<R>(work: impl FnOnce() -> R) -> Option<R> {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    INSIDE.fetch_add(1, Ordering::SeqCst);
    let _done = Done;
    (!FORKING.load(Ordering::SeqCst)).then(work)
}

/// While it lives, [`look`] refuses.
pub(crate) struct ClosedGate;

impl ClosedGate {
    pub(crate) fn close() -> ClosedGate {
        FORKING.store(true, Ordering::SeqCst);
        // The kernel's clock: one that libfaketime has stopped would make this wait for ever.
        let until = clock::monotonic() + PATIENCE;
        while INSIDE.load(Ordering::SeqCst) > 0 && clock::monotonic() < until {
            std::thread::yield_now();
        }
        ClosedGate
    }
}

/// In the child of a fork there are no other threads.
pub(crate) fn in_child() {
    INSIDE.store(0, Ordering::SeqCst);
}

impl Drop for ClosedGate {
    fn drop(&mut self) {
        FORKING.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a fork that begins during a look sees the look's end.
    fn a_fork_waits() -> bool {
        let (began, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                look(|| {
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

    /// Both change the same variables.
    #[test]
    fn a_fork_and_a_look_exclude_each_other() {
        // Not more than 200 ms, which a busy machine may take.
        assert!((0..20).any(|_| a_fork_waits()));
        assert_eq!(look(|| 1), Some(1));
        let gate = ClosedGate::close();
        assert_eq!(look(|| 1), None);
        in_child();
        drop(gate);
        assert_eq!(look(|| 1), Some(1));
    }
}
