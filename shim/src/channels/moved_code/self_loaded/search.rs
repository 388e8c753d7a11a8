//! Search of memory for objects that the program loads itself.

#![forbid(unsafe_code)]

use jitlisten::options::LlvmSource;
use jitlisten::{AddressRange, log_line};

use crate::channels::moved_code::copies::{MAX_SEARCHED_BYTES, max_reach, read_memory, read_piece};
use crate::placement::{Around, Pattern, Piece, Placement, certain};
use crate::process::this_thread;
use crate::state::{Shim, State};

/// Maximum bytes of writable memory searched on one occasion.
const MAX_WRITABLE_BYTES: u64 = 16 << 20;
/// Maximum bytes searched on one occasion, for all objects together.
const MAX_TOTAL_BYTES: u64 = 256 << 20;

impl Shim {
    /// Returns true if self-loaded objects are searched for. Both linkers must be observed: otherwise an object that is
    /// meant for the unobserved linker would be mistaken for a self-loaded one.
    pub(crate) fn wants_self_loaded(&self) -> bool {
        let enabled_sources = self.session.options().llvm;
        enabled_sources.contains(LlvmSource::RuntimeDyld) && enabled_sources.contains(LlvmSource::JitLink)
    }

    /// Searches for the objects compiled so far before a module is compiled to memory, because nothing may have
    /// announced their code.
    pub(crate) fn compiling_to_memory(&self) {
        let state = &mut *self.lock();
        if state.self_loaded.is_idle() {
            return;
        }
        self.free_overwritten(state);
        let ranges = self.session.ledger(|ledger| state.self_loaded.next_writable(ledger));
        self.search_self_loaded_objects(state, &ranges, MAX_WRITABLE_BYTES);
    }

    /// Searches writable code a last time when the process exits. Does not wait for a thread that is inside a hook, or
    /// that was inside a hook of the parent process when this child was forked without handlers.
    pub(crate) fn look_for_self_loaded_once_more(&self) {
        if self.session.is_unlocked_in_this_process()
            && let Some(mut state) = self.try_lock()
        {
            self.free_overwritten(&mut state);
            let ranges: Vec<AddressRange> = self.session.ledger(|ledger| ledger.writable().collect());
            self.search_self_loaded_objects(&mut state, &ranges, MAX_WRITABLE_BYTES);
        }
    }

    /// Starts to search for an object compiled to memory.
    pub(crate) fn compiled_to_memory(&self, object: Vec<u8>) {
        let Some(pattern) = Pattern::of(object).filter(|pattern| pattern.texts() > 0) else { return };
        let mut state = self.lock();
        state.self_loaded.push(pattern);
        if !std::mem::replace(&mut state.self_loaded.logged_any, true) {
            log_line!(
                Info,
                "objects are compiled to memory (LLVMTargetMachineEmitToMemoryBuffer): searching for the code that the \
                 program loads itself"
            );
        }
    }

    /// Searches `range`, which has become executable, for self-loaded objects.
    pub(crate) fn search_for_self_loaded(&self, state: &mut State, range: AddressRange) {
        if self.is_writable(range) {
            state.self_loaded.record_writable(range);
        }
        self.search_self_loaded_objects(state, &[range], MAX_SEARCHED_BYTES);
    }

    /// Searches `range`, which may be about to lose execute permission: code written there since it became executable
    /// is named before it is freed.
    pub(crate) fn search_before_removal(&self, state: &mut State, range: AddressRange) {
        if self.is_writable(range) {
            self.search_self_loaded_objects(state, &[range], MAX_SEARCHED_BYTES);
        }
        state.self_loaded.forget_doubtful(range);
    }

    /// Frees objects whose code was overwritten, because writable memory can be reused without a system call.
    fn free_overwritten(&self, state: &mut State) {
        for id in state.self_loaded.located.take_overwritten() {
            self.session.freeing(id);
        }
    }

