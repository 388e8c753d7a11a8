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

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::host_state::HostStateGuard;

/// Locks that the forking thread holds during `fork(2)`.
pub trait HeldAcrossFork: Sized + 'static {
    /// Static in which the locks are kept during the fork.
    fn slot() -> &'static ForkSlot<Self>;

    /// Takes the locks before the fork; `None` if there is nothing to lock.
    fn take() -> Option<Self>;

    /// Called in the child, which has a single thread. In the parent, the locks are just dropped.
    fn in_child(self);
}

/// Storage for held locks between the handlers of `pthread_atfork`.
pub struct ForkSlot<H> {
    is_registered: AtomicBool,
    kept: Mutex<Kept<H>>,
}

/// Forking thread, its locks and its host state. Fields drop in order: locks are released before pending signals are
/// handled.
struct Kept<H>(Option<(libc::pthread_t, H, HostStateGuard)>);

// SAFETY: the contents are taken out and dropped only by the thread that stored them; its thread id is stored with them
// ([`ForkSlot::take`]).
unsafe impl<H> Send for Kept<H> {}

impl<H: HeldAcrossFork> ForkSlot<H> {
    /// Creates an empty slot.
    #[expect(clippy::new_without_default, reason = "it is only ever a static")]
    pub const fn new() -> ForkSlot<H> {
        ForkSlot { is_registered: AtomicBool::new(false), kept: Mutex::new(Kept(None)) }
    }

    /// Stores the locks that a fork has taken. Callers hold the locks, so there is one caller at a time.
    fn keep(&self, held: H, host_state: HostStateGuard) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).0 = Some((this_thread(), held, host_state));
    }

    /// Removes and returns the locks that this thread stored. Another thread that forks at the same time, and had
    /// nothing to lock, must not release them.
    fn take(&self) -> Option<(H, HostStateGuard)> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, held, host_state) = kept.0.take_if(|kept| kept.0 == this_thread())?;
        Some((held, host_state))
    }
}

/// Holds `H` across every `fork(2)` from now on. Idempotent.
pub fn follow_forks<H: HeldAcrossFork>() {
    if !H::slot().is_registered.swap(true, Ordering::AcqRel) {
        Handlers::<H>::register();
    }
}

/// Fork handlers for `H`.
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
            if let Some(held) = H::take() {
                H::slot().keep(held, host_state);
            }
        });
    }

    unsafe extern "C" fn parent() {
        catch_panics(|| drop(H::slot().take()));
    }

    unsafe extern "C" fn child() {
        catch_panics(|| {
            let Some((held, _host_state)) = H::slot().take() else { return };
            held.in_child();
        });
    }
}

/// Id of the calling thread; unchanged in the child of a fork.
fn this_thread() -> libc::pthread_t {
    // SAFETY: pthread_self has no precondition.
    unsafe { libc::pthread_self() }
}

/// Runs `work` and swallows a panic: our panic must not abort the host's fork.
fn catch_panics(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    static RELEASED: AtomicU32 = AtomicU32::new(0);
    static NOTHING_TO_LOCK: AtomicBool = AtomicBool::new(false);

    struct Held;

    impl Drop for Held {
        fn drop(&mut self) {
            RELEASED.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl HeldAcrossFork for Held {
        fn slot() -> &'static ForkSlot<Held> {
            static SLOT: ForkSlot<Held> = ForkSlot::new();
            &SLOT
        }

        fn take() -> Option<Held> {
            if NOTHING_TO_LOCK.load(Ordering::SeqCst) { None } else { Some(Held) }
        }

        fn in_child(self) {}
    }

    #[test]
    fn a_fork_that_holds_nothing_releases_nothing_of_another() {
        // SAFETY: this thread calls the handler as glibc does before a fork.
        unsafe { Handlers::<Held>::prepare() };
        NOTHING_TO_LOCK.store(true, Ordering::SeqCst);
        let other = || {
            // SAFETY: another thread calls the handlers of a fork.
            unsafe { Handlers::<Held>::prepare() };
            // SAFETY: the parent handler runs after `prepare`, on the same thread.
            unsafe { Handlers::<Held>::parent() };
        };
        std::thread::spawn(other).join().expect("it ends");
        assert_eq!(RELEASED.load(Ordering::SeqCst), 0);
        // SAFETY: ends the fork of this thread.
        unsafe { Handlers::<Held>::parent() };
        assert_eq!(RELEASED.load(Ordering::SeqCst), 1);
    }
}
