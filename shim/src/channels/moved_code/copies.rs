//! Code that a host links at one address and copies to another: memory that becomes executable may contain a *loaded*
//! object that cannot run at its own address.
//!
//! Only objects of the same thread are searched for, a few times each, because a host copies the code that it has just
//! linked. Objects that run where they were linked are final before any search.
//!
//! The `.eh_frame` registered last may also reveal the address: a host may link an object for memory that is executable
//! already, and write it there through `/proc/self/mem` or another mapping. No other call announces that.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{checked_read, mappings_in};
use jitlisten::{Address, AddressRange, ObjectId, log_line};

use crate::placement::{Around, Pattern, Piece, Placement, certain};
use crate::process::this_thread;
use crate::state::{Shim, State};

/// Maximum number of recent objects to search for.
const MAX_RECENT_OBJECTS: usize = 16;
/// Maximum searches for each object.
const MAX_SEARCHES: u8 = 8;
/// Maximum size of memory to search; larger ranges are skipped.
pub(crate) const MAX_SEARCHED_BYTES: u64 = 64 << 20;
/// Maximum bytes searched for unwind tables on each side of code.
pub(crate) const MAX_REACH_BYTES: u64 = 4 << 20;
/// Upper bound of the gaps between segments, in bytes.
const SEGMENT_GAPS_BYTES: u64 = 1 << 18;
/// Maximum number of pending objects of the same size to compare.
const MAX_SAME_SIZE_OBJECTS: usize = 256;

impl Shim {
    /// Searches `range`, which has become executable, for objects that are pending elsewhere.
    pub(crate) fn search_for_copies(&self, state: &mut State, range: AddressRange) {
        let pending = self.pending_objects(state);
        if pending.is_empty() || range.size() > MAX_SEARCHED_BYTES {
            return;
        }
        let Some(code) = read_piece(range) else { return };
        let patterns: Vec<(ObjectId, Pattern)> = pending
            .into_iter()
            .filter_map(|id| Some((id, self.session.debug_object(id).and_then(Pattern::of)?)))
            .collect();
        let surroundings = state.memory_around(range, max_reach(patterns.iter().map(|(_, pattern)| pattern)));
        let mut matches = Vec::new();
        for (id, pattern) in patterns {
            if is_matched(&matches, &pattern) {
                continue;
            }
            let is_free = |range| self.is_free(range);
            let placement = pattern.place(&code, &surroundings, &read_memory, &is_free, false);
            matches.extend(placement.map(|placement| (id, pattern, placement)));
        }
        self.move_located(state, matches, true);
    }

    /// Searches for an object pending elsewhere to which the `.eh_frame` registered at `table` may belong.
    pub(crate) fn search_by_table(&self, state: &mut State, table: Address) {
        let mut matches = Vec::new();
        for id in self.pending_objects(state) {
            let Some(pattern) = self.session.debug_object(id).and_then(Pattern::of) else { continue };
            if is_matched(&matches, &pattern) {
                continue;
            }
            let is_free = |range| self.is_free(range);
            let placement = pattern.place_by_table(table, &read_memory, &is_free);
            matches.extend(placement.map(|placement| (id, pattern, placement)));
        }
        self.move_located(state, matches, false);
    }

    /// Recent objects that this thread has loaded and that are still pending.
    fn pending_objects(&self, state: &mut State) -> Vec<ObjectId> {
        let thread = this_thread();
        self.session.ledger(|ledger| {
            let mut pending = Vec::new();
            for recent in state.overdue.newest(MAX_RECENT_OBJECTS) {
                if recent.thread == thread && recent.searches < MAX_SEARCHES && ledger.pending(recent.id).is_some() {
                    recent.searches += 1;
                    pending.push(recent.id);
                }
            }
            pending
        })
    }

