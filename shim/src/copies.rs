//! Code that a host links in one place and copies to another: an object that is *loaded* and cannot run where it is may be in
//! memory that has just become executable.
//!
//! Only objects of the same thread are looked for, a few times each: a host copies what it has just linked. Objects that run
//! where they were linked are final before anything is looked for.
//!
//! Or it is where the `.eh_frame` says that was registered last: a host may have linked it for a place that may run already, and have
//! written it there through `/proc/self/mem` or another mapping. No other call says so.

#![forbid(unsafe_code)]

use jitlisten::{Address, AddressRange, ObjectId, checked_read, log_line, mappings_of};

use crate::placement::{Pattern, Piece, Placement};
use crate::state::{Shim, State};
use crate::thread::this_thread;

/// So many of the last objects are looked for.
const LAST: usize = 16;
/// So often each.
const TRIES: u8 = 8;
/// Larger memory is not searched.
pub(crate) const LARGEST: u64 = 64 << 20;
/// So much is searched for unwind tables on each side of code.
const AROUND: u64 = 4 << 20;

impl Shim {
    /// `range` has become executable: looks there for objects that wait elsewhere.
    pub(crate) fn look_for_copies(&self, state: &mut State, range: AddressRange) {
        let wanted = wanted(state);
        if wanted.is_empty() || range.size() > LARGEST {
            return;
        }
        let Some(code) = piece(range) else { return };
        let around = state.around(range);
        for id in wanted {
            let Some(pattern) = self.session.debug_object(id).and_then(Pattern::of) else { continue };
            let read = |range| checked_read::copy(range).ok();
            let is_free = |range| state.memory.is_free(range);
            let Some(placement) = pattern.place(&code, &around, &read, &is_free, false) else { continue };
            self.moved(state, id, pattern, &placement);
        }
    }

    /// The `.eh_frame` at `table` was registered, and no object is known to have one there: it may be that of one that waits elsewhere.
    pub(crate) fn look_by_table(&self, state: &mut State, table: Address) {
        let mut found = Vec::new();
        for id in wanted(state) {
            let Some(pattern) = self.session.debug_object(id).and_then(Pattern::of) else { continue };
            let read = |range| checked_read::copy(range).ok();
            let is_free = |range| state.memory.is_free(range);
            let placement = pattern.place_by_table(table, &read, &is_free);
            found.extend(placement.map(|placement| (id, pattern, placement)));
        }
        // Equal objects cannot be distinguished.
        if found.len() > 1 {
            log_line!(Info, "{} objects that were linked for elsewhere are equal, and have no names", found.len());
            return;
        }
        let Some((id, pattern, placement)) = found.pop() else { return };
        for &text in &placement.text {
            if !state.memory.has_executable(text) {
                let outcome = state.look_at(text);
                self.notify(state, outcome);
            }
        }
        self.moved(state, id, pattern, &placement);
    }

    fn moved(&self, state: &mut State, id: ObjectId, pattern: Pattern, placement: &Placement) {
        let debug_object = pattern.into_debug_object(&placement.sections);
        let Ok(loaded) = self.session.moved(id, debug_object) else { return };
        let outcome = state.memory.moved(loaded);
        self.notify(state, outcome);
    }
}

/// The last objects that this thread has loaded and that still wait.
fn wanted(state: &mut State) -> Vec<ObjectId> {
    let thread = this_thread();
    let mut wanted = Vec::new();
    for waiting in state.overdue.last(LAST) {
        if waiting.thread == thread && waiting.tries < TRIES && state.memory.pending(waiting.id).is_some() {
            waiting.tries += 1;
            wanted.push(waiting.id);
        }
    }
    wanted
}

pub(crate) fn piece(range: AddressRange) -> Option<Piece> {
    Some(Piece { start: range.start(), bytes: checked_read::copy(range).ok()? })
}

impl State {
    /// The memory in front of code and behind it, as far as it may be read: what it was allocated with, or its neighbours.
    pub(crate) fn around(&self, code: AddressRange) -> Vec<Piece> {
        let neighbour =
            |address: Address| mappings_of(AddressRange::new(address, 1)?).ok()??.first().map(|found| found.range);
        let (before, behind) = match self.allocated.around(code).filter(|all| *all != code) {
            Some(all) => (Some(all), Some(all)),
            None => {
                let last = code.start().0.checked_sub(1);
                (last.and_then(|last| neighbour(Address(last))), neighbour(code.end()))
            }
        };
        let start = before.map(|before| before.start().0.max(code.start().0.saturating_sub(AROUND)));
        let before = start.and_then(|start| AddressRange::new(Address(start), code.start().0 - start));
        let end = behind.map(|behind| behind.end().0.min(code.end().0.saturating_add(AROUND)));
        let behind = end.and_then(|end| AddressRange::new(code.end(), end - code.end().0));
        [before, behind].into_iter().flatten().filter(|range| range.size() > 0).filter_map(piece).collect()
    }
}
