//! Libraries are opened and closed: the loader's list, and the hooks in each library.

use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::log_line;
use jitlisten::options::LlvmSources;
use jitlisten::plumbing::{Unwinders, notify_libraries_changed};

use super::{Shim, State};
use crate::doctor::discovered::UnheardLlvm;
use crate::frame_pointers::codegen;
use crate::llvm::source::Source;
use crate::modules::{Imports, unwinder_appeared};
use crate::process::detour::{self, Callers};
use crate::process::known::{Appeared, Extent, KnownLibraries, KnownLibrary};
use crate::process::loader::Counts;
use crate::process::lookup;
use crate::process::next;

/// Whether libraries were taken out of the loader's list since it was read.
static LIBRARIES_CLOSE: AtomicBool = AtomicBool::new(false);

/// True while a `dlclose` may be in progress. Call with the shim's lock held: `dlclose` takes it before unmapping.
/// Where `_r_debug.r_brk` is not hooked, nothing announces a `dlclose`, so this is always true.
pub(super) fn may_be_closing() -> bool {
    LIBRARIES_CLOSE.load(Ordering::SeqCst) || lookup::ALWAYS.load(Ordering::Acquire)
}

impl Shim {
    pub(super) fn watch_loader(&self) {
        let Some(r_debug) = self.r_debug.filter(|r_debug| r_debug.function() != 0) else {
            log_line!(Warn, "the loader has no _r_debug: an LLVM that is loaded later will not be discovered");
            lookup::ALWAYS.store(true, Ordering::Release);
            return;
        };
        // SAFETY: the loader's function is mapped code; the hook takes no argument and may be called for ever.
        if let Err(refusal) = unsafe { detour::detour(r_debug.function(), self.hooks.loader_event, Callers::Any) } {
            log_line!(Info, "could not hook _r_debug.r_brk: {refusal}; hooking dlsym instead");
            lookup::ALWAYS.store(true, Ordering::Release);
            self.lock().lookups.activate(self.hooks.before_dlsym);
        }
    }

    /// The loader's list has changed. Under the loader's lock. Returns whether the list could be read.
    pub(super) fn libraries_changed(&self, state: &mut State, extent: Extent, callers: Callers) -> bool {
        let Some(r_debug) = self.r_debug else { return false };
        // SAFETY: called from `_r_debug.r_brk`, or with the libraries held; callers know which libraries were closed.
        let Some(changes) = (unsafe { r_debug.changes(&mut state.libraries, extent) }) else { return false };
        LIBRARIES_CLOSE.store(false, Ordering::SeqCst);
        let mut llvms_changed = false;
        for closed in changes.closed {
            llvms_changed |= self.library_closed(state, closed);
        }
        let unheard_before = state.unheard_llvms.len();
        for slot in 0..state.sources.len() {
            // One that came with this very event is not relocated, where the event is looked at a second time.
            // SAFETY: the library is still listed.
            let relocated = |source: &Source| source.is_listening() || unsafe { source.is_relocated() };
            if state.sources[slot].as_ref().is_some_and(relocated) {
                // SAFETY: as above.
                unsafe { state.hook_memory(slot) };
            }
        }
        Shim::unwinders_appeared(&changes.appeared);
        let mut new_generators = Vec::new();
        for appeared in changes.appeared {
            let source = self.library_appeared(state, &appeared, callers);
            state.libraries.add(&appeared, source);
            llvms_changed |= source.is_some();
            let attached = source.and_then(|slot| state.sources[slot].as_ref());
            if attached.is_some_and(Source::generates_for_us) {
                new_generators.extend(source);
            }
        }
        self.hook_generators(&new_generators);
        if llvms_changed || state.unheard_llvms.len() > unheard_before {
            self.publish(state);
        }
        if (state.sources.iter().any(Option::is_some) || state.unnamed.any()) && state.others.begin() {
            self.listen_everywhere(state);
        }
        // SAFETY: libraries that were closed have been forgotten above.
        unsafe { state.lookups.change_relocated() };
        // SAFETY: as above.
        unsafe { state.imports.change_relocated() };
        // SAFETY: as above.
        unsafe { state.others.change_relocated() };
        true
    }

