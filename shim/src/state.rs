//! What the shim knows, and what it does at each piece of news.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jitlisten::options::SinkKind;
use jitlisten::{
    Address, AddressRange, ForkGuard, Session, Unwinders, HostStateGuard, checked_read, log_line, notify_libraries_changed,
};
use once_cell::race::OnceBox;

use crate::detour;
use crate::discovered::HeardLlvm;
use crate::hooks;
use crate::library::Identity;
use crate::llvmlite;
use crate::loader::{Entry, Rendezvous, with_libraries_held};
use crate::lookup::{self, Lookups};
use crate::memory::{Executable, Memory, Outcome};
use crate::source::Source;

/// How many ranges of freed code keep their addresses, so that a perf map, which cannot say "gone", stays true.
const RESERVED_RANGES: usize = 4096;

/// The shim of this process.
pub(crate) struct Shim {
    pub(crate) session: &'static Session,
    rendezvous: Option<Rendezvous>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Every library that was looked at, with its slot in `sources` if there is an LLVM in it.
    libraries: Vec<(Identity, Option<usize>)>,
    sources: Vec<Option<Source>>,
    /// Whether one of the libraries is an llvmlite.
    has_llvmlite: bool,
    memory: Memory,
    lookups: Lookups,
    reserved: VecDeque<AddressRange>,
}

static SHIM: OnceBox<Shim> = OnceBox::new();

pub(crate) fn shim() -> Option<&'static Shim> {
    SHIM.get()
}

/// Starts to listen to every LLVM in this process, now and later. Once; further calls do nothing.
///
/// Must not be called under the loader's lock, except from a constructor.
pub fn start(session: &'static Session) {
    if !session.options().active || SHIM.get().is_some() {
        return;
    }
    let shim = Shim { session, rendezvous: Rendezvous::find(), state: Mutex::default() };
    if SHIM.set(Box::new(shim)).is_err() {
        return;
    }
    follow_forks();
    with_libraries_held(|| {
        hooks::guarded(|shim| {
            shim.watch_loader();
            shim.libraries_changed();
            shim.look_around();
        });
    });
    hooks::guarded(Shim::look_for_unwinders);
}

impl Shim {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock ends all listening, see `hooks::guarded`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn discovered(&self) -> Vec<HeardLlvm> {
        let state = self.lock();
        let discovered = |source: &Source| HeardLlvm {
            path: source.path.clone(),
            detoured: source.detoured,
            objects: source.objects().len(),
        };
        state.sources.iter().flatten().map(discovered).collect()
    }

    fn watch_loader(&self) {
        let Some(rendezvous) = self.rendezvous.filter(|rendezvous| rendezvous.function() != 0) else {
            log_line!(Warn, "no rendezvous with the loader: an LLVM that is loaded later will not be discovered");
            return;
        };
        // SAFETY: the loader's function is mapped code; the hook takes no argument and may be called for ever.
        if let Err(refusal) = unsafe { detour::detour(rendezvous.function(), hooks::loader_event) } {
            log_line!(Info, "the loader's rendezvous stays as it is: {refusal}; listening to dlsym instead");
            lookup::ALWAYS.store(true, Ordering::Release);
            self.lock().lookups.activate();
        }
    }

    /// The loader's list has changed. Under the loader's lock.
    pub(crate) fn libraries_changed(&self) {
        let Some(rendezvous) = self.rendezvous else { return };
        // SAFETY: called from the loader's rendezvous, or with the libraries held.
        let Some(entries) = (unsafe { rendezvous.libraries() }) else { return };
        let mut state = self.lock();
        self.drop_closed(&mut state, &entries);
        for source in state.sources.iter_mut().flatten() {
            // SAFETY: an earlier event has brought this library, so by now the loader has relocated it; it is still listed.
            unsafe { source.hook_memory() };
        }
        for entry in entries {
            if state.libraries.iter().all(|known| known.0 != entry.identity) {
                self.library_appeared(&mut state, entry);
            }
        }
        // SAFETY: libraries that were closed have been forgotten above.
        unsafe { state.lookups.change_relocated() };
    }

