//! What the shim knows, and what it does at each piece of news.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jitlisten::options::SinkKind;
use jitlisten::{
    Address, AddressRange, Loaded, MapsLine, ObjectId, Session, Unwinders, checked_read, log_line, mappings_of,
    notify_libraries_changed,
};
use once_cell::race::OnceBox;

use crate::code_pages;
use crate::codegen;
use crate::detour::{self, Callers};
use crate::discovered::DiscoveredLlvm;
use crate::hook_table::HookTable;
use crate::jitlink::emitted::EmittedObjects;
use crate::known::{Appeared, Extent, KnownLibraries, KnownLibrary};
use crate::library::Identity;
use crate::loader::{Counts, Rendezvous};
use crate::lookup::{self, Lookups};
use crate::memory::{Executable, Memory, Outcome};
use crate::modules::{Imports, unwinder_appeared};
use crate::next;
use crate::other_libraries::OtherLibraries;
use crate::overdue::{self, Overdue};
use crate::source::Source;
use crate::unheard::Unheard;
use crate::unregistered::Unregistered;

/// How many ranges of freed code keep their addresses, so that a perf map, which cannot say "gone", stays true.
const RESERVED_RANGES: usize = 4096;

/// How many objects of linkers are compared with what appears in a list. ORC lists an object once it is final.
const LINKED: usize = 256;

/// The shim of this process.
pub(crate) struct Shim {
    pub(crate) session: &'static Session,
    hooks: &'static HookTable,
    rendezvous: Option<Rendezvous>,
    state: Mutex<State>,
}

/// What is known of the process, behind the shim's lock.
#[derive(Default)]
pub(crate) struct State {
    /// Every library that was looked at.
    libraries: KnownLibraries,
    /// What the loader had counted when it was asked last; not asked where its rendezvous is detoured.
    counts: Counts,
    sources: Vec<Option<Source>>,
    /// Whether one of the libraries is an llvmlite.
    has_llvmlite: bool,
    pub(crate) memory: Memory,
    /// Objects whose code outlives their place in LLVM's list.
    unregistered: Unregistered,
    /// The libraries with functions of others that our hooks call.
    next_owners: [Option<Identity>; next::FUNCTIONS],
    lookups: Lookups,
    imports: Imports,
    others: OtherLibraries,
    pub(crate) overdue: Overdue,
    pub(crate) emitted: EmittedObjects,
    pub(crate) unheard: Unheard,
    /// Objects that linkers have reported last, with their sizes: LLVM may put them into its list.
    linked: VecDeque<(ObjectId, usize)>,
    reserved: VecDeque<AddressRange>,
}

static SHIM: OnceBox<Shim> = OnceBox::new();

/// Whether libraries were taken out of the loader's list since it was read.
static LIBRARIES_CLOSE: AtomicBool = AtomicBool::new(false);

pub(crate) fn shim() -> Option<&'static Shim> {
    SHIM.get()
}

/// Makes the shim of this process, with these hooks. Returns whether there was none yet.
pub(crate) fn open(session: &'static Session, hooks: &'static HookTable) -> bool {
    let shim = || Shim { session, hooks, rendezvous: Rendezvous::find(), state: Mutex::default() };
    SHIM.get().is_none() && SHIM.set(Box::new(shim())).is_ok()
}

/// Every LLVM that is listened to, in the order they were found.
pub fn discovered() -> Vec<DiscoveredLlvm> {
    shim().map(Shim::discovered).unwrap_or_default()
}

impl Shim {
    /// Whether modules are to be shown to tools inside the process.
    pub(crate) fn wants_modules(&self) -> bool {
        self.session.is_enabled(SinkKind::Modules)
    }

