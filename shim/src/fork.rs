//! `fork(2)` handlers: the locks of the shim and of the live objects are taken before a fork, and released in both
//! processes.

#![forbid(unsafe_code)]

use std::sync::MutexGuard;

use jitlisten::plumbing::{ForkGuard, ForkSlot, HeldAcrossFork, ReentrancyToken, follow_forks};

use crate::hooks;
use crate::state::State;

/// The locks of the shim and of the live objects, held by the forking thread so that no other thread is in the middle
/// of a change. Hooks in the forking thread do not wait for these locks, because other `pthread_atfork` handlers run
/// while they are held.
struct HeldLocks {
    state: MutexGuard<'static, State>,
    objects: ForkGuard,
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
            let (state, objects) = (shim.lock(), shim.objects.lock_for_fork());
            Some(HeldLocks { state, objects, _entered: entered })
        })
    }

    fn in_child(self) {
        // Release the locks even if the hooks are disabled.
        let HeldLocks { state, objects, _entered } = self;
        hooks::catch_panic(|_| objects.in_child());
        drop(state);
    }
}
