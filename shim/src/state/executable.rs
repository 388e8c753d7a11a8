//! Events: memory becomes executable, or stops being executable.

use jitlisten::options::SinkKind;
use jitlisten::plumbing::{Executable, MapsLine, mappings_in};
use jitlisten::{Address, AddressRange};

use super::libraries::unless_closing;
use super::{Shim, State};
use crate::llvm::source::Source;
use crate::process::held::Mapped;
use crate::process::next;

/// Maximum number of freed code ranges whose addresses stay reserved. A perf map cannot record that code was freed, so
/// its addresses must not be reused soon.
const MAX_RESERVED_RANGES: usize = 4096;

impl Shim {
    /// Starts to observe the memory of a source, and reports code memory that already exists. The library of `slot`
    /// must be relocated.
    pub(super) fn observe_memory(&self, state: &mut State, slot: usize, mapped: Mapped<'_>) {
        if state.hook_memory(slot, mapped) {
            for (range, kind) in executable_memory() {
                let outcome = self.session.executable(range, kind);
                self.note(state, &outcome);
            }
        }
    }

    /// Reports executable memory of an LLVM to the session, and searches it for pending objects.
    pub(crate) fn executable(&self, range: AddressRange, kind: Executable) {
        self.find_unwinders();
        let mut state = self.lock();
        for slot in 0..state.sources.len() {
            state.restore_memory_hooks(slot);
            if state.sources[slot].as_ref().is_some_and(|source| !source.detoured) {
                self.read_list(&mut state, slot);
            }
        }
        let outcome = self.session.executable(range, kind);
        self.note(&mut state, &outcome);
        self.search_for_copies(&mut state, range);
        self.search_for_emitted(&mut state, range);
        self.search_for_self_loaded(&mut state, range);
        self.process_overdue(&mut state);
    }

    /// Examines memory after `mremap(2)`, because it may contain code.
    pub(crate) fn examine_moved(&self, range: AddressRange) {
        let mut state = self.lock();
        self.query_executable(&mut state, range);
        self.search_for_emitted(&mut state, range);
    }

    /// Queries the kernel about text ranges that are not known to be executable.
    pub(crate) fn query_unknown(&self, state: &mut State, texts: &[AddressRange]) {
        for &text in texts {
            if !self.session.ledger(|ledger| ledger.has_executable(text)) {
                self.query_executable(state, text);
            }
        }
    }

    /// Queries the kernel for the executable parts of `range`, and records them.
    pub(super) fn query_executable(&self, state: &mut State, range: AddressRange) {
        let mappings = mappings_in(range).ok().flatten().unwrap_or_default();
        for mapping in mappings.into_iter().filter(|mapping| mapping.executable) {
            let is_immutable = !mapping.writable && !mapping.shared;
            let kind = if is_immutable { Executable::Only } else { Executable::Writable };
            let outcome = self.session.executable(mapping.range, kind);
            self.note(state, &outcome);
        }
    }

    /// Reports to the session that memory of an LLVM is about to lose execute permission.
    pub(crate) fn not_executable(&self, range: AddressRange) {
        let mut state = self.lock();
        self.search_before_removal(&mut state, range);
        let outcome = self.session.not_executable(range);
        self.note(&mut state, &outcome);
    }

    /// Reports a registered `.eh_frame` to the session, and searches for the object that it belongs to.
    pub(crate) fn eh_frame_registered(&self, address: Address) {
        let mut state = self.lock();
        self.search_near_table(&mut state, address);
        if self.session.ledger(|ledger| ledger.has_eh_frame(address)) {
            let outcome = self.session.eh_frame_registered(address);
            self.note(&mut state, &outcome);
        } else {
            self.search_by_table(&mut state, address);
        }
    }

    /// Reports to the session that memory of an LLVM is about to be replaced.
    pub(crate) fn replacing(&self, range: AddressRange) {
        let mut state = self.lock();
        self.search_before_removal(&mut state, range);
        self.record_unmapped(&mut state, range);
    }

