//! Delayed checks for objects that did not become final, and for code that no LLVM instance reported.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{LogEvent, Outcome, checked_read, mappings_in, monotonic};
use jitlisten::{AddressRange, log_line};

use super::objects::library_path;
use super::{Shim, State};
use crate::process::this_thread;
use crate::trackers::pending::{self, FINALIZE_TIMEOUT_NS, PendingObject};

/// Maximum number of overdue objects that one call checks.
const MAX_OVERDUE_CHECKS: usize = 4;

impl Shim {
    /// Checks objects that have been pending for a second, logs the first one, and performs other delayed checks.
    pub(super) fn process_overdue(&self, state: &mut State) {
        self.locate_late(state, |emitted, memory| emitted.search_overdue(memory, monotonic()));
        let State { trackers, sources, .. } = &mut *state;
        trackers.emitted.log_missed(|slot| library_path(sources, slot));
        self.warn_about_unreported_code(state);
        self.free_unmapped(state);
        if state.trackers.pending.is_empty() {
            return;
        }
        for PendingObject { id, .. } in state.trackers.pending.take_overdue(monotonic(), FINALIZE_TIMEOUT_NS) {
            let Some(text) = self.pending_text(id) else { continue };
            text.iter().for_each(|&text| self.query_executable(state, text));
            let library = self.objects.library(id);
            let outcome = self.objects.overdue(id);
            self.record_outcome(state, &outcome);
            let is_displaced = outcome.freed.contains(&id);
            let is_missed = is_displaced || self.pending_text(id).is_some();
            if state.trackers.pending.should_warn(is_missed) {
                let mappings = text.first().and_then(|&text| mappings_in(text).ok().flatten());
                let reason = pending::reason(mappings.as_deref().filter(|_| !is_displaced));
                let address = &text.first().map_or_else(String::new, |text| text.start().to_string());
                let library = &library.map_or_else(String::new, |library| format!("{library}: "));
                log_line!(Warn, "{}", LogEvent::NeverFinal { library, address, reason });
            }
        }
    }

    /// Frees a few objects whose memory was unmapped without our noticing, by a library without LLVM or by a direct
    /// system call. The `munmap` hooks of other libraries do not recognise pages that have never been executable.
    fn free_unmapped(&self, state: &mut State) {
        for id in self.objects.next_overdue(MAX_OVERDUE_CHECKS) {
            let first_range = self.objects.ledger(|ledger| ledger.pending(id).and_then(|text| text.first().copied()));
            if first_range.is_some_and(is_unmapped) {
                self.objects.freeing(id);
                self.record_outcome(state, &Outcome { freed: vec![id], ..Outcome::default() });
            }
        }
    }

    /// Handles memory that a library with LLVM has made executable.
    pub(crate) fn check_for_unreported(&self, range: AddressRange) {
        let mut state = self.lock();
        // Memory that a thread makes executable inside `emit` belongs to JITLink.
        if self.is_free(range) && !state.trackers.emitted.is_in_emit(this_thread()) {
            state.unreported_code.add(range, monotonic());
            self.register_unnamed_code(&mut state, range, true);
        }
    }

    /// Warns once about code that has been executable for a second and was not reported.
    fn warn_about_unreported_code(&self, state: &mut State) {
        let Some(range) = state.unreported_code.take(monotonic()) else { return };
        if self.objects.ledger(|ledger| !ledger.is_free(range) || !ledger.has_executable(range)) {
            return;
        }
        let unobserved: Vec<_> =
            state.sources().filter_map(|source| Some((&source.name, source.unobserved_reason()?))).collect();
        for (library, reason) in &unobserved {
            log_line!(Warn, "{}", LogEvent::Silent { library, reason });
        }
        if !unobserved.is_empty() {
            state.unreported_code.set_warned();
            state.mark_silent();
            self.publish(state);
        }
    }
}

/// Returns true if the first byte of `text` is unmapped, so that reading it fails and the kernel lists no mapping
/// there.
fn is_unmapped(text: AddressRange) -> bool {
    let Some(first_byte) = AddressRange::new(text.start(), 1) else { return false };
    checked_read::copy(first_byte).is_err() && matches!(mappings_in(first_byte), Ok(None))
}
