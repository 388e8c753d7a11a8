//! `fork(2)` handlers: the shim's and the session's locks are taken before a fork and released in both processes.

#![forbid(unsafe_code)]

use std::sync::MutexGuard;

use jitlisten::plumbing::{ForkGuard, ForkSlot, HeldAcrossFork, ReentrancyToken, follow_forks};

use crate::hooks;
use crate::state::State;

/// The shim's and the session's locks, held by the forking thread so that no other thread is in the middle of a change.
/// Hooks in the forking thread do not wait for these locks, because other `pthread_atfork` handlers run while they are
/// held.
struct HeldLocks {
    state: MutexGuard<'static, State>,
    session: ForkGuard,
    _entered: ReentrancyToken<'static>,
}

/// Installs the `fork(2)` handlers.
pub(crate) fn install_handlers() {
    follow_forks::<HeldLocks>();
}

impl HeldAcrossFork for HeldLocks {
    fn slot() -> &'static ForkSlot<HeldLocks> {
        static SLOT: ForkSlot<HeldLocks> = ForkSlot::new();
        &SLOT
    }

    fn take() -> Option<HeldLocks> {
        hooks::catch_panic(|shim| {
            let entered = hooks::enter()?;
            let (state, session) = (shim.lock(), shim.objects.lock_for_fork());
            Some(HeldLocks { state, session, _entered: entered })
        })
    }

    fn in_child(self) {
        // Release the locks even if the hooks are disabled.
        let HeldLocks { state, session, _entered } = self;
        hooks::catch_panic(|_| session.in_child());
        drop(state);
    }
}
