//! Events: objects are loaded and freed, as reported by linkers and by the GDB JIT lists.

use std::sync::Arc;

use jitlisten::plumbing::{Loaded, Outcome, checked_read, mappings_in};
use jitlisten::{AddressRange, ObjectId, log_line};

use super::libraries::unless_closing;
use super::{Shim, State};
use crate::channels::runtime_dyld::elf_copy;
use crate::doctor::facts::{self, Count};
use crate::llvm::source::Source;
use crate::memory::overdue;
use crate::process::held::Mapped;

/// Maximum number of linked objects that are compared with new list entries. ORC lists an object once it is final.
const MAX_RECENTLY_LINKED: usize = 256;

impl Shim {
    /// Handles a call of `__jit_debug_register_code`: an object was registered or unregistered. MCJIT calls it under
    /// LLVM's lock. Without that lock, another thread may be changing the list, and the removed entry may be an earlier
    /// one at the same address.
    pub(crate) fn register_code(&self, slot: usize) {
        let mut state = self.lock();
        self.with_running_source(&mut state, slot, |_, _| {});
        self.read_list(&mut state, slot);
        self.process_delayed(&mut state);
    }

    /// Observes the memory of the LLVM in `slot`. Only its hooks may call this: its library, and those loaded with it,
    /// are relocated then.
    pub(crate) fn observe_running_source(&self, state: &mut State, slot: usize) {
        self.with_running_source(state, slot, |_, _| {});
        self.process_delayed(state);
    }

