//! `fork(2)`: our locks and the session's are taken before it and released on both sides.

#![forbid(unsafe_code)]

use std::sync::MutexGuard;

use jitlisten::plumbing::{Entered, ForkGuard, ForkSlot, HeldAcrossFork, follow_forks};

use crate::hooks;
use crate::state::State;

/// Our locks, held by the thread that forks: whatever another thread was doing under them is done. No hook in this
/// thread waits for them: other handlers of `pthread_atfork` run meanwhile.
struct Held {
    state: MutexGuard<'static, State>,
    session: ForkGuard,
    _entered: Entered<'static>,
}

/// From now on, our locks are taken across every `fork(2)`.
pub(crate) fn follow() {
    follow_forks::<Held>();
}

impl HeldAcrossFork for Held {
    fn slot() -> &'static ForkSlot<Held> {
        static SLOT: ForkSlot<Held> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<Held> {
        hooks::caught(|shim| {
            let entered = hooks::enter()?;
            let (state, session) = (shim.lock(), shim.session.lock_for_fork());
            Some(Held { state, session, _entered: entered })
        })
    }

    fn in_child(self) {
        // What was taken is released even where our listening has ended.
        let Held { state, session, _entered } = self;
        hooks::caught(|_| session.in_child());
        drop(state);
    }
}
