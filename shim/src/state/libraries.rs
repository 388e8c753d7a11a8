//! Handles the opening and closing of libraries: reads the loader's lists, and hooks each new library.

use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::log_line;
use jitlisten::options::LlvmSources;
use jitlisten::plumbing::{LogEvent, UnwinderSearch, notify_libraries_changed};
use wire::facts::UnobservedLlvm;

use super::{Shim, State};
use crate::llvm::recognise;
use crate::modules::{Imports, unwinder_appeared};
use crate::process::detour::{self, Callers};
use crate::process::forward;
use crate::process::known::{KnownLibrary, NewLibrary};
use crate::process::library::Library;
use crate::process::lookup;
use crate::process::mapped_proof::{Counts, Held, Mapped};
use crate::source::Source;

/// True if libraries were removed from the loader's lists since the last read.
static LIBRARIES_CLOSING: AtomicBool = AtomicBool::new(false);

/// Runs `work` with proof that all known libraries are mapped, unless a `dlclose` may be in progress. If
/// `_r_debug.r_brk` is not hooked, `dlclose` calls go unnoticed, so `work` does not run.
///
/// The proof is valid while `state` is locked. Because `work` must accept every `'l`, it cannot keep the proof.
pub(super) fn unless_closing(state: &mut State, work: impl for<'l> FnOnce(&mut State, Mapped<'l>)) {
    let may_be_closing = LIBRARIES_CLOSING.load(Ordering::SeqCst) || lookup::CHECK_ALWAYS.load(Ordering::Acquire);
    if !may_be_closing {
        // SAFETY: no library was closed since the list was read; otherwise the flag would be set. A thread that closes
        // a library takes the shim's lock before unmapping it, and this lock is held until `work` returns.
        work(state, unsafe { Mapped::all() });
    }
}

impl Shim {
    /// Hooks `_r_debug.r_brk`, or `dlsym` if that fails.
    pub(super) fn watch_loader(&self) {
        let Some(r_debug) = self.r_debug.filter(|r_debug| r_debug.function() != 0) else {
            log_line!(Warn, "the loader has no _r_debug: an LLVM that is loaded later will not be discovered");
            lookup::CHECK_ALWAYS.store(true, Ordering::Release);
            return;
        };
        // SAFETY: the loader's function is mapped code. The hook takes no arguments and may be called until the process
        // exits.
        if let Err(refusal) = unsafe { detour::detour(r_debug.function(), self.hooks.loader_event, Callers::Any) } {
            log_line!(Info, "{}", LogEvent::LoaderUnhooked { reason: &refusal.to_string() });
            lookup::CHECK_ALWAYS.store(true, Ordering::Release);
            self.lock().dlsym_slots.activate(self.hooks.before_dlsym);
        }
    }