    /// The first look, with the libraries held.
    pub(crate) fn begin(&self) {
        self.watch_loader();
        self.libraries_changed(&mut self.lock(), Extent::Whole, Callers::Any);
        self.look_around();
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock ends all listening, see `hooks::guarded`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn discovered(&self) -> Vec<DiscoveredLlvm> {
        let state = self.lock();
        state.sources.iter().flatten().map(Source::describe).collect()
    }

    fn watch_loader(&self) {
        let Some(rendezvous) = self.rendezvous.filter(|rendezvous| rendezvous.function() != 0) else {
            log_line!(Warn, "no rendezvous with the loader: an LLVM that is loaded later will not be discovered");
            lookup::ALWAYS.store(true, Ordering::Release);
            return;
        };
        // SAFETY: the loader's function is mapped code; the hook takes no argument and may be called for ever.
        if let Err(refusal) = unsafe { detour::detour(rendezvous.function(), self.hooks.loader_event, Callers::Any) } {
            log_line!(Info, "the loader's rendezvous stays as it is: {refusal}; listening to dlsym instead");
            lookup::ALWAYS.store(true, Ordering::Release);
            self.lock().lookups.activate(self.hooks.before_dlsym);
        }
    }

    /// The loader's list has changed. Under the loader's lock. Returns whether the list could be read.
    fn libraries_changed(&self, state: &mut State, extent: Extent, callers: Callers) -> bool {
        let Some(rendezvous) = self.rendezvous else { return false };
        // SAFETY: called from the loader's rendezvous, or with the libraries held; callers know what was closed.
        let Some(changes) = (unsafe { rendezvous.changes(&mut state.libraries, extent) }) else { return false };
        LIBRARIES_CLOSE.store(false, Ordering::Relaxed);
        for closed in changes.closed {
            self.library_closed(state, closed);
        }
        for slot in 0..state.sources.len() {
            // SAFETY: an earlier event has brought this library, so by now the loader has relocated it; it is still listed.
            unsafe { state.hook_memory(slot) };
        }
        Shim::unwinders_appeared(&changes.appeared);
        let mut new_generators = Vec::new();
        for appeared in changes.appeared {
            let source = self.library_appeared(state, &appeared, callers);
            state.libraries.add(&appeared, source);
            let attached = source.and_then(|slot| state.sources[slot].as_ref());
            if attached.is_some_and(Source::generates_for_us) {
                new_generators.extend(source);
            }
        }
        self.hook_generators(&new_generators);
        if state.sources.iter().any(Option::is_some) && state.others.begin() {
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

    /// The same, where the loader's rendezvous is not detoured. With the libraries held.
    pub(crate) fn libraries_may_have_changed(&self, counts: Counts) {
        let mut state = self.lock();
        let before = state.counts;
        if before == counts && !state.lookups.are_waiting() {
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
        // SAFETY: under the loader's lock, as its rendezvous is.
        let entries = self.rendezvous.and_then(|rendezvous| unsafe { rendezvous.libraries() }).unwrap_or_default();
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
        let appeared = self.rendezvous.and_then(|rendezvous| unsafe { rendezvous.appeared() }).unwrap_or_default();
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
        for entry in self.rendezvous.and_then(|rendezvous| unsafe { rendezvous.libraries() }).unwrap_or_default() {
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
        let changes = self.rendezvous.and_then(|rendezvous| unsafe { rendezvous.changes(&mut all, Extent::Whole) });
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

    /// The loader's rendezvous: under its lock.
    pub(crate) fn loader_event(&self) {
        let closed = LIBRARIES_CLOSE.load(Ordering::Relaxed);
        let extent = if closed { Extent::Whole } else { Extent::New };
        self.libraries_changed(&mut self.lock(), extent, Callers::NoneYet);
        notify_libraries_changed();
        self.look_for_unwinders();
        if lookup::WANTED.load(Ordering::Acquire) {
            self.hook_lookups();
        }
    }

    /// The loader is about to take libraries out of its list, or not. Under its lock, and however deep in hooks of ours.
    pub(crate) fn note_closing(&self) {
        // SAFETY: called from the loader's rendezvous.
        if self.rendezvous.is_some_and(|rendezvous| unsafe { rendezvous.is_closing() }) {
            LIBRARIES_CLOSE.store(true, Ordering::Relaxed);
        }
    }

    /// Looks at a new library. Returns its slot in `sources` if there is an LLVM in it.
    fn library_appeared(&self, state: &mut State, appeared: &Appeared, callers: Callers) -> Option<usize> {
        let slot = state.sources.iter().position(Option::is_none).unwrap_or(state.sources.len());
        // SAFETY: the loader's lock has been held since the entry was read.
        let library = unsafe { appeared.entry.library() }?;
        let mut symbols = None;
        // SAFETY: the library is in the loader's list, whose lock is held.
        let source =
            unsafe { Source::attach(&library, &mut symbols, slot, self.hooks, callers, self.session.options().llvm) };
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
        if library.is_llvmlite() {
            // SAFETY: as above.
            unsafe { (self.hooks.attach_llvmlite)(library, symbols) };
            state.has_llvmlite = true;
        }
        is_source.then_some(slot)
    }

    /// Forgets a library that was closed, and what it had compiled. Its memory is not touched.
    fn library_closed(&self, state: &mut State, library: KnownLibrary) {
        let State { sources, memory, lookups, others, imports, emitted, next_owners, .. } = state;
        lookups.forget(library.identity.bias);
        others.forget(library.identity.bias);
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
    }

    /// At the start: every library that is there has been relocated, and may have compiled code already.
    fn look_around(&self) {
        let mut state = self.lock();
        if state.has_llvmlite {
            log_line!(
                Info,
                "llvmlite was loaded before jitlisten: callers that have looked its functions up already compile without frame pointers"
            );
        }
        for slot in 0..state.sources.len() {
            self.catch_up(&mut state, slot);
            self.read_list(&mut state, slot);
        }
    }

    /// Starts listening to the memory of a source. `slot`'s library must be relocated.
    fn catch_up(&self, state: &mut State, slot: usize) {
        // SAFETY: callers see to it that the library is mapped and relocated.
        if unsafe { state.hook_memory(slot) } {
            for (range, how) in executable_memory() {
                state.executable(range, how);
            }
        }
    }

    /// LLVM's rendezvous: an object came or went. Under LLVM's lock: elsewhere another thread may be changing the list, and what it
    /// says was taken out may be the entry before the one that is at the same address now.
    pub(crate) fn rendezvous(&self, slot: usize) {
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
        // SAFETY: libraries that are closed are forgotten.
        unsafe { state.others.change_relocated() };
        self.look_at_overdue(state);
    }

    /// The linker of the LLVM in `slot` has loaded an object.
    pub(crate) fn linked(&self, slot: usize, object: Vec<u8>) {
        let mut state = self.lock();
        self.prepare(&mut state, slot);
        let size = object.len();
        if self.session.check_memory(size).is_err() {
            return;
        }
        let Ok(loaded) = self.session.linked(object) else { return };
        state.linked.push_front((loaded.id, size));
        state.linked.truncate(LINKED);
        self.loaded(&mut state, loaded);
    }

    /// The linker of the LLVM in `slot` is not understood: its list is read instead. LLVM puts the object there behind this call.
    pub(crate) fn refused(&self, slot: usize) {
        let mut state = self.lock();
        self.prepare(&mut state, slot);
        if let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) {
            // SAFETY: the library runs.
            unsafe { source.fall_back_to_list(self.hooks) };
        }
    }

    /// The object that a linker has reported and that is `bytes`, which LLVM has in its list at `kept_at`.
    fn same_as_linked(&self, state: &mut State, bytes: &[u8], kept_at: Option<AddressRange>) -> Option<ObjectId> {
        let is_it = |&(id, size): &(ObjectId, usize)| size == bytes.len() && self.session.listed(id, bytes, kept_at);
        let index = state.linked.iter().position(is_it)?;
        state.linked.remove(index).map(|(id, _)| id)
    }

    /// A debugger that reads one list only may read ours: it leads to that of the first LLVM.
    fn show_to_debuggers(&self, state: &State, slot: usize, first_entry: Option<u64>) {
        if state.sources.iter().position(Option::is_some) == Some(slot) {
            self.session.show_to_debuggers(first_entry.unwrap_or_default());
        }
    }

    fn read_list(&self, state: &mut State, slot: usize) {
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
            let same = bytes.as_deref().and_then(|bytes| self.same_as_linked(state, bytes, listed.debug_object));
            if same.is_some() {
                if let Some(source) = state.sources[slot].as_mut() {
                    source.remember(listed, same);
                }
                continue;
            }
            let loaded = bytes.and_then(|bytes| self.session.loaded(bytes, listed.debug_object).ok());
            if let Some(source) = state.sources[slot].as_mut() {
                source.remember(listed, loaded.as_ref().map(|loaded| loaded.id));
            }
            if let Some(loaded) = loaded {
                self.loaded(state, loaded);
            }
        }
    }

    /// An object was loaded. Where it may run already, and that was not heard, the kernel knows.
    pub(crate) fn loaded(&self, state: &mut State, loaded: Loaded) {
        let id = loaded.id;
        let outcome = state.memory.loaded(loaded);
        self.notify(state, outcome);
        let Some(first) = state.memory.pending(id).and_then(|text| text.first().copied()) else { return };
        state.overdue.add(jitlisten::monotonic(), id);
        if !state.memory.has_executable(first) {
            let outcome = state.look_at(first);
            self.notify(state, outcome);
        }
    }

    /// Objects that are loaded for a second and not final.
    fn look_at_overdue(&self, state: &mut State) {
        state.emitted.warn();
        self.look_at_unheard(state);
        self.free_unmapped(state);
        if state.overdue.is_empty() {
            return;
        }
        for id in state.overdue.take(jitlisten::monotonic()) {
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
                    "an object was loaded at {at:x?} and is not final after a second: {reason}; it has no names. \
                    Of others like it nothing will be said"
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
            self.session.freeing(id);
        }
        for id in outcome.finalized {
            self.session.finalized(id);
        }
    }

    /// Memory of an LLVM became executable.
    pub(crate) fn executable(&self, range: AddressRange, how: Executable) {
        self.look_for_unwinders();
        let mut state = self.lock();
        for slot in 0..state.sources.len() {
            // SAFETY: sources are of libraries that are mapped.
            unsafe { state.listen_again(slot) };
            if state.sources[slot].as_ref().is_some_and(|source| !source.detoured) {
                self.read_list(&mut state, slot);
            }
        }
        let outcome = state.executable(range, how);
        self.notify(&mut state, outcome);
        self.look_for_copies(&mut state, range);
        self.look_for_emitted(&mut state, range);
        self.look_at_overdue(&mut state);
    }

    /// Memory of the process has moved, and may hold code.
    pub(crate) fn look_at(&self, range: AddressRange) {
        let mut state = self.lock();
        let outcome = state.look_at(range);
        self.notify(&mut state, outcome);
    }

    /// Memory of an LLVM is about to be no longer executable.
    pub(crate) fn not_executable(&self, range: AddressRange) {
        let mut state = self.lock();
        let outcome = state.not_executable(range);
        self.notify(&mut state, outcome);
        drop(state);
        self.session.changing(range);
    }

    /// LLVM has handed an `.eh_frame` to the unwinder.
    pub(crate) fn eh_frame_registered(&self, address: Address) {
        let mut state = self.lock();
        let outcome = state.memory.eh_frame_registered(address);
        self.notify(&mut state, outcome);
    }

    /// Memory of an LLVM is about to be replaced by other memory.
    pub(crate) fn replacing(&self, range: AddressRange) {
        let mut state = self.lock();
        let outcome = state.unmapped(range);
        self.notify(&mut state, outcome);
        self.session.unmapping(range);
    }

    /// The same, where what comes may be executed: it may be the code that objects wait for there, mapped twice.
    pub(crate) fn replacing_with_code(&self, range: AddressRange) {
        let mut state = self.lock();
        let outcome = state.not_executable(range);
        self.notify(&mut state, outcome);
        self.session.unmapping(range);
    }

    /// A module is about to be compiled: other tools may have changed the slots since the last one.
    pub(crate) fn compiling(&self) {
        let mut state = self.lock();
        for slot in 0..state.sources.len() {
            // SAFETY: sources are of libraries that are mapped.
            unsafe { state.listen_again(slot) };
        }
    }

    /// Memory of an LLVM is about to be unmapped. Returns whether that was done here, by keeping the addresses reserved.
    pub(crate) fn unmapping(&self, range: AddressRange) -> bool {
        let mut state = self.lock();
        let held_code = state.memory.has_executable(range);
        let outcome = state.unmapped(range);
        self.notify(&mut state, outcome);
        self.session.unmapping(range);
        held_code && self.session.is_enabled(SinkKind::PerfMap) && state.reserve(range)
    }
}

impl State {
    /// Every LLVM that is listened to.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().flatten()
    }

    fn executable(&mut self, range: AddressRange, how: Executable) -> Outcome {
        code_pages::insert(range);
        self.memory.executable(range, how)
    }

    fn not_executable(&mut self, range: AddressRange) -> Outcome {
        code_pages::remove(range);
        self.memory.not_executable(range)
    }

    fn unmapped(&mut self, range: AddressRange) -> Outcome {
        code_pages::remove(range);
        self.memory.unmapped(range)
    }

    /// Asks the kernel which of `range` may run.
    fn look_at(&mut self, range: AddressRange) -> Outcome {
        let mut all = Outcome::default();
        let mappings = mappings_of(range).ok().flatten().unwrap_or_default();
        for mapping in mappings.into_iter().filter(|mapping| mapping.executable) {
            let is_fixed = !mapping.writable && !mapping.shared;
            let how = if is_fixed { Executable::Only } else { Executable::Writable };
            let outcome = self.executable(mapping.range, how);
            all.finalized.extend(outcome.finalized);
            all.freed.extend(outcome.freed);
        }
        all
    }

    /// Takes the slots of a source back, if others have changed them.
    ///
    /// # Safety
    /// The library must be mapped.
    unsafe fn listen_again(&mut self, slot: usize) {
        if self.sources[slot].as_ref().is_some_and(Source::is_listening) {
            // SAFETY: the caller's promise, and it was relocated when it was listened to for the first time.
            unsafe { self.hook_memory(slot) };
        }
    }

    /// Changes the slots of a source, and remembers what others have put there. Returns whether it was the first time.
    ///
    /// # Safety
    /// The library must be mapped and relocated.
    unsafe fn hook_memory(&mut self, slot: usize) -> bool {
        let Some(source) = self.sources.get_mut(slot).and_then(Option::as_mut) else { return false };
        // SAFETY: the caller's promise.
        let (first, found) = unsafe { source.hook_memory() };
        for (function, address) in found {
            self.next_owners[function as usize] = self.libraries.owner(address);
            next::set(function, address);
        }
        first
    }

    /// Gives the memory back but not the addresses; the oldest reservation is given up for it.
    fn reserve(&mut self, range: AddressRange) -> bool {
        if !remap_inaccessible(range) {
            return false;
        }
        self.reserved.push_back(range);
        if self.reserved.len() > RESERVED_RANGES
            && let Some(oldest) = self.reserved.pop_front()
        {
            // SAFETY: this range was unmapped by its owner, is inaccessible since, and has no other owner.
            unsafe { libc::munmap(oldest.start().0 as *mut _, oldest.size() as usize) };
        }
        true
    }
}

/// Replaces the mapping by one that holds nothing and allows nothing.
fn remap_inaccessible(range: AddressRange) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (start, size) = (range.start().0 as *mut _, range.size() as usize);
    // SAFETY: the owner of the range is unmapping it in this very call.
    let mapped = unsafe { libc::mmap(start, size, libc::PROT_NONE, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// The anonymous executable memory of the process: where code may have been compiled before we listened.
fn executable_memory() -> Vec<(AddressRange, Executable)> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let anonymous = MapsLine::all(&maps).filter(|line| line.is_executable() && line.path.is_empty());
    let with_kind =
        |line: MapsLine<'_>| (line.range, if line.is_writable() { Executable::Writable } else { Executable::Only });
    anonymous.map(with_kind).collect()
}
