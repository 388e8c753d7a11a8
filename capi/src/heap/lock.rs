//! The heap lock: a futex word.
//!
//! This is the innermost lock: its holder calls only the kernel. The lock uses neither thread-local variables nor
//! `pthread` keys, which might allocate on first use. The forking thread holds the lock across `fork(2)`, so the child
//! finds the heap consistent. That thread may allocate in the meantime, because other `pthread_atfork` handlers run.

use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use jitlisten::plumbing::{ForkSlot, HeldAcrossFork};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and another thread may be waiting.
const CONTENDED: u32 = 2;

static STATE: AtomicU32 = AtomicU32::new(FREE);
/// `pthread_self` of the thread that holds the lock across its fork, or 0. The value stays valid in the child.
static FORKING_THREAD: AtomicUsize = AtomicUsize::new(0);

/// Holds the lock until dropped.
pub(crate) struct Held {
    must_release: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.must_release && STATE.swap(FREE, Ordering::Release) == CONTENDED {
            futex(libc::FUTEX_WAKE, 1);
        }
    }
}

/// Acquires the lock. Does nothing in a thread that already holds it across a fork.
pub(crate) fn acquire() -> Held {
    if STATE.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
        if FORKING_THREAD.load(Ordering::Relaxed) == this_thread() {
            return Held { must_release: false };
        }
        while STATE.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex(libc::FUTEX_WAIT, CONTENDED);
        }
    }
    Held { must_release: true }
}

/// Calls `futex(2)` on the lock word, and preserves the host's `errno`.
fn futex(operation: i32, value: u32) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    jitlisten::plumbing::preserving_errno(|| {
        // SAFETY: the lock word is static, and the null pointer means no timeout.
        unsafe { libc::syscall(libc::SYS_futex, STATE.as_ptr(), operation, value, ptr::null::<libc::timespec>()) };
    });
}

fn this_thread() -> usize {
    // SAFETY: pthread_self has no precondition.
    unsafe { libc::pthread_self() as usize }
}

/// Installs fork handlers that hold the lock across `fork(2)`. Must be called before our other fork handlers are
/// installed: `prepare` handlers run in reverse order, and this lock is acquired last.
pub(crate) fn follow_forks() {
    jitlisten::plumbing::follow_forks::<AcrossFork>();
}

/// The lock, held across a fork.
struct AcrossFork {
    _held: Held,
}

impl HeldAcrossFork for AcrossFork {
    fn slot() -> &'static ForkSlot<AcrossFork> {
        static SLOT: ForkSlot<AcrossFork> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<AcrossFork> {
        let held = acquire();
        FORKING_THREAD.store(this_thread(), Ordering::Relaxed);
        Some(AcrossFork { _held: held })
    }

    fn in_child(self) {}
}

impl Drop for AcrossFork {
    fn drop(&mut self) {
        FORKING_THREAD.store(0, Ordering::Relaxed);
    }
}