    /// Reports to the session that executable memory is about to replace the memory in `range`. It may be a second
    /// mapping of the code of objects pending there.
    pub(crate) fn replacing_with_code(&self, range: AddressRange) {
        let mut state = self.lock();
        self.search_before_removal(&mut state, range);
        state.allocated.remove(range);
        let outcome = self.session.replaced_by_code(range);
        self.note(&mut state, &outcome);
    }

    /// Frees the objects in `range`, whose memory is unmapped.
    fn record_unmapped(&self, state: &mut State, range: AddressRange) {
        state.allocated.remove(range);
        let outcome = self.session.unmapped(range);
        self.note(state, &outcome);
    }

    /// Checks the memory hooks before a module is compiled: other tools may have changed the slots since the last one.
    pub(crate) fn compiling(&self) {
        let mut state = self.lock();
        for slot in 0..state.sources.len() {
            state.restore_memory_hooks(slot);
        }
    }

    /// Reports to the session that memory of an LLVM is about to be unmapped. Returns true if the memory was replaced
    /// with a reservation, so that it must not be unmapped.
    pub(crate) fn unmapping(&self, range: AddressRange) -> bool {
        let mut state = self.lock();
        self.search_before_removal(&mut state, range);
        let held_code = self.session.ledger(|ledger| ledger.has_executable(range));
        self.record_unmapped(&mut state, range);
        held_code && self.session.is_enabled(SinkKind::PerfMap) && state.reserve(range)
    }
}

impl State {
    /// Patches the slots of a source again, if other tools have changed them. Does nothing while a library is being
    /// closed, because it may be this one.
    pub(super) fn restore_memory_hooks(&mut self, slot: usize) {
        if self.sources[slot].as_ref().is_some_and(Source::is_listening) {
            unless_closing(self, |state, mapped| _ = state.hook_memory(slot, mapped));
        }
    }

    /// Patches the slots of a source, whose library must be relocated, and forwards to the functions that other tools
    /// have stored there. Returns true on the first call.
    pub(super) fn hook_memory(&mut self, slot: usize, mapped: Mapped<'_>) -> bool {
        let Some(source) = self.sources.get_mut(slot).and_then(Option::as_mut) else { return false };
        let (is_first, foreign) = source.hook_memory(mapped);
        for (function, address) in foreign {
            self.next_owners[function as usize] = self.libraries.library_at(address);
            next::set(function, address);
        }
        is_first
    }

    /// Frees the memory and keeps its addresses reserved. If there are too many reservations, the oldest is released.
    fn reserve(&mut self, range: AddressRange) -> bool {
        if !remap_inaccessible(range) {
            return false;
        }
        self.reserved_ranges.push_back(range);
        if self.reserved_ranges.len() > MAX_RESERVED_RANGES
            && let Some(oldest) = self.reserved_ranges.pop_front()
        {
            // SAFETY: the owner has unmapped this range. It has been inaccessible since then, and has no other owner.
            unsafe { libc::munmap(oldest.start().0 as *mut _, oldest.size() as usize) };
        }
        true
    }
}

/// Replaces the mapping with an inaccessible reservation, which frees its memory.
fn remap_inaccessible(range: AddressRange) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let (start, size) = (range.start().0 as *mut _, range.size() as usize);
    // SAFETY: the owner of the range is unmapping it in this very call.
    let mapped = unsafe { libc::mmap(start, size, libc::PROT_NONE, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

/// Anonymous executable memory of the process, where code may have been compiled before observation began.
fn executable_memory() -> Vec<(AddressRange, Executable)> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let anonymous = MapsLine::parse_all(&maps).filter(|line| line.is_executable() && line.path.is_empty());
    let with_kind =
        |line: MapsLine<'_>| (line.range, if line.is_writable() { Executable::Writable } else { Executable::Only });
    anonymous.map(with_kind).collect()
}
