//! Handles changes of executable memory: memory becomes executable, or stops being executable.

use std::sync::atomic::Ordering;

use jitlisten::options::SinkKind;
use jitlisten::plumbing::{Executable, MapsLine, mappings_in};
use jitlisten::{Address, AddressRange};

use super::libraries::unless_closing;
use super::{Shim, State};
use crate::process::forward;
use crate::process::lookup;
use crate::process::mapped_proof::Mapped;
use crate::source::Source;
use crate::trackers::copies;
use crate::trackers::memory::MAX_SEARCHED_BYTES;

/// Maximum number of freed code ranges whose addresses stay reserved. A perf map cannot record that code was freed, so
/// these addresses must not be reused soon.
const MAX_RESERVED_RANGES: usize = 4096;

impl Shim {
    /// Starts to observe a source's memory, and reports executable memory that already exists. The source's library
    /// must be relocated.
    pub(super) fn observe_memory(&self, state: &mut State, slot: usize, mapped: Mapped<'_>) {
        if state.hook_memory(slot, mapped) {
            for (range, kind) in executable_memory() {
                let outcome = self.objects.executable(range, kind);
                self.record_outcome(state, &outcome);
            }
        }
    }

    /// Reports executable memory of an LLVM instance to the session, and searches it for pending objects.
    pub(crate) fn record_executable(&self, range: AddressRange, kind: Executable) {
        // Before copied code is found: asking libgcc about it would read LLVM's table of its first place, which is gone.
        self.detect_unwinders();
        let mut state = self.lock();
        for slot in 0..state.sources.len() {
            state.restore_memory_hooks(slot);
            if state.sources[slot].as_ref().is_some_and(Source::polls_list) {
                self.read_list(&mut state, slot);
            }
        }
        let outcome = self.objects.executable(range, kind);
        self.record_outcome(&mut state, &outcome);
        self.move_copied(&mut state, true, |pending, memory| copies::search_executable(pending, memory, range));
        self.locate(&mut state, |trackers, memory| trackers.emitted.search_executable(memory, range));
        if self.is_writable(range) {
            state.trackers.self_loaded.record_writable(range);
        }
        self.search_self_loaded(&mut state, &[range], MAX_SEARCHED_BYTES);
        self.process_overdue(&mut state);
        drop(state);
        // The first object of JITLink may have been found just now, and runs next.
        if lookup::UNWINDERS_PENDING.load(Ordering::Acquire) {
            self.detect_unwinders();
        }
    }

    /// Examines memory that `mremap(2)` has moved, because it may contain code.
    pub(crate) fn examine_moved(&self, range: AddressRange) {
        let mut state = self.lock();
        self.query_executable(&mut state, range);
        self.locate(&mut state, |trackers, memory| trackers.emitted.search_executable(memory, range));
    }

