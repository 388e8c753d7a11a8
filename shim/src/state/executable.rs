//! Memory becomes executable, or not executable.

use jitlisten::options::SinkKind;
use jitlisten::plumbing::{Executable, MapsLine, mappings_of};
use jitlisten::{Address, AddressRange};

use super::libraries::unless_closing;
use super::{Shim, State};
use crate::llvm::source::Source;
use crate::process::held::Mapped;
use crate::process::next;

/// How many ranges of freed code keep their addresses, so that a perf map, which cannot say "gone", stays true.
const RESERVED_RANGES: usize = 4096;

impl Shim {
    /// Starts listening to the memory of a source. `slot`'s library must be relocated.
    pub(super) fn catch_up(&self, state: &mut State, slot: usize, mapped: Mapped<'_>) {
        if state.hook_memory(slot, mapped) {
            for (range, how) in executable_memory() {
                let outcome = self.session.executable(range, how);
                self.note(state, &outcome);
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
        let outcome = self.session.executable(range, how);
        self.note(&mut state, &outcome);
        self.look_for_copies(&mut state, range);
        self.look_for_emitted(&mut state, range);
        self.look_for_self_loaded(&mut state, range);
        self.look_at_overdue(&mut state);
    }

    /// Memory of the process has moved, and may hold code.
    pub(crate) fn look_at(&self, range: AddressRange) {
        let mut state = self.lock();
        self.ask_kernel(&mut state, range);
        self.look_for_emitted(&mut state, range);
    }

    /// Asks the kernel whether these may run, where that is not known.
    pub(crate) fn look_unless_known(&self, state: &mut State, texts: &[AddressRange]) {
        for &text in texts {
            if !self.session.ledger(|ledger| ledger.has_executable(text)) {
                self.ask_kernel(state, text);
            }
        }
    }

    /// Asks the kernel which of `range` may run.
    pub(super) fn ask_kernel(&self, state: &mut State, range: AddressRange) {
        let mappings = mappings_of(range).ok().flatten().unwrap_or_default();
        for mapping in mappings.into_iter().filter(|mapping| mapping.executable) {
            let is_fixed = !mapping.writable && !mapping.shared;
            let how = if is_fixed { Executable::Only } else { Executable::Writable };
            let outcome = self.session.executable(mapping.range, how);
            self.note(state, &outcome);
        }
    }

    /// Memory of an LLVM is about to be no longer executable.
    pub(crate) fn not_executable(&self, range: AddressRange) {
        let mut state = self.lock();
        self.look_before_it_goes(&mut state, range);
        let outcome = self.session.not_executable(range);
        self.note(&mut state, &outcome);
    }

    /// LLVM has handed an `.eh_frame` to the unwinder.
    pub(crate) fn eh_frame_registered(&self, address: Address) {
        let mut state = self.lock();
        self.look_beside_table(&mut state, address);
        if self.session.ledger(|ledger| ledger.has_eh_frame(address)) {
            let outcome = self.session.eh_frame_registered(address);
            self.note(&mut state, &outcome);
        } else {
            self.look_by_table(&mut state, address);
        }
    }

    /// Memory of an LLVM is about to be replaced by other memory.
    pub(crate) fn replacing(&self, range: AddressRange) {
        let mut state = self.lock();
        self.look_before_it_goes(&mut state, range);
        self.unmapped(&mut state, range);
    }

    /// The same, where what comes may be executed: it may be the code that objects wait for there, mapped twice.
    pub(crate) fn replacing_with_code(&self, range: AddressRange) {
        let mut state = self.lock();
        self.look_before_it_goes(&mut state, range);
        state.allocated.remove(range);
        let outcome = self.session.replaced_by_code(range);
        self.note(&mut state, &outcome);
    }

    fn unmapped(&self, state: &mut State, range: AddressRange) {
        state.allocated.remove(range);
        let outcome = self.session.unmapped(range);
        self.note(state, &outcome);
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
        let held_code = self.session.ledger(|ledger| ledger.has_executable(range));
        self.unmapped(&mut state, range);
        held_code && self.session.is_enabled(SinkKind::PerfMap) && state.reserve(range)
    }
}

impl State {
    /// Takes the slots of a source back, if others have changed them. Not while a library is closed: it may be this
    /// one.
    pub(super) fn listen_again(&mut self, slot: usize) {
        if self.sources[slot].as_ref().is_some_and(Source::is_listening) {
            unless_closing(self, |state, mapped| _ = state.hook_memory(slot, mapped));
        }
    }

    /// Changes the slots of a source, whose library must be relocated, and remembers what others have put there.
    /// Returns whether it was the first time.
    pub(super) fn hook_memory(&mut self, slot: usize, mapped: Mapped<'_>) -> bool {
        let Some(source) = self.sources.get_mut(slot).and_then(Option::as_mut) else { return false };
        let (first, found) = source.hook_memory(mapped);
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
