//! `fork(2)`: our locks and the session's are taken before it and released on both sides.

use std::sync::{Mutex, MutexGuard, PoisonError};

use jitlisten::{Entered, ForkGuard, HostStateGuard};

use crate::hooks;
use crate::state::State;

/// Our locks, held by the thread that forks: whatever another thread was doing under them is done. No handler of a signal
/// may run while it holds them, and no hook in this thread waits for them: other handlers of `pthread_atfork` run meanwhile.
struct Held {
    state: MutexGuard<'static, State>,
    session: ForkGuard,
    _entered: Entered<'static>,
    _host_state: HostStateGuard,
}

struct HeldForFork(Option<Held>);

// SAFETY: put in and taken out by the one thread that forks, between the handlers of `pthread_atfork`.
unsafe impl Sync for HeldForFork {}
// SAFETY: as above; only the address of the static moves between threads.
unsafe impl Send for HeldForFork {}

static HELD: Mutex<HeldForFork> = Mutex::new(HeldForFork(None));

/// From now on, our locks are taken across every `fork(2)`.
pub(crate) fn follow() {
    unsafe extern "C" fn prepare() {
        hooks::caught(|shim| {
            let host_state = HostStateGuard::enter();
            let Some(entered) = hooks::enter() else { return };
            let (state, session) = (shim.lock(), shim.session.lock_for_fork());
            let held = Held { state, session, _entered: entered, _host_state: host_state };
            HELD.lock().unwrap_or_else(PoisonError::into_inner).0 = Some(held);
        });
    }
    // No guards of their own: the one that was entered before the fork ends here.
    unsafe extern "C" fn parent() {
        drop(take_held());
    }
    unsafe extern "C" fn child() {
        // What was taken is released even where our listening has ended.
        let Some(Held { state, session, _entered, _host_state }) = take_held() else { return };
        hooks::caught(|_| session.in_child());
        drop(state);
    }
    fn take_held() -> Option<Held> {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).0.take()
    }
    // SAFETY: the handlers live as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}