    /// Before anything is bound to one of them: newer loaders have relocated all of these by now.
    fn unwinders_appeared(appeared: &[Appeared]) {
        if !Imports::are_hooked() {
            return;
        }
        for appeared in appeared.iter().filter(|appeared| appeared.is_of_program()) {
            // SAFETY: the loader's lock has been held since the entry was read.
            if let Some(library) = unsafe { appeared.entry.library() } {
                unwinder_appeared(&library);
            }
        }
    }

    /// The same, where `_r_debug.r_brk` is not hooked. With the libraries held.
    pub(crate) fn libraries_may_have_changed(&self, counts: Counts) {
        let mut state = self.lock();
        let before = state.counts;
        if before == counts && !state.lookups.are_waiting() && !state.others.are_waiting() {
            return;
        }
        let extent = if before.unloads == counts.unloads { Extent::New } else { Extent::Whole };
        if self.libraries_changed(&mut state, extent, Callers::Any) {
            state.counts = counts;
        }
    }

    /// Unwinders may have come with the libraries. Takes the loader's locks, or is under them.
    pub(crate) fn look_for_unwinders(&self) {
        if !lookup::UNWINDERS.swap(false, Ordering::AcqRel) && !lookup::ALWAYS.load(Ordering::Acquire) {
            return;
        }
        let unwinders = self.session.libraries_changed();
        if unwinders != Unwinders::Known {
            lookup::UNWINDERS.store(true, Ordering::Release);
        }
        lookup::WANTED.store(unwinders == Unwinders::Unrelocated, Ordering::Release);
    }

    /// From now on, every `dlsym` looks at new libraries first if there is something to look for.
    fn hook_lookups(&self) {
        let mut state = self.lock();
        if !state.lookups.activate(self.hooks.before_dlsym) {
            return;
        }
        // SAFETY: under the loader's lock, as at `_r_debug.r_brk`.
        let entries = self.r_debug.and_then(|r_debug| unsafe { r_debug.libraries() }).unwrap_or_default();
        for entry in entries {
            // SAFETY: the loader's lock has been held since the entry was read.
            if let Some(library) = unsafe { entry.library() } {
                state.lookups.add(&library);
            }
        }
        // SAFETY: the libraries have just been listed.
        unsafe { state.lookups.change_relocated() };
    }

    /// From now on, libraries see images where they list modules. With the libraries held.
    pub(crate) fn hook_imports(&self) {
        let mut state = self.lock();
        if !Imports::activate() {
            return;
        }
        // SAFETY: the libraries are held.
        let appeared = self.r_debug.and_then(|r_debug| unsafe { r_debug.appeared() }).unwrap_or_default();
        let of_program = appeared.into_iter().filter(Appeared::is_of_program);
        // SAFETY: as above.
        let libraries: Vec<_> = of_program.filter_map(|appeared| unsafe { appeared.entry.library() }).collect();
        // First, so that a library that is bound to one is found.
        libraries.iter().for_each(unwinder_appeared);
        for library in &libraries {
            // SAFETY: as above.
            unsafe { state.imports.add(library) };
        }
    }

    /// Classes of these LLVMs whose vtables are in other libraries. Under the loader's lock.
    fn hook_generators(&self, sources: &[usize]) {
        if sources.is_empty() {
            return;
        }
        // SAFETY: as for `libraries_changed`.
        for entry in self.r_debug.and_then(|r_debug| unsafe { r_debug.libraries() }).unwrap_or_default() {
            // SAFETY: the loader's lock has been held since the entry was read.
            let Some(library) = (unsafe { entry.library() }) else { continue };
            for &slot in sources {
                // SAFETY: as above.
                unsafe { codegen::change_words(&library, slot, self.hooks.generate_code[slot]) };
            }
        }
    }

    /// The first LLVM has come: the other libraries may handle its memory, too. Under the loader's lock.
    fn listen_everywhere(&self, state: &mut State) {
        let mut all = KnownLibraries::default();
        // SAFETY: as for `libraries_changed`.
        let changes = self.r_debug.and_then(|r_debug| unsafe { r_debug.changes(&mut all, Extent::Whole) });
        for appeared in changes.unwrap_or_default().appeared {
            let is_source = state.sources.iter().flatten().any(|source| source.identity == appeared.entry.identity);
            if is_source || !appeared.is_of_program() {
                continue;
            }
            // SAFETY: the loader's lock has been held since the entry was read.
            if let Some(library) = unsafe { appeared.entry.library() } {
                state.others.add(&library, self.hooks);
            }
        }
    }

