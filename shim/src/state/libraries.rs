//! Libraries are opened and closed: the loader's list, and the hooks in each library.

use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::log_line;
use jitlisten::options::LlvmSources;
use jitlisten::plumbing::{Unwinders, notify_libraries_changed};

use super::{Shim, State};
use crate::doctor::discovered::UnheardLlvm;
use crate::frame_pointers::codegen;
use crate::llvm::source::Source;
use crate::llvm::vtable::mapped;
use crate::modules::{Imports, unwinder_appeared};
use crate::process::detour::{self, Callers};
use crate::process::held::{Counts, Held, Mapped};
use crate::process::known::{Appeared, Extent, KnownLibrary};
use crate::process::library::Library;
use crate::process::lookup;
use crate::process::next;

/// Whether libraries were taken out of the loader's list since it was read.
static LIBRARIES_CLOSE: AtomicBool = AtomicBool::new(false);

/// Runs `work` with evidence that what is remembered is mapped, unless a `dlclose` may be in progress. Where
/// `_r_debug.r_brk` is not hooked, nothing announces a `dlclose`, so it does not run.
///
/// The evidence holds as long as `state` is locked. `work` must take it for every `'l`, so that it cannot keep it.
pub(super) fn unless_closing(state: &mut State, work: impl for<'l> FnOnce(&mut State, Mapped<'l>)) {
    let may_be_closing = LIBRARIES_CLOSE.load(Ordering::SeqCst) || lookup::ALWAYS.load(Ordering::Acquire);
    if !may_be_closing {
        // SAFETY: none was closed since the list was read, or the flag says so; and the thread that closes one takes
        // the shim's lock before it unmaps it. The lock is held until `work` returns.
        work(state, unsafe { Mapped::all() });
    }
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

    /// The loader's list has changed. Returns evidence that what is remembered is mapped, if the list could be read.
    ///
    /// # Safety
    /// With [`Extent::New`], no library must have been closed since the last call.
    pub(super) unsafe fn libraries_changed<'l>(
        &self,
        held: Held<'l>,
        state: &mut State,
        extent: Extent,
        callers: Callers,
    ) -> Option<Mapped<'l>> {
        // SAFETY: the caller vouches for the extent.
        let changes = unsafe { self.r_debug?.changes(held, &mut state.libraries, extent) }?;
        LIBRARIES_CLOSE.store(false, Ordering::SeqCst);
        let mut llvms_changed = false;
        for closed in changes.closed {
            llvms_changed |= self.library_closed(state, closed);
        }
        // SAFETY: those that were closed have just been forgotten, and no other is closed as long as they are held.
        let mapped: Mapped<'l> = unsafe { Mapped::all() };
        let unheard_before = state.unheard_llvms.len();
        for slot in 0..state.sources.len() {
            // One that came with this very event is not relocated, where the event is looked at a second time.
            let relocated = |source: &Source| source.is_listening() || source.is_relocated(mapped);
            if state.sources[slot].as_ref().is_some_and(relocated) {
                state.hook_memory(slot, mapped);
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
        self.hook_generators(held, &new_generators);
        if llvms_changed || state.unheard_llvms.len() > unheard_before {
            self.publish(state);
        }
        if (state.sources.iter().any(Option::is_some) || state.unnamed.any()) && state.others.begin() {
            self.listen_everywhere(held, state);
        }
        state.lookups.change_relocated(mapped);
        state.imports.change_relocated(mapped);
        state.others.change_relocated(mapped);
        Some(mapped)
    }

    /// Before anything is bound to one of them: newer loaders have relocated all of these by now.
    fn unwinders_appeared(appeared: &[Appeared<'_>]) {
        if Imports::are_hooked() {
            let of_program = appeared.iter().filter(|appeared| appeared.is_of_program());
            of_program.filter_map(|appeared| appeared.entry.library()).for_each(|library| unwinder_appeared(&library));
        }
    }

    /// The same, where `_r_debug.r_brk` is not hooked.
    pub(crate) fn libraries_may_have_changed(&self, held: Held<'_>, counts: Counts) {
        let mut state = self.lock();
        let before = state.counts;
        if before == counts && !state.lookups.are_waiting() && !state.others.are_waiting() {
            return;
        }
        let extent = if before.unloads == counts.unloads { Extent::New } else { Extent::Whole };
        // SAFETY: the loader has counted no library that was closed since.
        if unsafe { self.libraries_changed(held, &mut state, extent, Callers::Any) }.is_some() {
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
    fn hook_lookups(&self, held: Held<'_>) {
        let mut state = self.lock();
        if !state.lookups.activate(self.hooks.before_dlsym) {
            return;
        }
        self.all(held).for_each(|(_, library)| state.lookups.add(&library));
        // SAFETY: the first slots that lookups have are of the libraries that have just been listed.
        state.lookups.change_relocated(unsafe { Mapped::all() });
    }

    /// Every library in the loader's lists.
    fn all<'l>(&self, held: Held<'l>) -> impl Iterator<Item = (Appeared<'l>, Library<'l>)> {
        let appeared = self.r_debug.map(|r_debug| r_debug.libraries(held)).unwrap_or_default();
        appeared.into_iter().filter_map(|appeared| appeared.entry.library().map(|library| (appeared, library)))
    }

    /// From now on, libraries see images where they list modules.
    pub(crate) fn hook_imports(&self, held: Held<'_>) {
        let mut state = self.lock();
        if !Imports::activate() {
            return;
        }
        let of_program = self.all(held).filter(|(appeared, _)| appeared.is_of_program());
        let libraries: Vec<Library<'_>> = of_program.map(|(_, library)| library).collect();
        // First, so that a library that is bound to one is found.
        libraries.iter().for_each(unwinder_appeared);
        libraries.iter().for_each(|library| state.imports.add(library));
    }

    /// Classes of these LLVMs whose vtables are in other libraries.
    fn hook_generators(&self, held: Held<'_>, sources: &[usize]) {
        if sources.is_empty() {
            return;
        }
        for (_, library) in self.all(held) {
            sources.iter().for_each(|&slot| codegen::change_words(&library, slot, self.hooks.generate_code[slot]));
        }
    }

    /// The first LLVM has come: the other libraries may handle its memory, too.
    fn listen_everywhere(&self, held: Held<'_>, state: &mut State) {
        for (appeared, library) in self.all(held) {
            let is_source = state.sources.iter().flatten().any(|source| source.identity == library.identity);
            if !is_source && appeared.is_of_program() {
                state.others.add(&library, self.hooks, state.unnamed.has(library.identity));
            }
        }
    }

    /// `_r_debug.r_brk`.
    pub(crate) fn loader_event(&self, held: Held<'_>) {
        let closed = LIBRARIES_CLOSE.load(Ordering::SeqCst);
        let extent = if closed { Extent::Whole } else { Extent::New };
        // SAFETY: none was closed since: the loader would have announced that, and the whole list be read.
        unsafe { self.libraries_changed(held, &mut self.lock(), extent, Callers::NoneYet) };
        notify_libraries_changed();
        self.look_for_unwinders();
        if lookup::WANTED.load(Ordering::Acquire) {
            self.hook_lookups(held);
        }
    }

    /// The loader is about to take libraries out of its list, or not: however deep in hooks of ours.
    pub(crate) fn note_closing(&self, held: Held<'_>) {
        if self.r_debug.is_some_and(|r_debug| r_debug.is_closing(held)) {
            LIBRARIES_CLOSE.store(true, Ordering::SeqCst);
        }
    }

    /// Looks at a new library. Returns its slot in `sources` if there is an LLVM in it.
    fn library_appeared(&self, state: &mut State, appeared: &Appeared<'_>, callers: Callers) -> Option<usize> {
        let slot = state.sources.iter().position(Option::is_none).unwrap_or(state.sources.len());
        let library = appeared.entry.library()?;
        let (mut symbols, wanted) = (None, self.session.options().llvm);
        let source = match Source::attach(&library, &mut symbols, slot, self.hooks, callers, wanted) {
            Ok(source) => Some(source),
            Err(Some(why)) => {
                let llvm = UnheardLlvm { path: library.path.clone(), start: library.range().start, why };
                state.unheard_llvms.push((library.identity, llvm));
                None
            }
            Err(None) => None,
        };
        let is_source = source.is_some();
        let relocated = source.as_ref().is_some_and(|source| source.is_relocated(library.mapped()));
        match state.sources.get_mut(slot) {
            Some(free) => *free = source,
            None if is_source => state.sources.push(source),
            None => {}
        }
        if relocated {
            self.catch_up(state, slot, library.mapped());
        }
        state.lookups.add(&library);
        if !is_source && appeared.is_of_program() {
            if wanted != LlvmSources::NONE && (mapped::may_compile(&library) || mapped::may_load_code(&library)) {
                state.unnamed.add(&library);
            }
            state.others.add(&library, self.hooks, state.unnamed.has(library.identity));
        }
        if library.may_have_unwinder() {
            lookup::UNWINDERS.store(true, Ordering::Release);
        }
        if appeared.is_of_program() {
            // After those that compare the library with its file: it changes the library's symbols.
            state.imports.add(&library);
        }
        if library.is_llvmlite() && wanted != LlvmSources::NONE {
            (self.hooks.attach_llvmlite)(&library, symbols);
            state.has_llvmlite = true;
        }
        is_source.then_some(slot)
    }

    /// Forgets a library that was closed, and what it had compiled. Its memory is not touched. Returns whether it had
    /// an LLVM.
    fn library_closed(&self, state: &mut State, library: KnownLibrary) -> bool {
        let State { sources, unheard_llvms, lookups, others, imports, unnamed, emitted, next_owners, .. } = state;
        let unheard = unheard_llvms.len();
        unheard_llvms.retain(|(identity, _)| *identity != library.identity);
        let was_unheard = unheard_llvms.len() < unheard;
        lookups.forget(library.identity);
        others.forget(library.identity);
        unnamed.forget(library.identity);
        imports.forget(library.identity);
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
                self.session.freeing(id);
            }
        }
        was_unheard || library.source.is_some()
    }
}
