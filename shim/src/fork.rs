//! `fork(2)`: our locks and the session's are taken before it and released on both sides.

#![forbid(unsafe_code)]

use std::sync::MutexGuard;

use jitlisten::plumbing::{ForkGuard, ForkSlot, HeldAcrossFork, ReentrancyToken, follow_forks};

use crate::hooks;
use crate::state::State;

/// Our locks, held by the thread that forks: no other thread is in the middle of a change. Hooks in this thread do not
/// wait for them, because other `pthread_atfork` handlers run while they are held.
struct Held {
    state: MutexGuard<'static, State>,
    session: ForkGuard,
    _entered: ReentrancyToken<'static>,
}

/// Installs the `fork(2)` handlers that take our locks.
pub(crate) fn install_handlers() {
    follow_forks::<Held>();
}

impl HeldAcrossFork for Held {
    fn slot() -> &'static ForkSlot<Held> {
        static SLOT: ForkSlot<Held> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<Held> {
        hooks::catch_panic(|shim| {
            let entered = hooks::enter()?;
            let (state, session) = (shim.lock(), shim.session.lock_for_fork());
            Some(Held { state, session, _entered: entered })
        })
    }

    fn in_child(self) {
        // Release the locks even if the hooks are disabled.
        let Held { state, session, _entered } = self;
        hooks::catch_panic(|_| session.in_child());
        drop(state);
    }
}