    /// `_r_debug.r_brk`: under the loader's lock.
    pub(crate) fn loader_event(&self) {
        let closed = LIBRARIES_CLOSE.load(Ordering::SeqCst);
        let extent = if closed { Extent::Whole } else { Extent::New };
        self.libraries_changed(&mut self.lock(), extent, Callers::NoneYet);
        notify_libraries_changed();
        self.look_for_unwinders();
        if lookup::WANTED.load(Ordering::Acquire) {
            self.hook_lookups();
        }
    }

    /// The loader is about to take libraries out of its list, or not. Under its lock, and however deep in hooks of
    /// ours.
    pub(crate) fn note_closing(&self) {
        // SAFETY: called from `_r_debug.r_brk`.
        if self.r_debug.is_some_and(|r_debug| unsafe { r_debug.is_closing() }) {
            LIBRARIES_CLOSE.store(true, Ordering::SeqCst);
        }
    }

    /// Looks at a new library. Returns its slot in `sources` if there is an LLVM in it.
    fn library_appeared(&self, state: &mut State, appeared: &Appeared, callers: Callers) -> Option<usize> {
        let slot = state.sources.iter().position(Option::is_none).unwrap_or(state.sources.len());
        // SAFETY: the loader's lock has been held since the entry was read.
        let library = unsafe { appeared.entry.library() }?;
        let mut symbols = None;
        // SAFETY: the library is in the loader's list, whose lock is held.
        let attached =
            unsafe { Source::attach(&library, &mut symbols, slot, self.hooks, callers, self.session.options().llvm) };
        let source = match attached {
            Ok(source) => Some(source),
            Err(Some(why)) => {
                let llvm = UnheardLlvm { path: library.path.clone(), start: library.range().start, why };
                state.unheard_llvms.push((library.identity, llvm));
                None
            }
            Err(None) => None,
        };
        let is_source = source.is_some();
        // SAFETY: as above.
        let relocated = source.as_ref().is_some_and(|source| unsafe { source.is_relocated() });
        match state.sources.get_mut(slot) {
            Some(free) => *free = source,
            None if is_source => state.sources.push(source),
            None => {}
        }
        if relocated {
            self.catch_up(state, slot);
        }
        state.lookups.add(&library);
        if !is_source && appeared.is_of_program() {
            if self.session.options().llvm != LlvmSources::NONE {
                state.unnamed.add(&library);
            }
            state.others.add(&library, self.hooks);
        }
        if library.may_have_unwinder() {
            lookup::UNWINDERS.store(true, Ordering::Release);
        }
        if appeared.is_of_program() {
            // After those that compare the library with its file: it changes the library's symbols.
            // SAFETY: as above.
            unsafe { state.imports.add(&library) };
        }
        if library.is_llvmlite() && self.session.options().llvm != LlvmSources::NONE {
            // SAFETY: as above.
            unsafe { (self.hooks.attach_llvmlite)(library, symbols) };
            state.has_llvmlite = true;
        }
        is_source.then_some(slot)
    }

    /// Forgets a library that was closed, and what it had compiled. Its memory is not touched. Returns whether it had
    /// an LLVM.
    fn library_closed(&self, state: &mut State, library: KnownLibrary) -> bool {
        let State { sources, unheard_llvms, memory, lookups, others, imports, unnamed, emitted, next_owners, .. } =
            state;
        let unheard = unheard_llvms.len();
        unheard_llvms.retain(|(identity, _)| *identity != library.identity);
        let was_unheard = unheard_llvms.len() < unheard;
        lookups.forget(library.identity.bias);
        others.forget(library.identity.bias);
        unnamed.forget(library.identity);
        imports.forget(library.identity.bias);
        (self.hooks.llvmlite_closed)(library.identity);
        for (function, owner) in next::ALL.into_iter().zip(next_owners) {
            if *owner == Some(library.identity) {
                *owner = None;
                next::set(function, 0);
            }
        }
        if let Some(slot) = library.source {
            emitted.forget(slot);
        }
        if let Some(source) = library.source.and_then(|slot| sources[slot].take()) {
            log_line!(Info, "an LLVM was closed: {:x}", source.identity.bias);
            // Until another one is read.
            self.session.show_to_debuggers(0);
            for id in source.objects() {
                memory.freed(id);
                self.session.freeing(id);
            }
        }
        was_unheard || library.source.is_some()
    }
}