    /// Searches `ranges` for self-loaded objects, as long as their total size is at most `max_bytes`.
    fn search_self_loaded_objects(&self, state: &mut State, ranges: &[AddressRange], max_bytes: u64) {
        // Inside `emit`, memory that a thread makes executable belongs to JITLink.
        if state.self_loaded.unlocated.is_empty() || state.emitted.is_in_emit(this_thread()) {
            return;
        }
        state.self_loaded.begin_search();
        let max_reach = max_reach(state.self_loaded.unlocated.iter().map(|compiled| &compiled.pattern));
        let mut size = 0;
        let fits_limit = |range: &&AddressRange| {
            let fits = size + range.size() <= max_bytes;
            size += if fits { range.size() } else { 0 };
            fits
        };
        let region = |&range: &AddressRange| Some((read_piece(range)?, state.memory_around(range, max_reach)));
        let regions: Vec<(Piece, Around)> = ranges.iter().filter(fits_limit).filter_map(region).collect();
        let mut matches: Vec<(usize, Placement)> = Vec::new();
        // Newest first: the object compiled last is usually loaded next.
        let candidates =
            state.self_loaded.unlocated.iter().enumerate().rev().filter(|(_, compiled)| !compiled.is_doubtful);
        for (index, compiled) in candidates.take((MAX_TOTAL_BYTES / size.max(1)) as usize) {
            let is_free = |range| self.is_free(range) && !state.self_loaded.doubtful_ranges.overlaps(range);
            let fits =
                |(code, around): &(Piece, Around)| compiled.pattern.place(code, around, &read_memory, &is_free, false);
            matches.extend(regions.iter().filter_map(fits).map(|placement| (index, placement)));
        }
        if !matches.is_empty() {
            self.register_located_objects(state, matches);
        }
    }

    /// Registers the located objects with the session. Some may match only in part, or in several places.
    fn register_located_objects(&self, state: &mut State, matches: Vec<(usize, Placement)>) {
        let is_best_match = certain(matches.iter().map(|(_, placement)| placement));
        let unlocated = &state.self_loaded.unlocated;
        let is_certain = |position: usize| {
            let (index, placement) = &matches[position];
            let is_single = matches.iter().filter(|(other, _)| other == index).count() == 1;
            // Objects that were not searched for, and those of JITLink, may match there as well.
            let is_matched = |other: usize| matches.iter().any(|(index, _)| *index == other);
            let competitors = unlocated.iter().enumerate().filter(|&(other, _)| !is_matched(other));
            let mut competitors = competitors.map(|(_, compiled)| &compiled.pattern).chain(state.emitted.patterns());
            is_best_match[position]
                && is_single
                && !competitors.any(|other| other.may_also_be_at(placement, &read_memory))
        };
        // All text sections must match: the program has no reason to omit one.
        let is_whole =
            |position: usize| matches[position].1.text.len() == unlocated[matches[position].0].pattern.texts();
        let (certain, doubtful): (Vec<usize>, Vec<usize>) =
            (0..matches.len()).filter(|&position| is_whole(position)).partition(|&position| is_certain(position));
        if !doubtful.is_empty() && !std::mem::replace(&mut state.self_loaded.logged_doubtful, true) {
            log_line!(
                Info,
                "objects compiled to memory have equal code, or are in two places; they stay unnamed (reported once)"
            );
        }
        for position in doubtful {
            let (index, placement) = &matches[position];
            state.self_loaded.mark_doubtful(*index, &placement.text);
        }
        // Remove from the back, so that the other indices stay valid.
        let mut certain: Vec<&(usize, Placement)> = certain.into_iter().map(|position| &matches[position]).collect();
        certain.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, placement) in certain {
            let Some(compiled) = state.self_loaded.unlocated.remove(*index) else { continue };
            let sections = placement.sections.iter().filter(|(_, range)| placement.text.contains(range));
            let sections: Vec<(usize, AddressRange)> = sections.copied().collect();
            if let Ok(loaded) = self.session.linked(compiled.pattern.into_debug_object(&sections), None) {
                let (id, first) = (loaded.id, placement.text[0]);
                self.record_loaded(state, loaded);
                if self.is_writable(first) {
                    state.self_loaded.located.add(id, first);
                }
            }
        }
    }
}
