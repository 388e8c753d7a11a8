//! Handles objects that are handed to JITLink or compiled to memory, and code that is located later. The trackers
//! search for code, and this module reports the results to the session.

#![forbid(unsafe_code)]

use jitlisten::options::LlvmSource;
use jitlisten::{AddressRange, ObjectId, log_line};
use wire::facts::Count;

use super::{Shim, State};
use crate::doctor::facts;
use crate::llvm::unreported_libraries::file_name;
use crate::placement::Pattern;
use crate::process::this_thread;
use crate::trackers::Trackers;
use crate::trackers::copies::{Matches, MovedObject};
use crate::trackers::emitted::{EmittedObjects, executable_memory};
use crate::trackers::memory::{LocatedObject, MAX_SEARCHED_BYTES, Memory};
use crate::trackers::pending::PendingObjects;
use crate::trackers::self_loaded::MAX_WRITABLE_BYTES;
use crate::trackers::unwind_tables;

/// Library name for code that several libraries may have compiled.
const ANY_LIBRARY: &str = "jit";

impl Shim {
    /// Records that the LLVM instance in `slot` is about to link an object. Returns the number of this `emit` call.
    /// `pattern` is `None` if the object could not be interpreted, and `Some(None)` if it cannot be located.
    pub(crate) fn begin_emit(&self, slot: usize, pattern: Option<Option<Pattern>>) -> u64 {
        let mut state = self.lock();
        if pattern.is_some() {
            // The library's code is running, so it is relocated.
            self.observe_running_source(&mut state, slot);
        }
        let number = state.trackers.emitted.begin_call();
        let Some(pattern) = pattern else { return number };
        if pattern.as_ref().is_none_or(|pattern| pattern.text_count() > 0) {
            facts::count(slot, Count::ForJitLink);
        }
        if let Some(pattern) = pattern.filter(|pattern| pattern.text_count() > 0) {
            state.trackers.self_loaded.remove_object(pattern.object());
            state.trackers.emitted.push(number, slot, pattern);
        }
        number
    }

