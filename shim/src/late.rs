//! Delayed checks: objects that did not become final, and code that no LLVM reported.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{Outcome, checked_read, mappings_of};
use jitlisten::{AddressRange, log_line};

use crate::state::{Shim, State};

/// So many objects are looked at on each occasion.
const LOOKS: usize = 4;

impl Shim {
    /// Frees a few objects whose memory was unmapped unobserved, by a library without an LLVM or by a system call: of
    /// code that never ran, no page is known to the hooks of `munmap`.
    pub(crate) fn free_unmapped(&self, state: &mut State) {
        for id in self.session.next_overdue(LOOKS) {
            let first = self.session.ledger(|ledger| ledger.pending(id).and_then(|text| text.first().copied()));
            if first.is_some_and(is_unmapped) {
                self.session.freeing(id);
                self.note(state, &Outcome { freed: vec![id], ..Outcome::default() });
            }
        }
    }

    /// A library with an LLVM has let `range` run.
    pub(crate) fn let_run(&self, range: AddressRange) {
        let mut state = self.lock();
        if self.is_free(range) {
            state.unheard.add(range, jitlisten::plumbing::monotonic());
            self.unnamed_code(&mut state, range, true);
        }
    }

    /// Warns once of code that has been executable for a second and was not reported.
    pub(crate) fn look_at_unheard(&self, state: &mut State) {
        let Some(range) = state.unheard.take(jitlisten::plumbing::monotonic()) else { return };
        if self.session.ledger(|ledger| !ledger.is_free(range) || !ledger.has_executable(range)) {
            return;
        }
        let unheard: Vec<_> = state.sources().filter_map(|source| Some((&source.path, source.unheard()?))).collect();
        for (path, reason) in &unheard {
            log_line!(
                Warn,
                "{}: this LLVM reported no object, but code became executable: {reason}; code not registered with \
                 debuggers stays unnamed",
                path.display()
            );
        }
        if !unheard.is_empty() {
            state.unheard.warned();
            state.note_silent();
            self.publish(state);
        }
    }
}

/// Whether nothing is mapped at the first byte of `text`: neither a read nor the kernel's list finds it.
fn is_unmapped(text: AddressRange) -> bool {
    let Some(first) = AddressRange::new(text.start(), 1) else { return false };
    checked_read::copy(first).is_err() && matches!(mappings_of(first), Ok(None))
}
