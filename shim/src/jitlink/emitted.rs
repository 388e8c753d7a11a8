//! Objects that JITLink links and that were not seen in memory yet.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::{AddressRange, checked_read, log_line};

use crate::copies::{around, piece};
use crate::hooks::this_thread;
use crate::placement::{Pattern, Piece, Placement};
use crate::state::{Shim, State};

/// So many wait at most, and so many bytes of them: one that is linked into another process never comes.
const MOST: usize = 256;
const MOST_BYTES: usize = 64 << 20;
/// Larger memory is not searched.
const LARGEST: u64 = 64 << 20;
/// In nanoseconds.
const PATIENCE: u64 = 1_000_000_000;

struct Emitted {
    number: u64,
    /// The source it comes from.
    slot: usize,
    pattern: Pattern,
    since: u64,
    /// The thread that is inside `emit` with it: memory that becomes executable there is most likely this object's.
    thread: Option<u64>,
}

#[derive(Default)]
pub(crate) struct EmittedObjects {
    waiting: VecDeque<Emitted>,
    next: u64,
    warned: bool,
}

impl EmittedObjects {
    fn push(&mut self, slot: usize, pattern: Pattern) -> u64 {
        let mut bytes: usize = self.waiting.iter().map(|emitted| emitted.pattern.size()).sum();
        while self.waiting.len() >= MOST || bytes > MOST_BYTES {
            let Some(oldest) = self.waiting.pop_front() else { break };
            bytes -= oldest.pattern.size();
        }
        self.next += 1;
        let (number, since) = (self.next, jitlisten::monotonic());
        self.waiting.push_back(Emitted { number, slot, pattern, since, thread: Some(this_thread()) });
        number
    }

    /// Forgets the objects of a source that was closed.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.waiting.retain(|emitted| emitted.slot != slot);
    }

    /// Whether an object waits for longer than a second, and nothing was said of that yet.
    pub(crate) fn warns(&mut self) -> bool {
        let Some(oldest) = self.waiting.front().filter(|oldest| !self.warned && oldest.thread.is_none()) else {
            return false;
        };
        self.warned = jitlisten::monotonic().saturating_sub(oldest.since) >= PATIENCE;
        self.warned
    }

    /// Those that may be in memory that this thread has made executable, the most likely first.
    fn candidates(&self, thread: u64) -> Vec<usize> {
        let is_inside = |index: &usize| self.waiting[*index].thread == Some(thread);
        let (inside, others): (Vec<usize>, Vec<usize>) = (0..self.waiting.len()).rev().partition(is_inside);
        inside.into_iter().chain(others).collect()
    }
}

impl Shim {
    /// An object is about to be linked by the LLVM in `slot`. Returns its number.
    pub(crate) fn emitted(&self, slot: usize, pattern: Option<Pattern>) -> Option<u64> {
        let mut state = self.lock();
        // The library runs, so it is relocated.
        self.prepare(&mut state, slot);
        let Some(pattern) = pattern else {
            log_line!(Info, "an object for JITLink is not understood, and has no names");
            return None;
        };
        (pattern.texts() > 0).then(|| state.emitted.push(slot, pattern))
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
        // Equal objects: which is which nobody can tell.
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
