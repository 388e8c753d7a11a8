//! Finds in memory what JITLink has linked.

#![forbid(unsafe_code)]

use jitlisten::{AddressRange, checked_read, log_line};

use super::emitted::Emitted;
use crate::copies::{around, piece};
use crate::facts::{self, Count};
use crate::placement::{Pattern, Piece, Placement};
use crate::state::{Shim, State};
use crate::thread::this_thread;

/// Larger memory is not searched.
const LARGEST: u64 = 64 << 20;

impl Shim {
    /// An object is about to be linked by the LLVM in `slot`. Returns its number.
    pub(crate) fn emitted(&self, slot: usize, pattern: Option<Pattern>) -> Option<u64> {
        let mut state = self.lock();
        // The library runs, so it is relocated.
        self.prepare(&mut state, slot);
        if pattern.as_ref().is_none_or(|pattern| pattern.texts() > 0) {
            facts::count(slot, Count::ForJitLink);
        }
        let pattern = pattern.filter(|pattern| pattern.texts() > 0)?;
        state.self_loaded.linked(pattern.object());
        Some(state.emitted.push(slot, pattern))
    }

    /// `emit` has returned; the object may have been linked by now, or is when others are.
    pub(crate) fn emit_ends(&self, number: u64) {
        let mut state = self.lock();
        let emitted = state.emitted.waiting.iter_mut().find(|emitted| emitted.number == number);
        if let Some(emitted) = emitted {
            emitted.thread = None;
        }
    }

    /// `range` has become executable: looks there for what was linked.
    pub(crate) fn look_for_emitted(&self, state: &mut State, range: AddressRange) {
        if state.emitted.waiting.is_empty() || range.size() > LARGEST {
            return;
        }
        let thread = this_thread();
        let Some(code) = piece(range) else { return };
        let around = around(range);
        let mut found: Vec<(usize, Placement)> = Vec::new();
        for index in state.emitted.candidates(thread) {
            let is_inside = state.emitted.waiting[index].thread == Some(thread);
            if let Some(placement) = find(state, index, &code, &around, is_inside) {
                found.push((index, placement));
                if is_inside {
                    break;
                }
            }
        }
        // Equal objects cannot be distinguished.
        let overlap = |one: &Placement, other: &Placement| {
            one.text.iter().any(|text| other.text.iter().any(|other| text.overlaps(*other)))
        };
        let is_alone = |(index, placement): &(usize, Placement)| {
            !found.iter().any(|(other, further)| other != index && overlap(placement, further))
        };
        let mut alone: Vec<usize> = (0..found.len()).filter(|&at| is_alone(&found[at])).collect();
        if alone.len() < found.len() {
            log_line!(Info, "{} objects for JITLink are equal, and have no names", found.len() - alone.len());
        }
        // Taken out from behind.
        alone.sort_by_key(|&at| std::cmp::Reverse(found[at].0));
        for at in alone {
            let (index, placement) = &found[at];
            if let Some(emitted) = state.emitted.waiting.remove(*index) {
                self.placed(state, emitted, placement);
            }
        }
    }

    fn placed(&self, state: &mut State, emitted: Emitted, placement: &Placement) {
        let texts = emitted.pattern.texts();
        if placement.text.len() < texts {
            log_line!(Info, "{} of {texts} text sections of an object of JITLink were found", placement.text.len());
        }
        facts::count(emitted.slot, Count::JitLink);
        let object = emitted.pattern.into_debug_object(&placement.sections);
        if let Ok(loaded) = self.session.linked(object) {
            self.loaded(state, loaded);
        }
    }
}

fn find(state: &State, index: usize, code: &Piece, around: &[Piece], sure: bool) -> Option<Placement> {
    let read = |range| checked_read::copy(range).ok();
    let is_free = |range| state.memory.is_free(range);
    state.emitted.waiting[index].pattern.place(code, around, &read, &is_free, sure)
}
