//! Locks that are held across `fork(2)`, so that the child finds them free and their data consistent.
//!
//! ```text
//!   prepare   HostStateGuard, then HeldAcrossFork::take      no handler of a signal runs while the locks are held
//!   parent    dropped
//!   child     HeldAcrossFork::in_child
//! ```
//! The one fork handler of the session, the shim and the sampler. Handlers of `pthread_atfork` run in the reverse order
//! of their registration, so the sampler's lock is taken first, as everywhere. The crate `unwind-register` stands alone
//! and has its own.

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::host_state::HostStateGuard;

/// What is held, by the thread that forks.
pub trait HeldAcrossFork: Sized + 'static {
    /// Where it is kept meanwhile: a static.
    fn slot() -> &'static ForkSlot<Self>;

    /// Takes the locks, before the fork; nothing where there is nothing to hold.
    fn take() -> Option<Self>;

    /// In the child, which has one thread. In the parent it is dropped.
    fn in_child(self);
}

/// Keeps what is held between the handlers of `pthread_atfork`.
pub struct ForkSlot<H> {
    follows: AtomicBool,
    kept: Mutex<Kept<H>>,
}

/// The locks are released before the signals that waited are handled.
struct Kept<H>(Option<(libc::pthread_t, H, HostStateGuard)>);

// SAFETY: taken out and dropped by the thread that has put it in, whose number stands there ([`ForkSlot::take`]).
unsafe impl<H> Send for Kept<H> {}

impl<H: HeldAcrossFork> ForkSlot<H> {
    /// An empty one.
    #[expect(clippy::new_without_default, reason = "it is only ever a static")]
    pub const fn new() -> ForkSlot<H> {
        ForkSlot { follows: AtomicBool::new(false), kept: Mutex::new(Kept(None)) }
    }

    /// Keeps what a fork has taken. Only the holder of its locks comes here.
    fn keep(&self, held: H, host_state: HostStateGuard) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).0 = Some((this_thread(), held, host_state));
    }

    /// What this thread has taken. Another one that forks at the same time, and had nothing to take, must not release
    /// it.
    fn take(&self) -> Option<(H, HostStateGuard)> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, held, host_state) = kept.0.take_if(|kept| kept.0 == this_thread())?;
        Some((held, host_state))
    }
}

/// From now on, holds `H` across every `fork(2)`. To be called any number of times.
pub fn follow_forks<H: HeldAcrossFork>() {
    if !H::slot().follows.swap(true, Ordering::AcqRel) {
        Handlers::<H>::register();
    }
}

/// The three handlers of `H`.
struct Handlers<H>(PhantomData<H>);

impl<H: HeldAcrossFork> Handlers<H> {
    fn register() {
        // SAFETY: the handlers are functions of this library, which is never unloaded; where it is part of a program,
        // keeping that loaded is up to the program.
        unsafe { libc::pthread_atfork(Some(Self::prepare), Some(Self::parent), Some(Self::child)) };
    }

    unsafe extern "C" fn prepare() {
        caught(|| {
            let host_state = HostStateGuard::enter();
            if let Some(held) = H::take() {
                H::slot().keep(held, host_state);
            }
        });
    }

    unsafe extern "C" fn parent() {
        caught(|| drop(H::slot().take()));
    }

    unsafe extern "C" fn child() {
        caught(|| {
            let Some((held, _host_state)) = H::slot().take() else { return };
            held.in_child();
        });
    }
}

/// The thread's number, the same in the child.
fn this_thread() -> libc::pthread_t {
    // SAFETY: pthread_self has no precondition.
    unsafe { libc::pthread_self() }
}

/// A panic of ours must not end the host's fork.
fn caught(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    static RELEASED: AtomicU32 = AtomicU32::new(0);
    static THERE_IS_NOTHING: AtomicBool = AtomicBool::new(false);

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
            if THERE_IS_NOTHING.load(Ordering::SeqCst) { None } else { Some(Held) }
        }

        fn in_child(self) {}
    }

    #[test]
    fn a_fork_that_holds_nothing_releases_nothing_of_another() {
        // SAFETY: what glibc does before a fork, in this thread.
        unsafe { Handlers::<Held>::prepare() };
        THERE_IS_NOTHING.store(true, Ordering::SeqCst);
        let other = || {
            // SAFETY: the handlers of a fork in another thread.
            unsafe { Handlers::<Held>::prepare() };
            // SAFETY: the handler of the parent follows that of `prepare`, in its thread.
            unsafe { Handlers::<Held>::parent() };
        };
        std::thread::spawn(other).join().expect("it ends");
        assert_eq!(RELEASED.load(Ordering::SeqCst), 0);
        // SAFETY: the fork of this thread is done.
        unsafe { Handlers::<Held>::parent() };
        assert_eq!(RELEASED.load(Ordering::SeqCst), 1);
    }
}
