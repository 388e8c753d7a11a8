//! Handles reports by linkers and GDB JIT lists that objects were loaded or freed.

use std::sync::Arc;

use jitlisten::plumbing::LogEvent;
use jitlisten::plumbing::{Loaded, Outcome, checked_read, monotonic};
use jitlisten::{AddressRange, ObjectId, log_line};
use wire::facts::{Count, Total};

use super::libraries::unless_closing;
use super::{Shim, State};
use crate::doctor::facts;
use crate::process::mapped_proof::Mapped;
use crate::process::this_thread;
use crate::source::Source;
use crate::trackers::pending::PendingObject;

impl Shim {
    /// Handles a call of `__jit_debug_register_code`, which announces that an object was registered or unregistered.
    /// MCJIT makes the call under LLVM's lock. ORC makes it without that lock, so another thread may be changing the
    /// list meanwhile, and the address of the removed entry may already belong to a new one.
    pub(crate) fn register_code(&self, slot: usize) {
        let mut state = self.lock();
        self.with_running_source(&mut state, slot, |_, _| {});
        self.read_list(&mut state, slot);
        self.process_delayed(&mut state);
    }

    /// Observes the memory of the LLVM instance in `slot`. Only its hooks may call this function, because its library,
    /// and those loaded with it, are then known to be relocated.
    pub(super) fn observe_running_source(&self, state: &mut State, slot: usize) {
        self.with_running_source(state, slot, |_, _| {});
        self.process_delayed(state);
    }

