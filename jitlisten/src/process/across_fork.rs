//! `fork(2)`: what a thread holds across it, so that the child finds every lock free and what is behind it whole.
//!
//! ```text
//!   prepare   HostStateGuard, then HeldAcrossFork::take      no handler of a signal runs while the locks are held
//!   parent    dropped
//!   child     HeldAcrossFork::in_child
//! ```
//! The one fork handler of the session, the shim and the sampler. Handlers of `pthread_atfork` run in the reverse order of their
//! registration, so the sampler's lock is taken first, as everywhere. The crate `unwind-register` stands alone and has its own.

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
struct Kept<H>(Option<(H, HostStateGuard)>);

// SAFETY: put in and taken out by the one thread that forks, between the handlers of `pthread_atfork`; of other threads, only the
// address of the static is known.
unsafe impl<H> Send for Kept<H> {}

impl<H: HeldAcrossFork> ForkSlot<H> {
    /// An empty one.
    #[expect(clippy::new_without_default, reason = "it is only ever a static")]
    pub const fn new() -> ForkSlot<H> {
        ForkSlot { follows: AtomicBool::new(false), kept: Mutex::new(Kept(None)) }
    }

    fn keep(&self, held: Option<(H, HostStateGuard)>) -> Option<(H, HostStateGuard)> {
        std::mem::replace(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner).0, held)
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
        // SAFETY: the handlers are functions of this library, which is never unloaded; where it is part of a program, keeping that
        // loaded is up to the program.
        unsafe { libc::pthread_atfork(Some(Self::prepare), Some(Self::parent), Some(Self::child)) };
    }

    unsafe extern "C" fn prepare() {
        caught(|| {
            let host_state = HostStateGuard::enter();
            let held = H::take().map(|held| (held, host_state));
            drop(H::slot().keep(held));
        });
    }

    unsafe extern "C" fn parent() {
        caught(|| drop(H::slot().keep(None)));
    }

    unsafe extern "C" fn child() {
        caught(|| {
            let Some((held, _host_state)) = H::slot().keep(None) else { return };
            held.in_child();
        });
    }
}

/// A panic of ours must not end the host's fork.
fn caught(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}