    /// Unwinders may have come with the libraries. Takes the loader's locks, or is under them.
    pub(crate) fn look_for_unwinders(&self) {
        let unwinders = self.session.libraries_changed();
        lookup::WANTED.store(unwinders == Unwinders::Unrelocated, Ordering::Release);
    }

    /// From now on, every `dlsym` looks at new libraries first if there is something to look for.
    fn hook_lookups(&self) {
        let mut state = self.lock();
        if !state.lookups.activate() {
            return;
        }
        // SAFETY: as in `libraries_changed`.
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

    /// The loader's rendezvous: under its lock.
    pub(crate) fn loader_event(&self) {
        self.libraries_changed();
        notify_libraries_changed();
        self.look_for_unwinders();
        if lookup::WANTED.load(Ordering::Acquire) {
            self.hook_lookups();
        }
    }

    fn library_appeared(&self, state: &mut State, entry: Entry) {
        let slot = state.sources.iter().position(Option::is_none).unwrap_or(state.sources.len());
        // SAFETY: the loader's lock has been held since the entry was read.
        let library = unsafe { entry.library() };
        let mut symbols = None;
        // SAFETY: the library is in the loader's list, whose lock is held.
        let source = library.as_ref().and_then(|library| unsafe { Source::attach(library, &mut symbols, slot) });
        state.libraries.push((entry.identity, source.is_some().then_some(slot)));
        // SAFETY: as above.
        let relocated = source.as_ref().is_some_and(|source| unsafe { source.is_relocated() });
        match state.sources.get_mut(slot) {
            Some(free) => *free = source,
            None if source.is_some() => state.sources.push(source),
            None => {}
        }
        if relocated {
            self.catch_up(state, slot);
        }
        library.iter().for_each(|library| state.lookups.add(library));
        if let Some(library) = library.filter(llvmlite::is_llvmlite) {
            // SAFETY: as above.
            unsafe { llvmlite::attach(library, symbols) };
            state.has_llvmlite = true;
        }
    }

    /// Forgets libraries that were closed, and what they had compiled. Their memory is not touched.
    fn drop_closed(&self, state: &mut State, entries: &[Entry]) {
        let State { libraries, sources, memory, lookups, .. } = state;
        libraries.retain(|(identity, slot)| {
            let listed = entries.iter().any(|entry| entry.identity == *identity);
            if !listed {
                lookups.forget(identity.bias);
                llvmlite::closed(*identity);
            }
            if !listed && let Some(source) = slot.and_then(|slot| sources[slot].take()) {
                log_line!(Info, "an LLVM was closed: {:x}", source.identity.bias);
                for id in source.objects() {
                    memory.freed(id);
                    self.session.freeing(id);
                }
            }
            listed
        });
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
        }
    }

