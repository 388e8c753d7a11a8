//! Objects are loaded and freed: reports of linkers, and the GDB JIT list.

use std::sync::Arc;

use jitlisten::plumbing::{Loaded, Outcome, checked_read, mappings_of};
use jitlisten::{AddressRange, ObjectId, log_line};

use super::libraries::unless_closing;
use super::{Shim, State};
use crate::channels::runtime_dyld::elf_copy;
use crate::doctor::facts::{self, Count};
use crate::llvm::source::Source;
use crate::memory::overdue;
use crate::process::held::Mapped;

/// How many objects of linkers are compared with what appears in a list. ORC lists an object once it is final.
const LINKED: usize = 256;

impl Shim {
    /// `__jit_debug_register_code`: an object was registered or unregistered. Under LLVM's lock: otherwise another
    /// thread may be changing the list, and the removed entry may be an earlier one at the same address.
    pub(crate) fn register_code(&self, slot: usize) {
        let mut state = self.lock();
        self.runs(&mut state, slot, |_, _| {});
        self.read_list(&mut state, slot);
        self.after(&mut state);
    }

    /// The LLVM in `slot` has called a hook of ours: its library is relocated, and those that came with it.
    pub(crate) fn prepare(&self, state: &mut State, slot: usize) {
        self.runs(state, slot, |_, _| {});
        self.after(state);
    }

    /// The same, and `work` with the evidence that the library is mapped, which it cannot keep.
    fn runs(&self, state: &mut State, slot: usize, work: impl for<'l> FnOnce(&mut State, Mapped<'l>)) {
        let Some(source) = state.sources.get(slot).and_then(Option::as_ref) else { return };
        // SAFETY: a slot's hooks are called by the code of its library only, which cannot be unmapped before the hook
        // returns.
        let mapped = unsafe { Mapped::one(source.identity) };
        self.catch_up(state, slot, mapped);
        work(state, mapped);
    }

    fn after(&self, state: &mut State) {
        unless_closing(state, |state, mapped| state.others.change_relocated(mapped));
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
        let library = state.library_of(slot);
        let Ok(loaded) = self.session.linked(object, library) else { return };
        state.linked.push_front((loaded.id, size));
        state.linked.truncate(LINKED);
        self.loaded(&mut state, loaded);
    }

    /// Warns that `what`, of the LLVM in `slot`, is not taken.
    pub(crate) fn ignoring(&self, slot: usize, what: &str) {
        let state = self.lock();
        log_line!(Warn, "{}: ignoring {what}", path(&state.sources, slot));
    }

    /// The linker of the LLVM in `slot` is not understood: its list is read instead. LLVM puts the object there behind
    /// this call.
    pub(crate) fn refused(&self, slot: usize, what: &str) {
        self.ignoring(slot, &format!("an object: {what}"));
        let mut state = self.lock();
        self.runs(&mut state, slot, |state, mapped| {
            self.after(state);
            if let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) {
                source.fall_back_to_list(mapped, self.hooks);
            }
        });
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
                && self.session.ledger(|ledger| ledger.pending(id).is_some())
                && self.session.debug_object(id).is_some_and(differ)
        };
        let Some(index) = state.linked.iter().position(is_it) else { return };
        if let Some((id, _)) = state.linked.remove(index) {
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
            let loaded =
                bytes.and_then(|bytes| self.session.loaded(bytes, listed.debug_object, state.library_of(slot)).ok());
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

    /// An object was loaded, as the session knows. If it may run already, unobserved, the kernel knows.
    pub(crate) fn loaded(&self, state: &mut State, loaded: Loaded) {
        if loaded.has_lines {
            facts::add_object_with_lines();
        }
        self.note(state, &loaded.outcome);
        let Some(first) = loaded.pending else { return };
        state.overdue.add(jitlisten::plumbing::monotonic(), loaded.id);
        if state.allocated.around(first).is_none() {
            self.look_unless_known(state, &[first]);
        }
    }

    /// Objects that are loaded for a second and not final.
    pub(super) fn look_at_overdue(&self, state: &mut State) {
        self.look_for_overdue_emitted(state);
        let State { emitted, sources, .. } = &mut *state;
        emitted.warn(|slot| path(sources, slot));
        self.look_at_unheard(state);
        self.free_unmapped(state);
        if state.overdue.is_empty() {
            return;
        }
        for id in state.overdue.take(jitlisten::plumbing::monotonic()) {
            let Some(text) = self.pending(id) else { continue };
            text.iter().for_each(|&text| self.ask_kernel(state, text));
            let library = self.session.library(id);
            let outcome = self.session.overdue(id);
            self.note(state, &outcome);
            let is_displaced = outcome.freed.contains(&id);
            if (is_displaced || self.pending(id).is_some()) && state.overdue.warns() {
                let mappings = text.first().and_then(|&text| mappings_of(text).ok().flatten());
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

    /// LLVM has deregistered an object with debuggers. Where its code is final, it lives until its memory goes.
    fn unregistered(&self, state: &mut State, id: ObjectId) {
        let text = self.session.ledger(|ledger| ledger.text(id).and_then(|text| text.first().copied()));
        if text.is_some_and(|text| state.unregistered.add(id, text)) {
            self.session.unregistered(id);
        } else {
            self.session.freeing(id);
        }
    }

    /// Whether no object was discovered in `range`.
    pub(crate) fn is_free(&self, range: AddressRange) -> bool {
        self.session.ledger(|ledger| ledger.is_free(range))
    }

    /// Whether `range` may be executed and written.
    pub(crate) fn is_writable(&self, range: AddressRange) -> bool {
        self.session.ledger(|ledger| ledger.is_writable(range))
    }

    /// Where an object waits for the right to run.
    pub(crate) fn pending(&self, id: ObjectId) -> Option<Vec<AddressRange>> {
        self.session.ledger(|ledger| ledger.pending(id).map(<[AddressRange]>::to_vec))
    }

    /// The session has told the sinks what became of objects.
    pub(crate) fn note(&self, state: &mut State, outcome: &Outcome) {
        for &id in &outcome.freed {
            state.unregistered.forget(id);
            state.self_loaded.placed.forget(id);
        }
        if !outcome.finalized.is_empty() {
            facts::set_totals(&self.session.statistics());
        }
    }
}

/// The file of the LLVM in `slot`.
fn path(sources: &[Option<Source>], slot: usize) -> String {
    sources.get(slot).and_then(Option::as_ref).map_or_else(String::new, |source| source.path.display().to_string())
}

impl State {
    /// The same, for the session, which keeps it for each object.
    pub(crate) fn library_of(&self, slot: usize) -> Option<Arc<str>> {
        self.sources.get(slot)?.as_ref().map(|source| Arc::clone(&source.name))
    }
}
