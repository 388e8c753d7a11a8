//! Memory becomes executable, or not executable.

use jitlisten::options::SinkKind;
use jitlisten::plumbing::{MapsLine, mappings_of};
use jitlisten::{Address, AddressRange};

use super::libraries::may_be_closing;
use super::{Shim, State};
use crate::llvm::source::Source;
use crate::memory::bookkeeping::{Executable, Outcome};
use crate::memory::code_pages;
use crate::process::next;

/// How many ranges of freed code keep their addresses, so that a perf map, which cannot say "gone", stays true.
const RESERVED_RANGES: usize = 4096;

impl Shim {
    /// Starts listening to the memory of a source. `slot`'s library must be relocated.
    pub(super) fn catch_up(&self, state: &mut State, slot: usize) {
        // SAFETY: callers see to it that the library is mapped and relocated.
        if unsafe { state.hook_memory(slot) } {
            for (range, how) in executable_memory() {
                let outcome = state.executable(range, how);
                self.notify(state, outcome);
            }
        }
    }

    /// Memory of an LLVM became executable.
    pub(crate) fn executable(&self, range: AddressRange, how: Executable) {
        self.look_for_unwinders();
        let mut state = self.lock();
        for slot in 0..state.sources.len() {
            state.listen_again(slot);
            if state.sources[slot].as_ref().is_some_and(|source| !source.detoured) {
                self.read_list(&mut state, slot);
            }
        }
        let outcome = state.executable(range, how);
        self.notify(&mut state, outcome);
        self.look_for_copies(&mut state, range);
        self.look_for_emitted(&mut state, range);
        self.look_for_self_loaded(&mut state, range);
        self.look_at_overdue(&mut state);
    }

    /// Memory of the process has moved, and may hold code.
    pub(crate) fn look_at(&self, range: AddressRange) {
        let mut state = self.lock();
        let outcome = state.look_at(range);
        self.notify(&mut state, outcome);
        self.look_for_emitted(&mut state, range);
    }

    /// Asks the kernel whether these may run, where that is not known.
    pub(crate) fn look_unless_known(&self, state: &mut State, texts: &[AddressRange]) {
        for &text in texts {
            if !state.memory.has_executable(text) {
                let outcome = state.look_at(text);
                self.notify(state, outcome);
            }
        }
    }

    /// Memory of an LLVM is about to be no longer executable.
    pub(crate) fn not_executable(&self, range: AddressRange) {
        let mut state = self.lock();
        self.look_before_it_goes(&mut state, range);
        let outcome = state.not_executable(range);
        self.notify(&mut state, outcome);
        drop(state);
        self.session.changing(range);
    }

    /// LLVM has handed an `.eh_frame` to the unwinder.
    pub(crate) fn eh_frame_registered(&self, address: Address) {
        let mut state = self.lock();
        self.look_beside_table(&mut state, address);
        if state.memory.has_eh_frame(address) {
            let outcome = state.memory.eh_frame_registered(address);
            self.notify(&mut state, outcome);
        } else {
            self.look_by_table(&mut state, address);
        }
    }

    /// Memory of an LLVM is about to be replaced by other memory.
    pub(crate) fn replacing(&self, range: AddressRange) {
        let mut state = self.lock();
        self.look_before_it_goes(&mut state, range);
        let outcome = state.unmapped(range);
        self.notify(&mut state, outcome);
        self.session.unmapping(range);
    }

    /// The same, where what comes may be executed: it may be the code that objects wait for there, mapped twice.
    pub(crate) fn replacing_with_code(&self, range: AddressRange) {
        let mut state = self.lock();
        self.look_before_it_goes(&mut state, range);
        state.allocated.remove(range);
        let outcome = state.not_executable(range);
        self.notify(&mut state, outcome);
        self.session.unmapping(range);
    }

    /// A module is about to be compiled: other tools may have changed the slots since the last one.
    pub(crate) fn compiling(&self) {
        let mut state = self.lock();
        for slot in 0..state.sources.len() {
            state.listen_again(slot);
        }
    }

    /// Memory of an LLVM is about to be unmapped. Returns whether that was done here, by keeping the addresses
    /// reserved.
    pub(crate) fn unmapping(&self, range: AddressRange) -> bool {
        let mut state = self.lock();
        self.look_before_it_goes(&mut state, range);
        let held_code = state.memory.has_executable(range);
        let outcome = state.unmapped(range);
        self.notify(&mut state, outcome);
        self.session.unmapping(range);
        held_code && self.session.is_enabled(SinkKind::PerfMap) && state.reserve(range)
    }
}

impl State {
    pub(super) fn executable(&mut self, range: AddressRange, how: Executable) -> Outcome {
        code_pages::insert(range);
        self.memory.executable(range, how)
    }

    pub(super) fn not_executable(&mut self, range: AddressRange) -> Outcome {
        code_pages::remove(range);
        self.memory.not_executable(range)
    }

    fn unmapped(&mut self, range: AddressRange) -> Outcome {
        self.allocated.remove(range);
        code_pages::remove(range);
        self.memory.unmapped(range)
    }

    /// Asks the kernel which of `range` may run.
    pub(crate) fn look_at(&mut self, range: AddressRange) -> Outcome {
        let mut all = Outcome::default();
        let mappings = mappings_of(range).ok().flatten().unwrap_or_default();
        for mapping in mappings.into_iter().filter(|mapping| mapping.executable) {
            let is_fixed = !mapping.writable && !mapping.shared;
            let how = if is_fixed { Executable::Only } else { Executable::Writable };
            all.and(self.executable(mapping.range, how));
        }
        all
    }

    /// Takes the slots of a source back, if others have changed them. Not while a library is closed: it may be this
    /// one.
    pub(super) fn listen_again(&mut self, slot: usize) {
        if self.sources[slot].as_ref().is_some_and(Source::is_listening) && !may_be_closing() {
            // SAFETY: sources are of mapped libraries, and it was relocated when it was hooked for the first time.
            unsafe { self.hook_memory(slot) };
        }
    }

    /// Changes the slots of a source, and remembers what others have put there. Returns whether it was the first time.
    ///
    /// # Safety
    /// The library must be mapped and relocated.
    pub(super) unsafe fn hook_memory(&mut self, slot: usize) -> bool {
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