    /// Observes the memory of the LLVM in `slot`, and runs `work` with proof that its library is mapped. `work` cannot
    /// keep the proof.
    fn with_running_source(&self, state: &mut State, slot: usize, work: impl for<'l> FnOnce(&mut State, Mapped<'l>)) {
        let Some(source) = state.sources.get(slot).and_then(Option::as_ref) else { return };
        // SAFETY: the hooks of a slot are called only by the code of its library, which cannot be unmapped before the
        // hook returns.
        let mapped = unsafe { Mapped::single(source.identity) };
        self.observe_memory(state, slot, mapped);
        work(state, mapped);
    }

    /// Performs delayed work: hooks libraries that were relocated since, and checks overdue objects.
    fn process_delayed(&self, state: &mut State) {
        unless_closing(state, |state, mapped| state.other_libraries.hook_relocated(mapped));
        self.process_overdue(state);
    }

    /// Records an object that the linker of the LLVM in `slot` has loaded.
    pub(crate) fn record_linked(&self, slot: usize, object: Vec<u8>) {
        let mut state = self.lock();
        self.observe_running_source(&mut state, slot);
        let size = object.len();
        state.self_loaded.remove_object(&object);
        if self.session.check_memory(size).is_err() {
            return;
        }
        let library = state.library_name(slot);
        let Ok(loaded) = self.session.linked(object, library) else { return };
        state.recently_linked.push_front((loaded.id, size));
        state.recently_linked.truncate(MAX_RECENTLY_LINKED);
        self.record_loaded(&mut state, loaded);
    }

    /// Warns that `subject`, of the LLVM in `slot`, is ignored.
    pub(crate) fn warn_ignored(&self, slot: usize, subject: &str) {
        let state = self.lock();
        log_line!(Warn, "{}: ignoring {subject}", library_path(&state.sources, slot));
    }

    /// Stops observing the linker of the LLVM in `slot`, which is not understood, and reads the GDB JIT list instead.
    /// LLVM adds the object to that list after this call.
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

    /// Removes and returns the recently linked object that equals `bytes`, which LLVM has listed at `listed_at`.
    fn take_linked(&self, state: &mut State, bytes: &[u8], listed_at: Option<AddressRange>) -> Option<ObjectId> {
        let is_same = |&(id, size): &(ObjectId, usize)| {
            size == bytes.len() && self.session.adopt_list_entry(id, bytes, listed_at)
        };
        let index = state.recently_linked.iter().position(is_same)?;
        state.recently_linked.remove(index).map(|(id, _)| id)
    }

    /// Frees an object that its linker reported at its first address, when LLVM lists the same object at the address
    /// that it was moved to.
    fn free_superseded(&self, state: &mut State, bytes: &[u8]) {
        let is_moved = |&(id, size): &(ObjectId, usize)| {
            let is_same_object = |original: Vec<u8>| elf_copy::differ_only_in_addresses(&original, bytes);
            size == bytes.len()
                && self.session.ledger(|ledger| ledger.pending(id).is_some())
                && self.session.debug_object(id).is_some_and(is_same_object)
        };
        let Some(index) = state.recently_linked.iter().position(is_moved) else { return };
        if let Some((id, _)) = state.recently_linked.remove(index) {
            self.session.freeing(id);
        }
    }

    /// Publishes the list of the first LLVM in our own descriptor, for debuggers that read only one list.
    fn publish_list_head(&self, state: &State, slot: usize, first_entry: Option<u64>) {
        if state.sources.iter().position(Option::is_some) == Some(slot) {
            self.session.show_to_debuggers(first_entry.unwrap_or_default());
        }
    }

    /// Reads the GDB JIT list of the LLVM in `slot`, and handles new and removed entries.
    pub(super) fn read_list(&self, state: &mut State, slot: usize) {
        let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) else { return };
        let news = source.read();
        self.publish_list_head(state, slot, news.first);
        for id in news.left {
            self.record_unregistered(state, id);
        }
        for id in state.unregistered.take_overwritten() {
            self.session.freeing(id);
        }
        for listed in news.appeared {
            // Check the available memory first: the copy is the first large allocation.
            let range = listed.debug_object;
            let range = range.filter(|range| self.session.check_memory(range.size() as usize).is_ok());
            let bytes = range.and_then(|range| checked_read::copy(range).ok());
            bytes.iter().for_each(|bytes| {
                state.self_loaded.remove_object(bytes);
            });
            let duplicate = bytes.as_deref().and_then(|bytes| self.take_linked(state, bytes, listed.debug_object));
            if duplicate.is_some() {
                if let Some(source) = state.sources[slot].as_mut() {
                    source.remember(listed, duplicate);
                }
                continue;
            }
            if let Some(bytes) = &bytes {
                self.free_superseded(state, bytes);
            }
            let loaded =
                bytes.and_then(|bytes| self.session.loaded(bytes, listed.debug_object, state.library_name(slot)).ok());
            if let Some(source) = state.sources[slot].as_mut() {
                source.remember(listed, loaded.as_ref().map(|loaded| loaded.id));
            }
            if let Some(loaded) = loaded {
                self.record_loaded(state, loaded);
            }
        }
        let listed = state.sources[slot].as_ref().map_or(0, Source::listed);
        facts::set_count(slot, Count::Listed, listed as u64);
    }

    /// Records an object that the session has loaded. Queries the kernel if its memory may be executable without our
    /// knowledge.
    pub(crate) fn record_loaded(&self, state: &mut State, loaded: Loaded) {
        if loaded.has_lines {
            facts::add_object_with_lines();
        }
        self.note(state, &loaded.outcome);
        let Some(first) = loaded.pending else { return };
        state.overdue.add(jitlisten::plumbing::monotonic(), loaded.id);
        if state.allocated.containing(first).is_none() {
            self.query_unknown(state, &[first]);
        }
    }

    /// Checks objects that have been pending for a second, logs the first one, and performs other delayed checks.
    pub(super) fn process_overdue(&self, state: &mut State) {
        self.search_for_overdue_emitted(state);
        let State { emitted, sources, .. } = &mut *state;
        emitted.log_missed(|slot| library_path(sources, slot));
        self.look_at_unheard(state);
        self.free_unmapped(state);
        if state.overdue.is_empty() {
            return;
        }
        for id in state.overdue.take(jitlisten::plumbing::monotonic()) {
            let Some(text) = self.pending_text(id) else { continue };
            text.iter().for_each(|&text| self.query_executable(state, text));
            let library = self.session.library(id);
            let outcome = self.session.overdue(id);
            self.note(state, &outcome);
            let is_displaced = outcome.freed.contains(&id);
            if (is_displaced || self.pending_text(id).is_some()) && state.overdue.should_warn() {
                let mappings = text.first().and_then(|&text| mappings_in(text).ok().flatten());
                let reason = overdue::reason(mappings.as_deref().filter(|_| !is_displaced));
                let at = text.first().map(|text| text.start());
                let library = library.map_or_else(String::new, |library| format!("{library}: "));
                log_line!(
                    Warn,
                    "{library}an object at {at:x?} is not final after a second: {reason}; it stays unnamed (reported \
                     once)"
                );
            }
        }
    }

    /// Records that LLVM has deregistered an object with debuggers. If its code is final, the object stays live until
    /// its memory is freed; otherwise it is freed now.
    fn record_unregistered(&self, state: &mut State, id: ObjectId) {
        let text = self.session.ledger(|ledger| ledger.text(id).and_then(|text| text.first().copied()));
        if text.is_some_and(|text| state.unregistered.add(id, text)) {
            self.session.unregistered(id);
        } else {
            self.session.freeing(id);
        }
    }

    /// Returns true if no live object overlaps `range`.
    pub(crate) fn is_free(&self, range: AddressRange) -> bool {
        self.session.ledger(|ledger| ledger.is_free(range))
    }

    /// Returns true if `range` is executable and writable.
    pub(crate) fn is_writable(&self, range: AddressRange) -> bool {
        self.session.ledger(|ledger| ledger.is_writable(range))
    }

    /// Text ranges of a pending object; `None` for any other object.
    pub(crate) fn pending_text(&self, id: ObjectId) -> Option<Vec<AddressRange>> {
        self.session.ledger(|ledger| ledger.pending(id).map(<[AddressRange]>::to_vec))
    }

    /// Updates the shim after the session has told the sinks which objects are finalized or freed.
    pub(crate) fn note(&self, state: &mut State, outcome: &Outcome) {
        for &id in &outcome.freed {
            state.unregistered.forget(id);
            state.self_loaded.located.forget(id);
        }
        if !outcome.finalized.is_empty() {
            facts::set_totals(&self.session.statistics());
        }
    }
}

/// Path of the library that contains the LLVM in `slot`, or an empty string.
fn library_path(sources: &[Option<Source>], slot: usize) -> String {
    sources.get(slot).and_then(Option::as_ref).map_or_else(String::new, |source| source.path.display().to_string())
}

impl State {
    /// Name of the library that contains the LLVM in `slot`. The session keeps a reference for each object.
    pub(crate) fn library_name(&self, slot: usize) -> Option<Arc<str>> {
        self.sources.get(slot)?.as_ref().map(|source| Arc::clone(&source.name))
    }
}
