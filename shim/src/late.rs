//! Delayed checks: objects that did not become final, and code that no LLVM reported.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{Outcome, checked_read, mappings_in};
use jitlisten::{AddressRange, log_line};

use crate::state::{Shim, State};

/// Maximum number of overdue objects that one call checks.
const MAX_OVERDUE_CHECKS: usize = 4;

impl Shim {
    /// Frees a few objects whose memory was unmapped unobserved, by a library without LLVM or by a system call. The
    /// `munmap` hooks do not know the pages of code that never ran.
    pub(crate) fn free_unmapped(&self, state: &mut State) {
        for id in self.session.next_overdue(MAX_OVERDUE_CHECKS) {
            let first_range = self.session.ledger(|ledger| ledger.pending(id).and_then(|text| text.first().copied()));
            if first_range.is_some_and(is_unmapped) {
                self.session.freeing(id);
                self.note(state, &Outcome { freed: vec![id], ..Outcome::default() });
            }
        }
    }

    /// Handles memory that a library with LLVM has made executable.
    pub(crate) fn record_executable(&self, range: AddressRange) {
        let mut state = self.lock();
        if self.is_free(range) {
            state.unheard.add(range, jitlisten::plumbing::monotonic());
            self.unnamed_code(&mut state, range, true);
        }
    }

    /// Warns once about code that has been executable for a second and was not reported.
    pub(crate) fn look_at_unheard(&self, state: &mut State) {
        let Some(range) = state.unheard.take(jitlisten::plumbing::monotonic()) else { return };
        if self.session.ledger(|ledger| !ledger.is_free(range) || !ledger.has_executable(range)) {
            return;
        }
        let unobserved: Vec<_> =
            state.sources().filter_map(|source| Some((&source.path, source.unobserved_reason()?))).collect();
        for (path, reason) in &unobserved {
            log_line!(
                Warn,
                "{}: this LLVM reported no object, but code became executable: {reason}; code not registered with \
                 debuggers stays unnamed",
                path.display()
            );
        }
        if !unobserved.is_empty() {
            state.unheard.set_warned();
            state.note_silent();
            self.publish(state);
        }
    }
}

/// Returns true if the first byte of `text` is unmapped: a read fails, and the kernel lists no mapping there.
fn is_unmapped(text: AddressRange) -> bool {
    let Some(first_byte) = AddressRange::new(text.start(), 1) else { return false };
    checked_read::copy(first_byte).is_err() && matches!(mappings_in(first_byte), Ok(None))
}