    /// Records that `emit` has returned, and searches for its object. The object may be linked by now, or may be linked
    /// later together with others.
    pub(crate) fn end_emit(&self, number: u64) {
        let mut state = self.lock();
        state.trackers.emitted.end_call(number);
        if !state.trackers.emitted.is_unlocated(number) {
            return;
        }
        let writable = self.objects.ledger(|ledger| ledger.writable().collect());
        self.locate_late(&mut state, |emitted, memory| emitted.search_after_emit(memory, number, writable));
        let emitted = &state.trackers.emitted;
        if emitted.is_unlocated(number) && emitted.may_query_kernel() {
            let search = |emitted: &mut EmittedObjects, memory: Memory<'_>| {
                emitted.search_after_emit(memory, number, executable_memory())
            };
            self.locate_late(&mut state, search);
            state.trackers.emitted.record_query(number);
        }
    }

    /// Registers the objects that `search` locates.
    pub(super) fn locate(
        &self,
        state: &mut State,
        search: impl FnOnce(&mut Trackers, Memory<'_>) -> Vec<LocatedObject>,
    ) -> Vec<ObjectId> {
        let memory = Memory { objects: self.objects, allocated: &state.allocated };
        let mut ids = Vec::new();
        for LocatedObject { object, slot, first_text } in search(&mut state.trackers, memory) {
            let library = slot.and_then(|slot| state.library_name(slot));
            let Ok(loaded) = self.objects.linked(object, library) else { continue };
            let id = loaded.id;
            self.record_loaded(state, loaded);
            if slot.is_none() && self.is_writable(first_text) {
                state.trackers.self_loaded.located.add(id, first_text);
            }
            ids.push(id);
        }
        ids
    }

    /// Registers the JITLink objects that `search` locates and that were linked some time ago.
    pub(super) fn locate_late(
        &self,
        state: &mut State,
        search: impl FnOnce(&mut EmittedObjects, Memory<'_>) -> Vec<LocatedObject>,
    ) {
        for id in self.locate(state, |trackers, memory| search(&mut trackers.emitted, memory)) {
            // Query the kernel, because the code may already be executable, whatever protection LLVM has requested.
            let texts = self.pending_text(id).unwrap_or_default();
            self.query_unknown_ranges(state, &texts);
            let outcome = self.objects.overdue(id);
            self.record_outcome(state, &outcome);
        }
    }

    /// Moves pending objects to the addresses at which `search` finds them. `before_it_ran` has the same meaning as in
    /// [`Session::moved`](jitlisten::Session::moved).
    pub(super) fn move_copied(
        &self,
        state: &mut State,
        before_it_ran: bool,
        search: impl FnOnce(&mut PendingObjects, Memory<'_>) -> Matches,
    ) {
        let memory = Memory { objects: self.objects, allocated: &state.allocated };
        let mut matches = search(&mut state.trackers.pending, memory);
        while let Some(MovedObject { id, object, text }) = matches.next_moved(self.objects) {
            self.query_unknown_ranges(state, &text);
            let Ok(outcome) = self.objects.object_moved(id, object, before_it_ran) else { continue };
            self.record_outcome(state, &outcome);
        }
    }

    /// Returns true if the shim searches for self-loaded objects. Both linkers must be observed, because an object
    /// meant for an unobserved linker would otherwise be mistaken for a self-loaded one.
    pub(crate) fn wants_self_loaded(&self) -> bool {
        let enabled_sources = self.objects.options().llvm;
        enabled_sources.contains(LlvmSource::RuntimeDyld) && enabled_sources.contains(LlvmSource::JitLink)
    }

    /// Starts to search for an object that was compiled to memory.
    pub(crate) fn add_self_loaded(&self, object: Vec<u8>) {
        if let Some(pattern) = Pattern::parse(object).filter(|pattern| pattern.text_count() > 0) {
            self.lock().trackers.self_loaded.push(pattern);
        }
    }

    /// Searches for the objects compiled so far before another module is compiled to memory, because no event may have
    /// announced their code.
    pub(crate) fn search_before_compiling(&self) {
        let state = &mut *self.lock();
        if state.trackers.self_loaded.is_idle() {
            return;
        }
        self.free_overwritten(state);
        let ranges = self.objects.ledger(|ledger| state.trackers.self_loaded.next_writable(ledger));
        self.search_self_loaded(state, &ranges, MAX_WRITABLE_BYTES);
    }

    /// Searches writable code a last time when the process exits. Does not wait for a thread that is inside a hook.
    /// After a fork without handlers, such a thread may exist only in the parent process.
    pub(crate) fn search_self_loaded_at_exit(&self) {
        if self.objects.is_unlocked_in_this_process()
            && let Some(mut state) = self.try_lock()
        {
            self.free_overwritten(&mut state);
            let ranges: Vec<AddressRange> = self.objects.ledger(|ledger| ledger.writable().collect());
            self.search_self_loaded(&mut state, &ranges, MAX_WRITABLE_BYTES);
        }
    }

    /// Searches `range`, which may be about to lose execute permission. Code that was written there since the range
    /// became executable thus gets its name before it is freed.
    pub(super) fn search_before_removal(&self, state: &mut State, range: AddressRange) {
        if self.is_writable(range) {
            self.search_self_loaded(state, &[range], MAX_SEARCHED_BYTES);
        }
        state.trackers.self_loaded.forget_doubtful(range);
    }

    pub(super) fn search_self_loaded(&self, state: &mut State, ranges: &[AddressRange], max_bytes: u64) {
        let search = |trackers: &mut Trackers, memory: Memory<'_>| {
            trackers.self_loaded.search(memory, &trackers.emitted, ranges, max_bytes)
        };
        self.locate(state, search);
    }

    /// Frees objects whose code was overwritten, because writable memory can be reused without a system call.
    fn free_overwritten(&self, state: &mut State) {
        for id in state.trackers.self_loaded.located.take_overwritten() {
            self.objects.freeing(id);
        }
    }

    /// Registers code that no channel reports and that a library has just made executable. `is_source` is true if the
    /// library has a GDB JIT list.
    pub(crate) fn register_unnamed_code(&self, state: &mut State, range: AddressRange, is_source: bool) {
        // Memory that a thread makes executable inside `emit` belongs to JITLink.
        if !self.is_free(range) || state.trackers.emitted.is_in_emit(this_thread()) {
            return;
        }
        let Some(library) = state.compiling_library(is_source) else { return };
        let memory = Memory { objects: self.objects, allocated: &state.allocated };
        for table in unwind_tables::search(memory, range) {
            if table.functions.iter().any(|&function| !self.is_free(function)) {
                continue;
            }
            let object = table.encode(&library);
            let loaded =
                object.and_then(|object| self.objects.loaded(object, None, Some(library.as_str().into())).ok());
            let Some(loaded) = loaded else { continue };
            if !std::mem::replace(&mut state.unreported_libraries.was_logged, true) {
                log_line!(Info, "{library}: its functions have no names and are called {library}+jit@ADDRESS");
            }
            self.record_loaded(state, loaded);
        }
    }
}

impl State {
    /// Name of the library that compiled some code, or [`ANY_LIBRARY`] if several libraries are possible. `is_source`
    /// is true if the library has a GDB JIT list.
    fn compiling_library(&self, is_source: bool) -> Option<String> {
        let with_unused_list = self.sources().filter(|source| is_source && source.may_compile_unnamed_code());
        let with_unused_list = with_unused_list.map(|source| file_name(&source.path));
        let without_list = self.unreported_libraries.libraries.iter().filter(|_| !is_source);
        let mut names = with_unused_list.chain(without_list.map(|(_, name)| name.clone()));
        let first = names.next()?;
        Some(if names.next().is_none() { first } else { ANY_LIBRARY.to_owned() })
    }
}
