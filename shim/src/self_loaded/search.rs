//! Looks for them in memory.

#![forbid(unsafe_code)]

use jitlisten::options::LlvmSource;
use jitlisten::{AddressRange, checked_read, log_line};

use super::waiting::Compiled;
use crate::copies::{LARGEST, piece};
use crate::placement::{Pattern, Placement};
use crate::state::{Shim, State};
use crate::thread::this_thread;

/// So much writable memory is looked at on one occasion.
const MOST_WRITABLE: u64 = 16 << 20;

impl Shim {
    /// Whether they are listened to: where one of the linkers is not, nothing shows that an object was meant for it.
    pub(crate) fn wants_self_loaded(&self) -> bool {
        let wanted = self.session.options().llvm;
        wanted.contains(LlvmSource::RuntimeDyld) && wanted.contains(LlvmSource::JitLink)
    }

    /// A module is about to be compiled to memory: the last one may be where nothing has announced it.
    pub(crate) fn compiling_to_memory(&self) {
        self.look_at_writable(&mut self.lock());
    }

    /// The process exits. Another thread that is in a hook, or was when a child came into being without handlers, is not waited for.
    pub(crate) fn look_for_self_loaded_once_more(&self) {
        if let Some(mut state) = self.try_lock() {
            self.look_at_writable(&mut state);
        }
    }

    /// A module was compiled to memory.
    pub(crate) fn compiled_to_memory(&self, object: Vec<u8>) {
        let Some(pattern) = Pattern::of(object).filter(|pattern| pattern.texts() > 0) else { return };
        let mut state = self.lock();
        state.self_loaded.push(pattern);
        if !std::mem::replace(&mut state.self_loaded.said[0], true) {
            log_line!(
                Info,
                "objects are compiled to memory (LLVMTargetMachineEmitToMemoryBuffer): those that the program loads by itself are looked \
                 for by their bytes"
            );
        }
    }

    /// All memory that may be executed and written.
    fn look_at_writable(&self, state: &mut State) {
        if state.self_loaded.waiting.is_empty() {
            return;
        }
        state.self_loaded.begin();
        let mut left = MOST_WRITABLE;
        let ranges: Vec<AddressRange> = state.memory.writable().collect();
        for range in ranges {
            if let Some(rest) = left.checked_sub(range.size()) {
                left = rest;
                self.look_in_memory(state, range);
            }
        }
    }

    /// `range` may be executed from now on.
    pub(crate) fn look_for_self_loaded(&self, state: &mut State, range: AddressRange) {
        if !state.self_loaded.waiting.is_empty() {
            state.self_loaded.begin();
            self.look_in_memory(state, range);
        }
    }

    /// `range` may soon be executed no longer: what was written there since it may is named before it goes.
    pub(crate) fn look_before_it_goes(&self, state: &mut State, range: AddressRange) {
        if !state.self_loaded.waiting.is_empty() && state.memory.is_writable(range) {
            self.look_for_self_loaded(state, range);
        }
    }

    fn look_in_memory(&self, state: &mut State, range: AddressRange) {
        // Inside `emit`, what a thread makes executable is JITLink's.
        if range.size() > LARGEST || state.emitted.is_in_emit(this_thread()) {
            return;
        }
        let Some(code) = piece(range) else { return };
        let around = state.around(range);
        let read = |range| checked_read::copy(range).ok();
        let is_free = |range| state.memory.is_free(range);
        let place = |pattern: &Pattern| pattern.place(&code, &around, &read, &is_free, false);
        let find = |(index, compiled): (usize, &Compiled)| {
            let placement = place(&compiled.pattern)?;
            // All of it or nothing: the program has no reason to leave a part of it out.
            (placement.text.len() == compiled.pattern.texts()).then_some((index, placement))
        };
        let found: Vec<(usize, Placement)> = state.self_loaded.waiting.iter().enumerate().filter_map(find).collect();
        if found.is_empty() {
            return;
        }
        // JITLink may have linked its like here, and which one was not known.
        let linked: Vec<Placement> = state.emitted.patterns().filter_map(place).collect();
        // The same object twice is one; equal code of two others cannot be distinguished.
        let object = |index: usize| state.self_loaded.waiting[index].pattern.object();
        let overlap = |one: &Placement, other: &Placement| {
            one.text.iter().any(|text| other.text.iter().any(|other| text.overlaps(*other)))
        };
        let is_certain = |(index, placement): &(usize, Placement)| {
            let is_alone = found.iter().all(|(other, further)| {
                other == index || !overlap(placement, further) || (index < other && object(*index) == object(*other))
            });
            is_alone && !linked.iter().any(|other| overlap(placement, other))
        };
        let mut certain: Vec<usize> = (0..found.len()).filter(|&at| is_certain(&found[at])).collect();
        let said = &mut state.self_loaded.said[1];
        if certain.is_empty() && !std::mem::replace(said, true) {
            log_line!(
                Info,
                "{} objects that were compiled to memory have equal code, and no names. Of others like them nothing will be said",
                found.len() + linked.len()
            );
        }
        // Taken out from behind.
        certain.sort_by_key(|&at| std::cmp::Reverse(found[at].0));
        for at in certain {
            let (index, placement) = &found[at];
            let Some(compiled) = state.self_loaded.waiting.remove(*index) else { continue };
            let sections = placement.sections.iter().filter(|(_, range)| placement.text.contains(range));
            let sections: Vec<(usize, AddressRange)> = sections.copied().collect();
            if let Ok(loaded) = self.session.linked(compiled.pattern.into_debug_object(&sections)) {
                self.loaded(state, loaded);
            }
        }
    }
}
