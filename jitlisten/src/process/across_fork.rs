//! Locks held across `fork(2)`, so that the child finds them free and their data consistent.
//!
//! ```text
//!   prepare   HostStateGuard, then HeldAcrossFork::take      no signal handler runs while the locks are held
//!   parent    locks dropped
//!   child     HeldAcrossFork::in_child
//! ```
//! The session, the shim and the sampler share this fork handler. `pthread_atfork` runs prepare handlers in reverse
//! order of registration, so the sampler's lock is taken first, as everywhere else. The independent crate
//! `unwind-register` has its own handler.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::host_state::HostStateGuard;

/// Locks that the forking thread holds during `fork(2)`.
pub trait HeldAcrossFork: Sized + 'static {
    /// Static that keeps the locks during the fork.
    fn slot() -> &'static ForkSlot<Self>;

    /// Takes the locks before the fork; `None` if there is nothing to lock.
    fn take() -> Option<Self>;

    /// Called in the child, which has a single thread. In the parent, the locks are just dropped.
    fn in_child(self);
}

/// Storage for held locks between the handlers of `pthread_atfork`.
pub struct ForkSlot<H> {
    is_registered: AtomicBool,
    /// Thread that stored the locks; 0 if none.
    owner: AtomicU64,
    /// Only the owner locks it, so a forked child finds it unlocked.
    stored: Mutex<StoredLocks<H>>,
}

/// Locks of the forking thread and its host state. Fields drop in order, so locks are released before pending signals
/// are handled.
struct StoredLocks<H>(Option<(H, HostStateGuard)>);

// SAFETY: only the thread that stored the contents, the owner of the slot, takes them out and drops them
// ([`ForkSlot::take`]).
unsafe impl<H> Send for StoredLocks<H> {}

impl<H: HeldAcrossFork> ForkSlot<H> {
    /// Creates an empty slot.
    #[expect(clippy::new_without_default, reason = "it is only ever a static")]
    pub const fn new() -> ForkSlot<H> {
        ForkSlot {
            is_registered: AtomicBool::new(false),
            owner: AtomicU64::new(0),
            stored: Mutex::new(StoredLocks(None)),
        }
    }

    /// Stores the locks that a fork has taken. Callers hold the locks, so there is one caller at a time.
    fn store(&self, locks: H, host_state: HostStateGuard) {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).0 = Some((locks, host_state));
        self.owner.store(this_thread(), Ordering::Release);
    }

    /// Removes and returns the locks that this thread stored. Another thread that forks at the same time, and had
    /// nothing to lock, must not release them.
    fn take(&self) -> Option<(H, HostStateGuard)> {
        self.owner.compare_exchange(this_thread(), 0, Ordering::AcqRel, Ordering::Acquire).ok()?;
        self.stored.lock().unwrap_or_else(PoisonError::into_inner).0.take()
    }
}

/// Holds `H` across every `fork(2)` from now on. Idempotent.
pub fn follow_forks<H: HeldAcrossFork>() {
    if !H::slot().is_registered.swap(true, Ordering::AcqRel) {
        Handlers::<H>::register();
    }
}

struct Handlers<H>(PhantomData<H>);

impl<H: HeldAcrossFork> Handlers<H> {
    fn register() {
        // SAFETY: the handlers belong to this library, which is never unloaded. A shared object that links the crate
        // statically must itself stay loaded.
        unsafe { libc::pthread_atfork(Some(Self::prepare), Some(Self::parent), Some(Self::child)) };
    }

    unsafe extern "C" fn prepare() {
        catch_panics(|| {
            let host_state = HostStateGuard::enter();
            if let Some(locks) = H::take() {
                H::slot().store(locks, host_state);
            }
        });
    }

    unsafe extern "C" fn parent() {
        catch_panics(|| drop(H::slot().take()));
    }

    unsafe extern "C" fn child() {
        catch_panics(|| {
            let Some((locks, _host_state)) = H::slot().take() else { return };
            locks.in_child();
        });
    }
}

/// Id of the calling thread; unchanged in the child of a fork.
fn this_thread() -> u64 {
    // SAFETY: pthread_self has no precondition.
    unsafe { libc::pthread_self() as u64 }
}

/// Runs `work` and swallows a panic, because our panic must not abort the host's fork.
fn catch_panics(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    static RELEASED: AtomicU32 = AtomicU32::new(0);
    static NOTHING_TO_LOCK: AtomicBool = AtomicBool::new(false);

    struct TestLock;

    impl Drop for TestLock {
        fn drop(&mut self) {
            RELEASED.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl HeldAcrossFork for TestLock {
        fn slot() -> &'static ForkSlot<TestLock> {
            static SLOT: ForkSlot<TestLock> = ForkSlot::new();
            &SLOT
        }

        fn take() -> Option<TestLock> {
            if NOTHING_TO_LOCK.load(Ordering::SeqCst) { None } else { Some(TestLock) }
        }

        fn in_child(self) {}
    }

    #[test]
    fn a_fork_that_holds_nothing_releases_nothing_of_another() {
        // SAFETY: this thread calls the handler as glibc does before a fork.
        unsafe { Handlers::<TestLock>::prepare() };
        NOTHING_TO_LOCK.store(true, Ordering::SeqCst);
        let fork_in_other_thread = || {
            // SAFETY: this thread calls the handlers as glibc does around a concurrent fork.
            unsafe { Handlers::<TestLock>::prepare() };
            // SAFETY: the parent handler runs after `prepare`, on the same thread.
            unsafe { Handlers::<TestLock>::parent() };
        };
        std::thread::spawn(fork_in_other_thread).join().expect("it ends");
        assert_eq!(RELEASED.load(Ordering::SeqCst), 0);
        // SAFETY: the parent handler ends the fork that this thread began.
        unsafe { Handlers::<TestLock>::parent() };
        assert_eq!(RELEASED.load(Ordering::SeqCst), 1);
    }
}
