//! Code of an LLVM of which nothing is heard: a linker of it is not understood, and the program registers nothing with debuggers.
//!
//! Most programs do register, so a linker that is left alone is worth a warning only where code comes of it: LLVM itself has let
//! memory run, after a second no object is known to be there, and that LLVM has never reported one.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::{AddressRange, log_line};

use crate::state::{Shim, State};

/// In nanoseconds: ORC lists an object once it is final.
const PATIENCE: u64 = 1_000_000_000;

/// Whether an LLVM may be unheard: nothing is asked under a lock before.
static POSSIBLE: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
pub(crate) struct Unheard {
    /// Memory without a known object, and when it was allowed to run.
    waiting: Option<(AddressRange, u64)>,
    warned: bool,
}

/// An LLVM came of which some linker is not listened to.
pub(crate) fn may_be() {
    POSSIBLE.store(true, Ordering::Relaxed);
}

/// Whether [`Shim::let_run`] has anything to do.
pub(crate) fn is_possible() -> bool {
    POSSIBLE.load(Ordering::Relaxed)
}

impl Shim {
    /// A library with an LLVM has let `range` run.
    pub(crate) fn let_run(&self, range: AddressRange) {
        let mut state = self.lock();
        if !state.unheard.warned && state.unheard.waiting.is_none() && state.memory.is_free(range) {
            state.unheard.waiting = Some((range, jitlisten::monotonic()));
        }
    }

    /// Says once that nothing was heard of code that runs for a second.
    pub(crate) fn look_at_unheard(&self, state: &mut State) {
        let is_due = |&(_, since): &(AddressRange, u64)| jitlisten::monotonic().saturating_sub(since) >= PATIENCE;
        let Some((range, _)) = state.unheard.waiting.filter(is_due) else { return };
        state.unheard.waiting = None;
        if !state.memory.is_free(range) || !state.memory.has_executable(range) {
            return;
        }
        let unheard = state.sources().filter_map(|source| Some((source.path.display(), source.unheard()?)));
        let mut said = false;
        for (path, reason) in unheard {
            said = true;
            log_line!(
                Warn,
                "{path}: nothing was heard of this LLVM, and code became executable that no other has reported: {reason}; what the program \
                 does not register with debuggers has no names"
            );
        }
        state.unheard.warned = said;
    }
}
