//! Objects are loaded and freed: reports of linkers, and the GDB JIT list.

use jitlisten::plumbing::{Loaded, checked_read, mappings_of};
use jitlisten::{AddressRange, ObjectId, log_line};

use super::libraries::may_be_closing;
use super::{Shim, State};
use crate::channels::runtime_dyld::elf_copy;
use crate::doctor::facts::{self, Count};
use crate::llvm::source::Source;
use crate::memory::bookkeeping::Outcome;
use crate::memory::overdue;

/// How many objects of linkers are compared with what appears in a list. ORC lists an object once it is final.
const LINKED: usize = 256;

impl Shim {
    /// `__jit_debug_register_code`: an object was registered or unregistered. Under LLVM's lock: otherwise another
    /// thread may be changing the list, and the removed entry may be an earlier one at the same address.
    pub(crate) fn register_code(&self, slot: usize) {
        let mut state = self.lock();
        self.catch_up(&mut state, slot);
        self.read_list(&mut state, slot);
        self.after(&mut state);
    }

    /// The LLVM in `slot` runs: its library is relocated, and those that came with it.
    pub(crate) fn prepare(&self, state: &mut State, slot: usize) {
        self.catch_up(state, slot);
        self.after(state);
    }

    fn after(&self, state: &mut State) {
        if !may_be_closing() {
            // SAFETY: libraries that are closed are forgotten.
            unsafe { state.others.change_relocated() };
        }
        self.look_at_overdue(state);
    }

    /// The linker of the LLVM in `slot` has loaded an object.
    pub(crate) fn linked(&self, slot: usize, object: Vec<u8>) {
        let mut state = self.lock();
        self.prepare(&mut state, slot);
        let size = object.len();
        state.self_loaded.linked(&object);
        if self.session.check_memory(size).is_err() {
            return;
        }
        let Ok(loaded) = self.session.linked(object) else { return };
        state.linked.push_front((loaded.id, size));
        state.linked.truncate(LINKED);
        self.loaded(&mut state, loaded);
    }

