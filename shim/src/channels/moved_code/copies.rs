//! Code that a host links at one address and copies to another: memory that becomes executable may contain a *loaded*
//! object that cannot run at its own address.
//!
//! Only objects of the same thread are searched, a few times each, because a host copies what it has just linked.
//! Objects that run where they were linked are final before any search.
//!
//! The `.eh_frame` registered last may also name the place: a host may link an object for memory that is executable
//! already, and write it there through `/proc/self/mem` or another mapping. No other call announces that.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{checked_read, mappings_of};
use jitlisten::{Address, AddressRange, ObjectId, log_line};

use crate::placement::{Around, Pattern, Piece, Placement, certain};
use crate::process::this_thread;
use crate::state::{Shim, State};

/// So many of the last objects are looked for.
const LAST: usize = 16;
/// So often each.
const TRIES: u8 = 8;
/// Larger memory is not searched.
pub(crate) const LARGEST: u64 = 64 << 20;
/// So much is searched for unwind tables on each side of code.
pub(crate) const AROUND: u64 = 4 << 20;
/// What segments have between them, rounded up.
const SEGMENTS: u64 = 1 << 18;
/// So many others that wait and are as large are looked at.
const MOST_ALIKE: usize = 256;

impl Shim {
    /// `range` has become executable: looks there for objects that wait elsewhere.
    pub(crate) fn look_for_copies(&self, state: &mut State, range: AddressRange) {
        let wanted = self.wanted(state);
        if wanted.is_empty() || range.size() > LARGEST {
            return;
        }
        let Some(code) = piece(range) else { return };
        let patterns: Vec<(ObjectId, Pattern)> = wanted
            .into_iter()
            .filter_map(|id| Some((id, self.session.debug_object(id).and_then(Pattern::of)?)))
            .collect();
        let around = state.around(range, reach(patterns.iter().map(|(_, pattern)| pattern)));
        let mut found = Vec::new();
        for (id, pattern) in patterns {
            if is_among(&found, &pattern) {
                continue;
            }
            let is_free = |range| self.is_free(range);
            let placement = pattern.place(&code, &around, &read, &is_free, false);
            found.extend(placement.map(|placement| (id, pattern, placement)));
        }
        self.moved(state, found, true);
    }

    /// The `.eh_frame` at `table` was registered, and no object is known to have one there: it may be that of one that
    /// waits elsewhere.
    pub(crate) fn look_by_table(&self, state: &mut State, table: Address) {
        let mut found = Vec::new();
        for id in self.wanted(state) {
            let Some(pattern) = self.session.debug_object(id).and_then(Pattern::of) else { continue };
            if is_among(&found, &pattern) {
                continue;
            }
            let is_free = |range| self.is_free(range);
            let placement = pattern.place_by_table(table, &read, &is_free);
            found.extend(placement.map(|placement| (id, pattern, placement)));
        }
        self.moved(state, found, false);
    }

    /// The last objects that this thread has loaded and that still wait.
    fn wanted(&self, state: &mut State) -> Vec<ObjectId> {
        let thread = this_thread();
        self.session.ledger(|ledger| {
            let mut wanted = Vec::new();
            for waiting in state.overdue.last(LAST) {
                if waiting.thread == thread && waiting.tries < TRIES && ledger.pending(waiting.id).is_some() {
                    waiting.tries += 1;
                    wanted.push(waiting.id);
                }
            }
            wanted
        })
    }

    /// These were found elsewhere. Equal objects cannot be distinguished, nor one from another that waits and is not
    /// looked for. `before_it_ran`: see [`Session::moved`](jitlisten::Session::moved).
    fn moved(&self, state: &mut State, found: Vec<(ObjectId, Pattern, Placement)>, before_it_ran: bool) {
        let certain = certain(found.iter().map(|(.., placement)| placement));
        if !found.is_empty() && !certain.contains(&true) {
            log_line!(Info, "{} equal objects linked for another address stay unnamed", found.len());
        }
        let is_found: Vec<ObjectId> = found.iter().map(|(id, ..)| *id).collect();
        for ((id, pattern, placement), _) in found.into_iter().zip(certain).filter(|(_, is_certain)| *is_certain) {
            let alike: Vec<ObjectId> = self.session.ledger(|ledger| {
                let alike = ledger.pending_of_size(placement.size()).filter(|other| !is_found.contains(other));
                alike.take(MOST_ALIKE + 1).collect()
            });
            let is_it = |&other: &ObjectId| {
                let other = self.session.debug_object(other).and_then(Pattern::of);
                other.is_none_or(|one| !one.is_object(pattern.object()) && one.may_also_be_at(&placement, &read))
            };
            if alike.len() > MOST_ALIKE || alike.iter().any(is_it) {
                log_line!(Info, "an object linked for another address equals a pending one; it stays unnamed");
                continue;
            }
            self.look_unless_known(state, &placement.text);
            let debug_object = pattern.into_debug_object(&placement.sections);
            let Ok(outcome) = self.session.moved(id, debug_object, before_it_ran) else { continue };
            self.note(state, &outcome);
        }
    }
}

/// Whether the same object was found: whichever of the two it is, its functions have the same names.
fn is_among(found: &[(ObjectId, Pattern, Placement)], pattern: &Pattern) -> bool {
    found.iter().any(|(_, found, _)| found.is_object(pattern.object()))
}

/// How far from code of these what belongs to it may be, where one linker has asked for all of it.
pub(crate) fn reach<'a>(patterns: impl Iterator<Item = &'a Pattern>) -> u64 {
    let largest = patterns.map(Pattern::size).max().unwrap_or_default() as u64;
    (2 * largest + SEGMENTS).min(AROUND)
}

pub(crate) fn read(range: AddressRange) -> Option<Vec<u8>> {
    checked_read::copy(range).ok()
}

pub(crate) fn piece(range: AddressRange) -> Option<Piece> {
    Some(Piece { start: range.start(), bytes: read(range)? })
}

impl State {
    /// The memory in front of code and behind it, as far as it may be read: what it was allocated with, up to `reach`,
    /// or its neighbours.
    pub(crate) fn around(&self, code: AddressRange, reach: u64) -> Around {
        let allocated = self.allocated.around(code).filter(|all| *all != code);
        Around::new(Box::new(move || {
            let neighbour =
                |address: Address| mappings_of(AddressRange::new(address, 1)?).ok()??.first().map(|found| found.range);
            let (before, behind, reach) = match allocated {
                Some(all) => (Some(all), Some(all), reach),
                None => {
                    let last = code.start().0.checked_sub(1);
                    (last.and_then(|last| neighbour(Address(last))), neighbour(code.end()), AROUND)
                }
            };
            let start = before.map(|before| before.start().0.max(code.start().0.saturating_sub(reach)));
            let before = start.and_then(|start| AddressRange::new(Address(start), code.start().0 - start));
            let end = behind.map(|behind| behind.end().0.min(code.end().0.saturating_add(reach)));
            let behind = end.and_then(|end| AddressRange::new(code.end(), end - code.end().0));
            [before, behind].into_iter().flatten().filter(|range| range.size() > 0).filter_map(piece).collect()
        }))
    }
}