    /// Queries the kernel about those text ranges that are not yet known to be executable.
    pub(super) fn query_unknown_ranges(&self, state: &mut State, texts: &[AddressRange]) {
        for &text in texts {
            if !self.objects.ledger(|ledger| ledger.has_executable(text)) {
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
            let outcome = self.objects.executable(mapping.range, kind);
            self.record_outcome(state, &outcome);
        }
    }

    /// Reports to the session that LLVM's memory is about to lose execute permission.
    pub(crate) fn record_not_executable(&self, range: AddressRange) {
        let mut state = self.lock();
        self.search_before_removal(&mut state, range);
        let outcome = self.objects.not_executable(range);
        self.record_outcome(&mut state, &outcome);
    }

    /// Reports a registered `.eh_frame` to the session, and searches for the object that the table describes.
    pub(crate) fn record_eh_frame(&self, address: Address) {
        let mut state = self.lock();
        self.locate(&mut state, |trackers, memory| trackers.emitted.search_near_table(memory, address));
        if self.objects.ledger(|ledger| ledger.has_eh_frame(address)) {
            let outcome = self.objects.eh_frame_registered(address);
            self.record_outcome(&mut state, &outcome);
        } else {
            self.move_copied(&mut state, false, |pending, memory| copies::search_by_table(pending, memory, address));
        }
    }

    /// Reports to the session that LLVM's memory is about to be replaced.
    pub(crate) fn record_replacement(&self, range: AddressRange) {
        let mut state = self.lock();
        self.search_before_removal(&mut state, range);
        self.record_unmapped(&mut state, range);
    }

    /// Reports to the session that executable memory is about to replace the memory in `range`. The new memory may be a
    /// second mapping of the code of objects that are pending in `range`.
    pub(crate) fn record_code_replacement(&self, range: AddressRange) {
        let mut state = self.lock();
        self.search_before_removal(&mut state, range);
        state.allocated.remove(range);
        let outcome = self.objects.replaced_by_code(range);
        self.record_outcome(&mut state, &outcome);
    }

    /// Frees the objects in `range`, because their memory is unmapped.
    fn record_unmapped(&self, state: &mut State, range: AddressRange) {
        state.allocated.remove(range);
        let outcome = self.objects.unmapped(range);
        self.record_outcome(state, &outcome);
    }

    /// Checks the memory hooks before a module is compiled, because other tools may have changed the slots since the
    /// last check.
    pub(crate) fn recheck_memory_hooks(&self) {
        let mut state = self.lock();
        for slot in 0..state.sources.len() {
            state.restore_memory_hooks(slot);
        }
    }

    /// Reports to the session that LLVM's memory is about to be unmapped. Returns true if the memory was replaced with
    /// a reservation, so that it must not be unmapped.
    pub(crate) fn record_unmapping(&self, range: AddressRange) -> bool {
        let mut state = self.lock();
        self.search_before_removal(&mut state, range);
        let held_code = self.objects.ledger(|ledger| ledger.has_executable(range));
        self.record_unmapped(&mut state, range);
        held_code && self.objects.is_enabled(SinkKind::PerfMap) && state.reserve(range)
    }
}

impl State {
    /// Patches a source's slots again if other tools have changed them. Does nothing while a library is being closed,
    /// because that may be the source's library.
    pub(super) fn restore_memory_hooks(&mut self, slot: usize) {
        if self.sources[slot].as_ref().is_some_and(Source::memory_is_hooked) {
            unless_closing(self, |state, mapped| _ = state.hook_memory(slot, mapped));
        }
    }

    /// Patches a source's slots and forwards to any functions that other tools had stored there. The library must be
    /// relocated. Returns true on the first call.
    pub(super) fn hook_memory(&mut self, slot: usize, mapped: Mapped<'_>) -> bool {
        let Some(source) = self.sources.get_mut(slot).and_then(Option::as_mut) else { return false };
        let (is_first, foreign) = source.hook_memory(mapped);
        for (function, address) in foreign {
            self.next_owners[function as usize] = self.libraries.library_at(address);
            forward::set(function, address);
        }
        is_first
    }

    /// Frees the memory and keeps its addresses reserved. If there are too many reservations, releases the oldest.
    fn reserve(&mut self, range: AddressRange) -> bool {
        if !remap_inaccessible(range) {
            return false;
        }
        self.reserved_ranges.push_back(range);
        if self.reserved_ranges.len() > MAX_RESERVED_RANGES
            && let Some(oldest) = self.reserved_ranges.pop_front()
        {
            // SAFETY: the owner has unmapped this range. It has been inaccessible since then, and nothing else uses it.
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

/// Anonymous executable memory of the process, which may contain code that was compiled before observation began.
fn executable_memory() -> Vec<(AddressRange, Executable)> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let anonymous = MapsLine::parse_all(&maps).filter(|line| line.is_executable() && line.path.is_empty());
    let with_kind =
        |line: MapsLine<'_>| (line.range, if line.is_writable() { Executable::Writable } else { Executable::Only });
    anonymous.map(with_kind).collect()
}
