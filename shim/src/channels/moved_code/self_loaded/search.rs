//! Searches memory for objects that the program loads itself.

#![forbid(unsafe_code)]

use jitlisten::options::LlvmSource;
use jitlisten::{AddressRange, log_line};

use crate::channels::moved_code::copies::{LARGEST, piece, reach, read};
use crate::placement::{Around, Pattern, Piece, Placement, certain};
use crate::process::this_thread;
use crate::state::{Shim, State};

/// So much memory that may be written is looked at on one occasion.
const MOST_WRITABLE: u64 = 16 << 20;
/// So many bytes are searched on one occasion, for all objects together.
const MOST_SEARCHED: u64 = 256 << 20;

impl Shim {
    /// Whether they are observed: where one of the linkers is not, nothing shows that an object was meant for it.
    pub(crate) fn wants_self_loaded(&self) -> bool {
        let wanted = self.session.options().llvm;
        wanted.contains(LlvmSource::RuntimeDyld) && wanted.contains(LlvmSource::JitLink)
    }

    /// A module is about to be compiled to memory: the last one may be where nothing has announced it.
    pub(crate) fn compiling_to_memory(&self) {
        let state = &mut *self.lock();
        if state.self_loaded.is_idle() {
            return;
        }
        self.free_overwritten(state);
        let ranges = self.session.ledger(|ledger| state.self_loaded.next_writable(ledger));
        self.look_in_ranges(state, &ranges, MOST_WRITABLE);
    }

    /// The process exits. Another thread that is in a hook, or was when a child came into being without handlers, is
    /// not waited for.
    pub(crate) fn look_for_self_loaded_once_more(&self) {
        if self.session.is_free_here()
            && let Some(mut state) = self.try_lock()
        {
            self.free_overwritten(&mut state);
            let ranges: Vec<AddressRange> = self.session.ledger(|ledger| ledger.writable().collect());
            self.look_in_ranges(&mut state, &ranges, MOST_WRITABLE);
        }
    }

    /// A module was compiled to memory.
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

    /// `range` may be executed from now on.
    pub(crate) fn look_for_self_loaded(&self, state: &mut State, range: AddressRange) {
        if self.is_writable(range) {
            state.self_loaded.note_writable(range);
        }
        self.look_in_ranges(state, &[range], LARGEST);
    }

    /// `range` may soon be executed no longer: what was written there since it may is named before it goes.
    pub(crate) fn look_before_it_goes(&self, state: &mut State, range: AddressRange) {
        if self.is_writable(range) {
            self.look_in_ranges(state, &[range], LARGEST);
        }
        state.self_loaded.forget_doubts(range);
    }

    /// Memory that may be written needs no call to be used again: whose code is not there any more is gone.
    fn free_overwritten(&self, state: &mut State) {
        for id in state.self_loaded.placed.gone() {
            self.session.freeing(id);
        }
    }

    /// Looks in these, as long as they are not larger than `most` together.
    fn look_in_ranges(&self, state: &mut State, ranges: &[AddressRange], most: u64) {
        // Inside `emit`, what a thread makes executable is JITLink's.
        if state.self_loaded.waiting.is_empty() || state.emitted.is_in_emit(this_thread()) {
            return;
        }
        state.self_loaded.begin();
        let reach = reach(state.self_loaded.waiting.iter().map(|compiled| &compiled.pattern));
        let mut size = 0;
        let is_small = |range: &&AddressRange| {
            let is_small = size + range.size() <= most;
            size += if is_small { range.size() } else { 0 };
            is_small
        };
        let place = |&range: &AddressRange| Some((piece(range)?, state.around(range, reach)));
        let places: Vec<(Piece, Around)> = ranges.iter().filter(is_small).filter_map(place).collect();
        let mut found: Vec<(usize, Placement)> = Vec::new();
        // The youngest first: what was compiled last is loaded next.
        let wanted = state.self_loaded.waiting.iter().enumerate().rev().filter(|(_, compiled)| !compiled.is_doubtful);
        for (index, compiled) in wanted.take((MOST_SEARCHED / size.max(1)) as usize) {
            let is_free = |range| self.is_free(range) && !state.self_loaded.doubts.overlaps(range);
            let fits = |(code, around): &(Piece, Around)| compiled.pattern.place(code, around, &read, &is_free, false);
            found.extend(places.iter().filter_map(fits).map(|placement| (index, placement)));
        }
        if !found.is_empty() {
            self.found_self_loaded(state, found);
        }
    }

    /// Objects were found, some of them perhaps in part, or in several places.
    fn found_self_loaded(&self, state: &mut State, found: Vec<(usize, Placement)>) {
        let is_best = certain(found.iter().map(|(_, placement)| placement));
        let waiting = &state.self_loaded.waiting;
        let is_certain = |at: usize| {
            let (index, placement) = &found[at];
            let is_once = found.iter().filter(|(other, _)| other == index).count() == 1;
            // What was not looked for, or is JITLink's, may be there as well.
            let is_found = |other: usize| found.iter().any(|(index, _)| *index == other);
            let others = waiting.iter().enumerate().filter(|&(other, _)| !is_found(other));
            let mut others = others.map(|(_, compiled)| &compiled.pattern).chain(state.emitted.patterns());
            is_best[at] && is_once && !others.any(|other| other.may_also_be_at(placement, &read))
        };
        // All of it or nothing: the program has no reason to leave a part of it out.
        let is_whole = |at: usize| found[at].1.text.len() == waiting[found[at].0].pattern.texts();
        let (certain, doubtful): (Vec<usize>, Vec<usize>) =
            (0..found.len()).filter(|&at| is_whole(at)).partition(|&at| is_certain(at));
        if !doubtful.is_empty() && !std::mem::replace(&mut state.self_loaded.logged_doubtful, true) {
            log_line!(
                Info,
                "objects compiled to memory have equal code, or are in two places; they stay unnamed (reported once)"
            );
        }
        for at in doubtful {
            let (index, placement) = &found[at];
            state.self_loaded.doubt(*index, &placement.text);
        }
        // Taken out from behind.
        let mut certain: Vec<&(usize, Placement)> = certain.into_iter().map(|at| &found[at]).collect();
        certain.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        for (index, placement) in certain {
            let Some(compiled) = state.self_loaded.waiting.remove(*index) else { continue };
            let sections = placement.sections.iter().filter(|(_, range)| placement.text.contains(range));
            let sections: Vec<(usize, AddressRange)> = sections.copied().collect();
            if let Ok(loaded) = self.session.linked(compiled.pattern.into_debug_object(&sections), None) {
                let (id, first) = (loaded.id, placement.text[0]);
                self.loaded(state, loaded);
                if self.is_writable(first) {
                    state.self_loaded.placed.add(id, first);
                }
            }
        }
    }
}