    /// Moves located objects to their new addresses. Equal objects cannot be distinguished, nor can an object and an
    /// equal pending one outside of the search. `before_it_ran`: see
    /// [`Session::object_moved`](jitlisten::Session::object_moved).
    fn move_located(&self, state: &mut State, matches: Vec<(ObjectId, Pattern, Placement)>, before_it_ran: bool) {
        let certain = certain(matches.iter().map(|(.., placement)| placement));
        if !matches.is_empty() && !certain.contains(&true) {
            log_line!(Info, "{} equal objects linked for another address stay unnamed", matches.len());
        }
        let matched_ids: Vec<ObjectId> = matches.iter().map(|(id, ..)| *id).collect();
        for ((id, pattern, placement), _) in matches.into_iter().zip(certain).filter(|(_, is_certain)| *is_certain) {
            let same_size: Vec<ObjectId> = self.session.ledger(|ledger| {
                let same_size =
                    ledger.pending_with_text_size(placement.size()).filter(|other| !matched_ids.contains(other));
                same_size.take(MAX_SAME_SIZE_OBJECTS + 1).collect()
            });
            let may_be_same = |&pending: &ObjectId| {
                let candidate = self.session.debug_object(pending).and_then(Pattern::of);
                candidate.is_none_or(|candidate| {
                    !candidate.is_object(pattern.object()) && candidate.may_also_be_at(&placement, &read_memory)
                })
            };
            if same_size.len() > MAX_SAME_SIZE_OBJECTS || same_size.iter().any(may_be_same) {
                log_line!(Info, "an object linked for another address equals a pending one; it stays unnamed");
                continue;
            }
            self.query_unknown(state, &placement.text);
            let debug_object = pattern.into_debug_object(&placement.sections);
            let Ok(outcome) = self.session.object_moved(id, debug_object, before_it_ran) else { continue };
            self.note(state, &outcome);
        }
    }
}

/// Returns true if an equal object is among the matches. Both have the same function names, so either may be moved.
fn is_matched(matches: &[(ObjectId, Pattern, Placement)], pattern: &Pattern) -> bool {
    matches.iter().any(|(_, matched, _)| matched.is_object(pattern.object()))
}

/// Maximum distance between code of these objects and their other sections, if one allocation contains all of them.
pub(crate) fn max_reach<'a>(patterns: impl Iterator<Item = &'a Pattern>) -> u64 {
    let largest = patterns.map(Pattern::size).max().unwrap_or_default() as u64;
    (2 * largest + SEGMENT_GAPS_BYTES).min(MAX_REACH_BYTES)
}

/// Copies memory; `None` if it is not readable.
pub(crate) fn read_memory(range: AddressRange) -> Option<Vec<u8>> {
    checked_read::copy(range).ok()
}

/// Copies memory together with its address; `None` if it is not readable.
pub(crate) fn read_piece(range: AddressRange) -> Option<Piece> {
    Some(Piece { start: range.start(), bytes: read_memory(range)? })
}

impl State {
    /// Readable memory before and after code: up to `max_reach` within its allocation, or else the neighbouring mappings.
    pub(crate) fn memory_around(&self, code: AddressRange, max_reach: u64) -> Around {
        let allocated = self.allocated.containing(code).filter(|allocation| *allocation != code);
        Around::new(Box::new(move || {
            let neighbour = |address: Address| {
                mappings_in(AddressRange::new(address, 1)?).ok()??.first().map(|mapping| mapping.range)
            };
            let (before, after, max_reach) = match allocated {
                Some(allocation) => (Some(allocation), Some(allocation), max_reach),
                None => {
                    let last = code.start().0.checked_sub(1);
                    (last.and_then(|last| neighbour(Address(last))), neighbour(code.end()), MAX_REACH_BYTES)
                }
            };
            let start = before.map(|before| before.start().0.max(code.start().0.saturating_sub(max_reach)));
            let before = start.and_then(|start| AddressRange::new(Address(start), code.start().0 - start));
            let end = after.map(|after| after.end().0.min(code.end().0.saturating_add(max_reach)));
            let after = end.and_then(|end| AddressRange::new(code.end(), end - code.end().0));
            [before, after].into_iter().flatten().filter(|range| range.size() > 0).filter_map(read_piece).collect()
        }))
    }
}
