//! The heap's lock: a word and `futex(2)`.
//!
//! It is the innermost lock: its holder calls nothing but the kernel. No thread-local variable and no `pthread` key is
//! used, which might allocate at their first use. Across `fork(2)` the forking thread holds it, so that the child finds
//! the heap whole, and may allocate meanwhile: other handlers of `pthread_atfork` run while it is held.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use jitlisten::plumbing::{ForkSlot, HeldAcrossFork};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and another thread may wait.
const CONTENDED: u32 = 2;

static WORD: AtomicU32 = AtomicU32::new(FREE);
/// `pthread_self` of the thread that holds it across its fork, or 0: the same in the child.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// The lock, until it is dropped.
pub(crate) struct Held {
    is_taken: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_taken && WORD.swap(FREE, Ordering::Release) == CONTENDED {
            futex(libc::FUTEX_WAKE, 1);
        }
    }
}

pub(crate) fn take() -> Held {
    if WORD.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
        if FORKS.load(Ordering::Relaxed) == this_thread() {
            return Held { is_taken: false };
        }
        while WORD.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex(libc::FUTEX_WAIT, CONTENDED);
        }
    }
    Held { is_taken: true }
}

/// The system call itself: `errno` is the host's.
fn futex(operation: i32, value: u32) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    jitlisten::plumbing::keeping_errno(|| {
        // SAFETY: a static word; no time limit.
        unsafe { libc::syscall(libc::SYS_futex, WORD.as_ptr(), operation, value, ptr::null::<libc::timespec>()) };
    });
}

fn this_thread() -> usize {
    // SAFETY: pthread_self has no precondition.
    unsafe { libc::pthread_self() as usize }
}

/// Holds the lock across every fork from now on. The first of our fork handlers to be registered: `prepare` runs in the
/// reverse order, and this lock comes after all others.
pub(crate) fn follow_forks() {
    jitlisten::plumbing::follow_forks::<AcrossFork>();
}

struct AcrossFork {
    _held: Held,
}

impl HeldAcrossFork for AcrossFork {
    fn slot() -> &'static ForkSlot<AcrossFork> {
        static SLOT: ForkSlot<AcrossFork> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<AcrossFork> {
        let held = take();
        FORKS.store(this_thread(), Ordering::Relaxed);
        Some(AcrossFork { _held: held })
    }

    fn in_child(self) {}
}

impl Drop for AcrossFork {
    fn drop(&mut self) {
        FORKS.store(0, Ordering::Relaxed);
    }
}