    /// Observes the memory of the LLVM instance in `slot`, and runs `work` with proof that the instance's library is
    /// mapped. `work` cannot keep the proof.
    fn with_running_source(&self, state: &mut State, slot: usize, work: impl for<'l> FnOnce(&mut State, Mapped<'l>)) {
        let Some(source) = state.sources.get(slot).and_then(Option::as_ref) else { return };
        // SAFETY: the hooks of a slot are called only by the code of its library, which cannot be unmapped before the
        // hook returns.
        let mapped = unsafe { Mapped::single(source.identity) };
        self.observe_memory(state, slot, mapped);
        work(state, mapped);
    }

    /// Performs delayed work: hooks libraries that have been relocated meanwhile, and checks overdue objects.
    fn process_delayed(&self, state: &mut State) {
        unless_closing(state, |state, mapped| state.other_libraries.hook_relocated(mapped));
        self.process_overdue(state);
    }

    /// Records an object that a linker of the LLVM instance in `slot` has loaded.
    pub(crate) fn record_linked(&self, slot: usize, object: Vec<u8>) {
        let mut state = self.lock();
        self.observe_running_source(&mut state, slot);
        let size = object.len();
        state.trackers.self_loaded.remove_object(&object);
        if self.objects.check_memory(size).is_err() {
            return;
        }
        let library = state.library_name(slot);
        let Ok(loaded) = self.objects.linked(object, library) else { return };
        state.trackers.linked.add(loaded.id, size);
        self.record_loaded(&mut state, loaded);
    }

    /// Warns that `subject` is ignored. It belongs to the LLVM instance in `slot`.
    pub(crate) fn warn_ignored(&self, slot: usize, subject: &str) {
        let state = self.lock();
        log_line!(Warn, "{}", LogEvent::Ignored { library: &library_path(&state.sources, slot), subject });
    }

    /// Handles an object that could not be interpreted: stops observing the linker of the LLVM instance in `slot`, and
    /// reads the GDB JIT list instead. LLVM adds the object to that list after this call.
    pub(crate) fn fall_back_to_list(&self, slot: usize, reason: &str) {
        self.warn_ignored(slot, &format!("an object: {reason}"));
        let mut state = self.lock();
        self.with_running_source(&mut state, slot, |state, mapped| {
            self.process_delayed(state);
            if let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) {
                source.fall_back_to_list(mapped, self.hooks);
            }
        });
        self.publish(&state);
    }

    /// Publishes the list of the first LLVM instance in our own descriptor, for debuggers that read only one list.
    fn publish_list_head(&self, state: &State, slot: usize, first_entry: Option<u64>) {
        if state.sources.iter().position(Option::is_some) == Some(slot) {
            self.objects.show_to_debuggers(first_entry.unwrap_or_default());
        }
    }

    /// Reads the GDB JIT list of the LLVM instance in `slot`, and handles new and removed entries.
    pub(super) fn read_list(&self, state: &mut State, slot: usize) {
        let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) else { return };
        let changes = source.read_list();
        self.publish_list_head(state, slot, changes.head);
        for id in changes.removed {
            self.record_unregistered(state, id);
        }
        for id in state.trackers.unregistered.take_overwritten() {
            self.objects.freeing(id);
        }
        for listed in changes.added {
            // Check the available memory first, because the copy is the first large allocation.
            let range = listed.debug_object;
            let range = range.filter(|range| self.objects.check_memory(range.size() as usize).is_ok());
            let bytes = range.and_then(|range| checked_read::copy(range).ok());
            let State { trackers, sources, .. } = &mut *state;
            let duplicate = bytes.as_deref().and_then(|bytes| {
                trackers.self_loaded.remove_object(bytes);
                trackers.linked.take_listed(self.objects, bytes, listed.debug_object)
            });
            let bytes = bytes.filter(|_| duplicate.is_none());
            // If LLVM has moved an object, a linker has reported it at its first address.
            let superseded = bytes.as_deref().and_then(|bytes| trackers.linked.take_moved(self.objects, bytes));
            superseded.into_iter().for_each(|id| self.objects.freeing(id));
            let library = sources[slot].as_ref().map(|source| Arc::clone(&source.name));
            let loaded = bytes.and_then(|bytes| self.objects.loaded(bytes, listed.debug_object, library).ok());
            if let Some(list) = sources[slot].as_mut().and_then(|source| source.list.as_mut()) {
                list.remember(listed, duplicate.or(loaded.as_ref().map(|loaded| loaded.id)));
            }
            if let Some(loaded) = loaded {
                self.record_loaded(state, loaded);
            }
        }
        let listed_count = state.sources[slot].as_ref().map_or(0, Source::listed_count);
        facts::set_count(slot, Count::Listed, listed_count as u64);
    }

    /// Records an object that the session has loaded. Queries the kernel if the object's memory may have become
    /// executable unnoticed.
    pub(super) fn record_loaded(&self, state: &mut State, loaded: Loaded) {
        if loaded.has_lines {
            facts::add(Total::WithLines);
        }
        self.record_outcome(state, &loaded.outcome);
        let Some(first) = loaded.pending else { return };
        state.trackers.pending.push(monotonic(), 0, PendingObject { id: loaded.id, thread: this_thread() });
        if state.allocated.containing(first).is_none() {
            self.query_unknown_ranges(state, &[first]);
        }
    }

    /// Records that LLVM has unregistered an object. If its code is final, the object stays live until its memory is
    /// freed; otherwise it is freed now.
    fn record_unregistered(&self, state: &mut State, id: ObjectId) {
        let text = self.objects.ledger(|ledger| ledger.text(id).and_then(|text| text.first().copied()));
        if text.is_some_and(|text| state.trackers.unregistered.add(id, text)) {
            self.objects.unregistered(id);
        } else {
            self.objects.freeing(id);
        }
    }

    /// Returns true if no live object overlaps `range`.
    pub(super) fn is_free(&self, range: AddressRange) -> bool {
        self.objects.ledger(|ledger| ledger.is_free(range))
    }

    pub(super) fn is_writable(&self, range: AddressRange) -> bool {
        self.objects.ledger(|ledger| ledger.is_writable(range))
    }

    /// Text ranges of a pending object; `None` for any other object.
    pub(super) fn pending_text(&self, id: ObjectId) -> Option<Vec<AddressRange>> {
        self.objects.ledger(|ledger| ledger.pending(id).map(<[AddressRange]>::to_vec))
    }

    /// Updates the shim after the session has told the sinks which objects were finalized or freed.
    pub(super) fn record_outcome(&self, state: &mut State, outcome: &Outcome) {
        for &id in &outcome.freed {
            state.trackers.unregistered.forget(id);
            state.trackers.self_loaded.located.forget(id);
        }
        if !outcome.finalized.is_empty() {
            facts::set_totals(&self.objects.statistics());
        }
    }
}

/// Path of the library with the LLVM instance in `slot`, or an empty string.
pub(super) fn library_path(sources: &[Option<Source>], slot: usize) -> String {
    sources.get(slot).and_then(Option::as_ref).map_or_else(String::new, |source| source.path.display().to_string())
}

impl State {
    /// Name of the library with the LLVM instance in `slot`. The session keeps a reference to the name for each object.
    pub(super) fn library_name(&self, slot: usize) -> Option<Arc<str>> {
        self.sources.get(slot)?.as_ref().map(|source| Arc::clone(&source.name))
    }
}