    /// Handles a change of the loader's lists. Returns proof that all known libraries are mapped, if the lists could be
    /// read.
    pub(super) fn libraries_changed<'l>(
        &self,
        held: Held<'l>,
        state: &mut State,
        callers: Callers,
    ) -> Option<Mapped<'l>> {
        let r_debug = self.r_debug?;
        // Cleared before the list is read, not after: a thread that begins to close a library meanwhile sets it again.
        let was_closing = LIBRARIES_CLOSING.swap(false, Ordering::SeqCst);
        let Some(changes) = r_debug.changes(held, &mut state.libraries) else {
            LIBRARIES_CLOSING.fetch_or(was_closing, Ordering::SeqCst);
            return None;
        };
        let mut llvms_changed = false;
        for closed in changes.closed {
            llvms_changed |= self.forget_library(state, closed);
        }
        // SAFETY: closed libraries have just been removed, and no other is closed while the libraries are held.
        let mapped: Mapped<'l> = unsafe { Mapped::all() };
        let unobserved_before = state.unobserved_llvms.len();
        for slot in 0..state.sources.len() {
            // The loader may call the hook twice for one event. At the second call, a source added by the first call is
            // not relocated yet.
            let relocated = |source: &Source| source.memory_is_hooked() || source.is_relocated(mapped);
            if state.sources[slot].as_ref().is_some_and(relocated) {
                state.hook_memory(slot, mapped);
            }
        }
        Shim::register_unwinders(&changes.opened);
        let mut new_sources = Vec::new();
        for opened in changes.opened {
            let source = self.examine_library(state, &opened, callers);
            state.libraries.add(&opened, source);
            llvms_changed |= source.is_some();
            new_sources.extend(source);
        }
        self.hook_words_of_libraries(held, state, &new_sources);
        if llvms_changed || state.unobserved_llvms.len() > unobserved_before {
            self.publish(state);
        }
        if (state.sources.iter().any(Option::is_some) || !state.unreported_libraries.is_empty())
            && state.other_libraries.activate()
        {
            self.hook_other_libraries(held, state);
        }
        state.dlsym_slots.hook_relocated(mapped);
        state.imports.hook_relocated(mapped);
        state.other_libraries.hook_relocated(mapped);
        Some(mapped)
    }

    /// Registers unwinders among the new libraries before the imports of any library are bound to them. Newer loaders
    /// have already relocated all of these libraries.
    fn register_unwinders(opened: &[NewLibrary<'_>]) {
        if Imports::are_hooked() {
            let opened = opened.iter().filter(|library| library.is_in_program_namespace());
            opened.filter_map(|library| library.entry.library()).for_each(|library| unwinder_appeared(&library));
        }
    }

    /// Handles a possible change of the loader's lists if `_r_debug.r_brk` is not hooked.
    pub(crate) fn libraries_may_have_changed(&self, held: Held<'_>, counts: Counts) {
        let mut state = self.lock();
        let before = state.counts;
        if before == counts && !state.dlsym_slots.has_unrelocated() && !state.other_libraries.has_unrelocated() {
            return;
        }
        if self.libraries_changed(held, &mut state, Callers::Any).is_some() {
            state.counts = counts;
        }
    }

    /// Looks for unwinders in new libraries. Takes the loader's locks, unless the caller already holds them.
    pub(crate) fn detect_unwinders(&self) {
        if !lookup::UNWINDERS_PENDING.swap(false, Ordering::AcqRel) && !lookup::CHECK_ALWAYS.load(Ordering::Acquire) {
            return;
        }
        let unwinders = self.objects.libraries_changed();
        if unwinders != UnwinderSearch::Known {
            lookup::UNWINDERS_PENDING.store(true, Ordering::Release);
        }
        lookup::CHECK_ONCE.store(unwinders == UnwinderSearch::Unrelocated, Ordering::Release);
    }

    /// Hooks `dlsym` in all libraries. From then on, each call first checks for new libraries if a check is needed.
    fn hook_dlsym(&self, held: Held<'_>) {
        let mut state = self.lock();
        if !state.dlsym_slots.activate(self.hooks.before_dlsym) {
            return;
        }
        self.all_libraries(held).for_each(|(_, library)| state.dlsym_slots.add(&library));
        // SAFETY: `dlsym_slots` was empty before this call, so all its slots belong to the libraries that have just
        // been listed.
        state.dlsym_slots.hook_relocated(unsafe { Mapped::all() });
    }

    /// All libraries in the loader's lists.
    fn all_libraries<'l>(&self, held: Held<'l>) -> impl Iterator<Item = (NewLibrary<'l>, Library<'l>)> {
        let appeared = self.r_debug.map(|r_debug| r_debug.libraries(held)).unwrap_or_default();
        appeared.into_iter().filter_map(|appeared| appeared.entry.library().map(|library| (appeared, library)))
    }

    /// Hooks the functions that libraries call to list modules, so that these libraries also see our images.
    pub(crate) fn hook_imports(&self, held: Held<'_>) {
        let mut state = self.lock();
        if !Imports::activate() {
            return;
        }
        let in_program_namespace = self.all_libraries(held).filter(|(appeared, _)| appeared.is_in_program_namespace());
        let libraries: Vec<Library<'_>> = in_program_namespace.map(|(_, library)| library).collect();
        // Register unwinders first, so that a library whose imports are bound to an unwinder is recognised.
        libraries.iter().for_each(unwinder_appeared);
        libraries.iter().for_each(|library| state.imports.add(library));
    }

    /// Hooks the code generators and JITLink of these LLVM instances in the vtables of all libraries.
    fn hook_words_of_libraries(&self, held: Held<'_>, state: &State, new_sources: &[usize]) {
        if new_sources.is_empty() {
            return;
        }
        for (_, library) in self.all_libraries(held) {
            for &slot in new_sources {
                let Some(source) = state.sources[slot].as_ref() else { continue };
                source.hook_words_of(&library, self.hooks);
            }
        }
    }

    /// Hooks memory calls in all other libraries, because these may manage LLVM's memory, too. Called when the first
    /// LLVM instance is detected.
    fn hook_other_libraries(&self, held: Held<'_>, state: &mut State) {
        for (appeared, library) in self.all_libraries(held) {
            let is_source = state.sources.iter().flatten().any(|source| source.identity == library.identity);
            if !is_source && appeared.is_in_program_namespace() {
                state.other_libraries.add(&library, self.hooks, state.unreported_libraries.contains(library.identity));
            }
        }
    }

    /// Handles a call of `_r_debug.r_brk`.
    pub(crate) fn loader_event(&self, held: Held<'_>) {
        let is_unfinished = self.libraries_changed(held, &mut self.lock(), Callers::NoneYet).is_none();
        // The search below asks the loader, which then declares its list consistent, although it still contains the
        // libraries that are being closed. The end of the change is an event of its own.
        if is_unfinished {
            return;
        }
        notify_libraries_changed();
        self.detect_unwinders();
        if lookup::CHECK_ONCE.load(Ordering::Acquire) {
            self.hook_dlsym(held);
        }
    }

    /// Checks whether the loader is about to remove libraries from its lists. Called even inside nested hooks.
    pub(crate) fn record_closing(&self, held: Held<'_>) {
        if self.r_debug.is_some_and(|r_debug| r_debug.is_closing(held)) {
            LIBRARIES_CLOSING.store(true, Ordering::SeqCst);
        }
    }

    /// Examines a new library. Returns its slot in `sources` if the library contains LLVM.
    fn examine_library(&self, state: &mut State, appeared: &NewLibrary<'_>, callers: Callers) -> Option<usize> {
        let slot = state.sources.iter().position(Option::is_none).unwrap_or(state.sources.len());
        let library = appeared.entry.library()?;
        let (mut symbols, wanted) = (None, self.objects.options().llvm);
        let source = match Source::attach(&library, &mut symbols, slot, self.hooks, callers, wanted) {
            Ok(source) => Some(source),
            Err(Some(reason)) => {
                let file = library.name().into_owned();
                let llvm = UnobservedLlvm { start: library.range().start as u64, file, reason };
                state.unobserved_llvms.push((library.identity, llvm));
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
            self.observe_memory(state, slot, library.mapped());
        }
        state.dlsym_slots.add(&library);
        if !is_source && appeared.is_in_program_namespace() {
            if wanted != LlvmSources::NONE && (recognise::may_compile(&library) || recognise::may_load_code(&library)) {
                state.unreported_libraries.add(&library);
            }
            state.other_libraries.add(&library, self.hooks, state.unreported_libraries.contains(library.identity));
        }
        lookup::request_unwinder_search(&library);
        if appeared.is_in_program_namespace() {
            // Hook imports only after comparing the library with its file, because hooking changes its symbols.
            state.imports.add(&library);
        }
        if recognise::is_llvmlite(&library) && wanted != LlvmSources::NONE {
            (self.hooks.attach_llvmlite)(&library, symbols);
            state.has_llvmlite = true;
        }
        is_source.then_some(slot)
    }

    /// Forgets a closed library and the objects that it compiled, without touching the library's memory. Returns true
    /// if the library contained LLVM.
    fn forget_library(&self, state: &mut State, library: KnownLibrary) -> bool {
        let State {
            sources,
            unobserved_llvms,
            dlsym_slots,
            other_libraries,
            imports,
            unreported_libraries,
            trackers,
            next_owners,
            ..
        } = state;
        let unobserved_before = unobserved_llvms.len();
        unobserved_llvms.retain(|(identity, _)| *identity != library.identity);
        let was_unobserved = unobserved_llvms.len() < unobserved_before;
        dlsym_slots.forget(library.identity);
        other_libraries.forget(library.identity);
        unreported_libraries.forget(library.identity);
        imports.forget(library.identity);
        (self.hooks.llvmlite_closed)(library.identity);
        for (function, owner) in forward::ALL_FUNCTIONS.into_iter().zip(next_owners) {
            if *owner == Some(library.identity) {
                *owner = None;
                forward::set(function, 0);
            }
        }
        if let Some(slot) = library.source {
            trackers.emitted.forget(slot);
        }
        if let Some(source) = library.source.and_then(|slot| sources[slot].take()) {
            log_line!(Info, "{}", LogEvent::Closed { bias: &format!("{:x}", source.identity.bias) });
            // Hide this LLVM instance's list from debuggers. Another instance's list becomes visible when that list is
            // next read.
            self.objects.show_to_debuggers(0);
            for id in source.objects() {
                self.objects.freeing(id);
            }
        }
        was_unobserved || library.source.is_some()
    }
}
