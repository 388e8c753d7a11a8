//! `fork(2)` in a process where nothing else takes the session's lock across it (the shim does, with its own).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{ForkGuard, HostStateGuard, Session};

/// The session's lock, held by the thread that forks. No handler of a signal may run while it does.
struct Held(Option<(ForkGuard, HostStateGuard)>);

// SAFETY: put in and taken out by the one thread that forks, between the handlers of `pthread_atfork`.
unsafe impl Sync for Held {}
// SAFETY: as above; only the address of the static moves between threads.
unsafe impl Send for Held {}

static HELD: Mutex<Held> = Mutex::new(Held(None));
static FOLLOWS: AtomicBool = AtomicBool::new(false);

impl Session {
    /// Takes the session's lock across every `fork(2)` from now on, so that the child finds it free and goes on with files of
    /// its own. Not for callers of [`Session::lock_for_fork`].
    pub fn follow_forks(&'static self) {
        if FOLLOWS.swap(true, Ordering::Relaxed) {
            return;
        }
        // SAFETY: the handlers are functions of this library; keeping it loaded is up to the program that links it.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

unsafe extern "C" fn prepare() {
    quietly(|| {
        let Some(session) = Session::process() else { return };
        let host_state = HostStateGuard::enter();
        let guard = session.lock_for_fork();
        HELD.lock().unwrap_or_else(PoisonError::into_inner).0 = Some((guard, host_state));
    });
}

unsafe extern "C" fn parent() {
    quietly(|| drop(taken()));
}

unsafe extern "C" fn child() {
    quietly(|| {
        let Some((guard, _host_state)) = taken() else { return };
        guard.in_child();
    });
}

fn taken() -> Option<(ForkGuard, HostStateGuard)> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner).0.take()
}

/// A panic of ours must not end the host's fork.
fn quietly(work: impl FnOnce()) {
    let _host_state = HostStateGuard::enter();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
}