    /// Starts listening to the memory of a source, and reads its list. `slot`'s library must be relocated.
    fn catch_up(&self, state: &mut State, slot: usize) {
        let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) else { return };
        // SAFETY: callers see to it that the library is mapped and relocated.
        if unsafe { source.hook_memory() } {
            for (range, how) in executable_memory() {
                state.memory.executable(range, how);
            }
        }
        self.read_list(state, slot);
    }

    /// LLVM's rendezvous: an object came or went. Under LLVM's lock.
    pub(crate) fn rendezvous(&self, slot: usize) {
        let mut state = self.lock();
        // The library runs, so it is relocated.
        self.catch_up(&mut state, slot);
    }

    fn read_list(&self, state: &mut State, slot: usize) {
        let Some(source) = state.sources.get_mut(slot).and_then(Option::as_mut) else { return };
        let news = source.read();
        for id in news.left {
            state.memory.freed(id);
            self.session.freeing(id);
        }
        for listed in news.appeared {
            // The copy is the first large piece of memory.
            let range = listed.debug_object;
            let range = range.filter(|range| self.session.check_memory(range.size() as usize).is_ok());
            let bytes = range.and_then(|range| checked_read::copy(range).ok());
            let loaded = bytes.and_then(|bytes| self.session.loaded(bytes, listed.debug_object).ok());
            source.remember(listed, loaded.as_ref().map(|loaded| loaded.id));
            if let Some(loaded) = loaded {
                let outcome = state.memory.loaded(loaded);
                self.notify(outcome);
            }
        }
    }

    fn notify(&self, outcome: Outcome) {
        for id in outcome.freed {
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
            if state.sources[slot].as_ref().is_some_and(|source| !source.detoured) {
                self.read_list(&mut state, slot);
            }
        }
        let outcome = state.memory.executable(range, how);
        self.notify(outcome);
    }

    /// Memory of an LLVM is about to be no longer executable.
    pub(crate) fn not_executable(&self, range: AddressRange) {
        let outcome = self.lock().memory.not_executable(range);
        self.notify(outcome);
        self.session.changing(range);
    }

    /// LLVM has handed an `.eh_frame` to the unwinder.
    pub(crate) fn eh_frame_registered(&self, address: Address) {
        let outcome = self.lock().memory.eh_frame_registered(address);
        self.notify(outcome);
    }

    /// Memory of an LLVM is about to be unmapped. Returns whether that was done here, by keeping the addresses reserved.
    pub(crate) fn unmapping(&self, range: AddressRange) -> bool {
        let mut state = self.lock();
        let held_code = state.memory.has_executable(range);
        let outcome = state.memory.not_executable(range);
        self.notify(outcome);
        self.session.unmapping(range);
        held_code && self.session.is_enabled(SinkKind::PerfMap) && state.reserve(range)
    }
}

impl State {
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
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(anonymous_executable).collect()
}

/// `7f12a000-7f12b000 r-xp 00000000 00:00 0` of `proc_pid_maps(5)`, if it has no name.
fn anonymous_executable(line: &str) -> Option<(AddressRange, Executable)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let protection = fields.next()?;
    if !protection.contains('x') || fields.nth(3).is_some() {
        return None;
    }
    let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).ok());
    let range = AddressRange::new(Address(start?), end?.checked_sub(start?)?)?;
    Some((range, if protection.contains('w') { Executable::Writable } else { Executable::Only }))
}

/// Our locks, held by the thread that forks: whatever another thread was doing under them is done. No handler of a signal
/// may run while it holds them.
struct HeldForFork(Option<(MutexGuard<'static, State>, ForkGuard, HostStateGuard)>);

// SAFETY: put in and taken out by the one thread that forks, between the handlers of `pthread_atfork`.
unsafe impl Sync for HeldForFork {}
// SAFETY: as above; only the address of the static moves between threads.
unsafe impl Send for HeldForFork {}

static HELD: Mutex<HeldForFork> = Mutex::new(HeldForFork(None));

fn follow_forks() {
    unsafe extern "C" fn prepare() {
        hooks::guarded(|_| {
            let Some(shim) = shim() else { return };
            let host_state = HostStateGuard::enter();
            let state = shim.lock();
            let guard = shim.session.lock_for_fork();
            HELD.lock().unwrap_or_else(PoisonError::into_inner).0 = Some((state, guard, host_state));
        });
    }
    unsafe extern "C" fn parent() {
        let _host_state = HostStateGuard::enter();
        drop(take_held());
    }
    unsafe extern "C" fn child() {
        let _host_state = HostStateGuard::enter();
        // What was taken is released even where our listening has ended.
        let Some((state, guard, host_state)) = take_held() else { return };
        hooks::guarded(|_| guard.in_child());
        drop(state);
        drop(host_state);
    }
    fn take_held() -> Option<(MutexGuard<'static, State>, ForkGuard, HostStateGuard)> {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).0.take()
    }
    // SAFETY: the handlers live as long as the library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
}
