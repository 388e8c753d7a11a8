//! Looking around among the libraries of the process, and `fork(2)`.
//!
//! Who lists libraries holds a lock of the loader's. glibc gives its other locks to the child of a fork anew, but not that
//! one (`dl_load_write_lock`, 2.36): forked while another thread looks, the child would wait for ever at its next `dlopen` or
//! C++ exception. So a fork waits until nobody of us looks, and nobody begins to look meanwhile.
//!
//! It is no lock: some look under the loader's locks and some come to them while they look, and both at once are fine. For
//! the same reason the fork waits a while and no longer.

#![forbid(unsafe_code)]

use crate::clock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// In nanoseconds.
const PATIENCE: u64 = 200_000_000;

static LOOKING: AtomicUsize = AtomicUsize::new(0);
static FORKING: AtomicBool = AtomicBool::new(false);

/// Looks around, unless somebody forks.
pub(crate) fn look<R>(work: impl FnOnce() -> R) -> Option<R> {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            LOOKING.fetch_sub(1, Ordering::SeqCst);
        }
    }
    LOOKING.fetch_add(1, Ordering::SeqCst);
    let _done = Done;
    (!FORKING.load(Ordering::SeqCst)).then(work)
}

/// Nobody looks around, from now on until it is dropped.
pub(crate) struct Nobody;

impl Nobody {
    pub(crate) fn looks() -> Nobody {
        FORKING.store(true, Ordering::SeqCst);
        // The kernel's clock: one that libfaketime has stopped would make this wait for ever.
        let until = clock::monotonic() + PATIENCE;
        while LOOKING.load(Ordering::SeqCst) > 0 && clock::monotonic() < until {
            std::thread::yield_now();
        }
        Nobody
    }
}

/// In the child of a fork there are no other threads.
pub(crate) fn in_child() {
    LOOKING.store(0, Ordering::SeqCst);
}

impl Drop for Nobody {
    fn drop(&mut self) {
        FORKING.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_looks_while_somebody_forks() {
        assert_eq!(look(|| 1), Some(1));
        let nobody = Nobody::looks();
        assert_eq!(look(|| 1), None);
        in_child();
        drop(nobody);
        assert_eq!(look(|| 1), Some(1));
    }
}