    /// The linker of the LLVM in `slot` is not understood: its list is read instead. LLVM puts the object there behind
    /// this call.
    pub(crate) fn refused(&self, slot: usize) {
        let mut state = self.lock();
        self.prepare(&mut state, slot);
        if let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) {
            // SAFETY: the library runs.
            unsafe { source.fall_back_to_list(self.hooks) };
        }
        self.publish(&state);
    }

    /// The object that a linker has reported and that is `bytes`, which LLVM has in its list at `kept_at`.
    fn same_as_linked(&self, state: &mut State, bytes: &[u8], kept_at: Option<AddressRange>) -> Option<ObjectId> {
        let is_it = |&(id, size): &(ObjectId, usize)| size == bytes.len() && self.session.listed(id, bytes, kept_at);
        let index = state.linked.iter().position(is_it)?;
        state.linked.remove(index).map(|(id, _)| id)
    }

    /// LLVM lists an object where it has moved it to, after its linker has reported it where it was written: that was
    /// the same one.
    fn forget_first_place(&self, state: &mut State, bytes: &[u8]) {
        let is_it = |&(id, size): &(ObjectId, usize)| {
            let differ = |first: Vec<u8>| elf_copy::differ_in_place(&first, bytes);
            size == bytes.len()
                && state.memory.pending(id).is_some()
                && self.session.debug_object(id).is_some_and(differ)
        };
        let Some(index) = state.linked.iter().position(is_it) else { return };
        if let Some((id, _)) = state.linked.remove(index) {
            state.memory.freed(id);
            self.session.freeing(id);
        }
    }

    /// A debugger that reads one list only may read ours: it leads to that of the first LLVM.
    fn show_to_debuggers(&self, state: &State, slot: usize, first_entry: Option<u64>) {
        if state.sources.iter().position(Option::is_some) == Some(slot) {
            self.session.show_to_debuggers(first_entry.unwrap_or_default());
        }
    }

    pub(super) fn read_list(&self, state: &mut State, slot: usize) {
        let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) else { return };
        let news = source.read();
        self.show_to_debuggers(state, slot, news.first);
        for id in news.left {
            self.unregistered(state, id);
        }
        for id in state.unregistered.gone() {
            state.memory.freed(id);
            self.session.freeing(id);
        }
        for listed in news.appeared {
            // The copy is the first large piece of memory.
            let range = listed.debug_object;
            let range = range.filter(|range| self.session.check_memory(range.size() as usize).is_ok());
            let bytes = range.and_then(|range| checked_read::copy(range).ok());
            bytes.iter().for_each(|bytes| {
                state.self_loaded.linked(bytes);
            });
            let same = bytes.as_deref().and_then(|bytes| self.same_as_linked(state, bytes, listed.debug_object));
            if same.is_some() {
                if let Some(source) = state.sources[slot].as_mut() {
                    source.remember(listed, same);
                }
                continue;
            }
            if let Some(bytes) = &bytes {
                self.forget_first_place(state, bytes);
            }
            let loaded = bytes.and_then(|bytes| self.session.loaded(bytes, listed.debug_object).ok());
            if let Some(source) = state.sources[slot].as_mut() {
                source.remember(listed, loaded.as_ref().map(|loaded| loaded.id));
            }
            if let Some(loaded) = loaded {
                self.loaded(state, loaded);
            }
        }
        let listed = state.sources[slot].as_ref().map_or(0, Source::listed);
        facts::set_count(slot, Count::Listed, listed as u64);
    }

    /// An object was loaded. Where it may run already, and that was not heard, the kernel knows.
    pub(crate) fn loaded(&self, state: &mut State, loaded: Loaded) {
        let id = loaded.id;
        if self.session.has_lines(id) {
            facts::add_object_with_lines();
        }
        let outcome = state.memory.loaded(loaded);
        self.notify(state, outcome);
        let Some(first) = state.memory.pending(id).and_then(|text| text.first().copied()) else { return };
        state.overdue.add(jitlisten::plumbing::monotonic(), id);
        if state.allocated.around(first).is_none() {
            self.look_unless_known(state, &[first]);
        }
    }

    /// Objects that are loaded for a second and not final.
    pub(super) fn look_at_overdue(&self, state: &mut State) {
        self.look_for_overdue_emitted(state);
        state.emitted.warn();
        self.look_at_unheard(state);
        self.free_unmapped(state);
        if state.overdue.is_empty() {
            return;
        }
        for id in state.overdue.take(jitlisten::plumbing::monotonic()) {
            let Some(text) = state.memory.pending(id).map(<[AddressRange]>::to_vec) else { continue };
            let mut outcomes: Vec<Outcome> = text.iter().map(|&text| state.look_at(text)).collect();
            outcomes.push(state.memory.overdue(id));
            let is_displaced = outcomes.iter().any(|outcome| outcome.freed.contains(&id));
            for outcome in outcomes {
                self.notify(state, outcome);
            }
            if (is_displaced || state.memory.pending(id).is_some()) && state.overdue.warns() {
                let mappings = text.first().and_then(|&text| mappings_of(text).ok().flatten());
                let reason = overdue::reason(mappings.as_deref().filter(|_| !is_displaced));
                let at = text.first().map(|text| text.start());
                log_line!(
                    Warn,
                    "an object at {at:x?} is not final after a second: {reason}; it stays unnamed (reported once)"
                );
            }
        }
    }

    /// LLVM has deregistered an object with debuggers. Where its code is final, it lives until its memory goes.
    fn unregistered(&self, state: &mut State, id: ObjectId) {
        let text = state.memory.text(id).and_then(|text| text.first().copied());
        if text.is_some_and(|text| state.unregistered.add(id, text)) {
            self.session.unregistered(id);
        } else {
            state.memory.freed(id);
            self.session.freeing(id);
        }
    }

    pub(crate) fn notify(&self, state: &mut State, outcome: Outcome) {
        for id in outcome.freed {
            state.unregistered.forget(id);
            state.self_loaded.placed.forget(id);
            self.session.freeing(id);
        }
        let is_counted = !outcome.finalized.is_empty();
        for id in outcome.finalized {
            self.session.finalized(id);
        }
        if is_counted {
            facts::set_totals(&self.session.statistics());
        }
    }
}
