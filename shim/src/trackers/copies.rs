//! Tracker of code that a host links at one address and copies to another. Memory that becomes executable may contain a
//! copy of a *loaded* object that cannot run at its own address.
//!
//! Only objects that the same thread has loaded are searched for, a few times each, because a host copies the code that
//! it has just linked. Objects that run where they were linked become final before any search.
//!
//! The most recently registered `.eh_frame` may also reveal the address. A host may link an object for memory that is
//! already executable, and write it there through `/proc/self/mem` or another mapping. No other call announces that.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{LiveObjects, LogEvent};
use jitlisten::{Address, AddressRange, ObjectId, log_line};

use crate::placement::{Pattern, Placement, find_unambiguous};
use crate::process::this_thread;
use crate::trackers::memory::{MAX_SEARCHED_BYTES, Memory, max_reach, read_memory, read_piece};
use crate::trackers::pending::PendingObjects;

const MAX_RECENT_OBJECTS: usize = 16;
const MAX_SEARCHES: u32 = 8;
/// Maximum number of pending objects of the same size that are compared with each other.
const MAX_SAME_SIZE_OBJECTS: usize = 256;

/// A pending object that was found at another address.
pub(crate) struct MovedObject {
    pub(crate) id: ObjectId,
    /// Debug object with the new addresses of its sections.
    pub(crate) object: Vec<u8>,
    pub(crate) text: Vec<AddressRange>,
}

/// Pending objects that match memory at other addresses. None of them is ambiguous with another one in this list.
pub(crate) struct Matches {
    unambiguous: std::vec::IntoIter<(ObjectId, Pattern, Placement)>,
    /// Ids of all objects that match, including ambiguous ones.
    ids: Vec<ObjectId>,
}

/// Searches `range`, which has become executable, for objects that are pending at other addresses.
pub(crate) fn search_executable(pending: &mut PendingObjects, memory: Memory<'_>, range: AddressRange) -> Matches {
    let pending = recent_objects(pending, memory.objects);
    if pending.is_empty() || range.size() > MAX_SEARCHED_BYTES {
        return Matches::new(Vec::new());
    }
    let Some(code) = read_piece(range) else { return Matches::new(Vec::new()) };
    let pattern = |id| Some((id, memory.objects.debug_object(id).and_then(Pattern::parse)?));
    let patterns: Vec<(ObjectId, Pattern)> = pending.into_iter().filter_map(pattern).collect();
    let surroundings = memory.surroundings_of(range, max_reach(patterns.iter().map(|(_, pattern)| pattern)));
    let is_free = |range| memory.is_free(range);
    match_each(patterns, |pattern| pattern.locate(&code, &surroundings, &read_memory, &is_free, false))
}

/// Searches for an object, pending at another address, that the `.eh_frame` registered at `table` may belong to.
pub(crate) fn search_by_table(pending: &mut PendingObjects, memory: Memory<'_>, table: Address) -> Matches {
    let pattern = |id| Some((id, memory.objects.debug_object(id).and_then(Pattern::parse)?));
    let patterns = recent_objects(pending, memory.objects).into_iter().filter_map(pattern);
    let is_free = |range| memory.is_free(range);
    match_each(patterns, |pattern| pattern.locate_by_table(table, &read_memory, &is_free))
}

/// Recent objects that this thread has loaded and that are still pending.
fn recent_objects(pending: &mut PendingObjects, objects: &LiveObjects) -> Vec<ObjectId> {
    let thread = this_thread();
    objects.ledger(|ledger| {
        let recent = pending.iter_mut().rev().take(MAX_RECENT_OBJECTS);
        let is_searched_for = recent.filter_map(|recent| {
            let is_candidate = recent.thread == thread && ledger.pending(recent.id).is_some();
            (is_candidate && recent.try_again(MAX_SEARCHES)).then_some(recent.id)
        });
        is_searched_for.collect()
    })
}

/// Locates each pattern, unless an equal object has already matched. Equal objects have the same function names, so
/// either may be moved.
fn match_each(
    patterns: impl IntoIterator<Item = (ObjectId, Pattern)>,
    locate: impl Fn(&Pattern) -> Option<Placement>,
) -> Matches {
    let mut matches: Vec<(ObjectId, Pattern, Placement)> = Vec::new();
    for (id, pattern) in patterns {
        if !matches.iter().any(|(_, matched, _)| matched.equals_object(pattern.object())) {
            let placement = locate(&pattern);
            matches.extend(placement.map(|placement| (id, pattern, placement)));
        }
    }
    Matches::new(matches)
}

impl Matches {
    fn new(matches: Vec<(ObjectId, Pattern, Placement)>) -> Matches {
        let is_unambiguous = find_unambiguous(matches.iter().map(|(.., placement)| placement));
        if !matches.is_empty() && !is_unambiguous.contains(&true) {
            log_line!(Info, "{}", LogEvent::EqualMoved { count: &matches.len().to_string() });
        }
        let ids = matches.iter().map(|(id, ..)| *id).collect();
        let unambiguous =
            matches.into_iter().zip(is_unambiguous).filter_map(|(matched, is_match)| is_match.then_some(matched));
        Matches { unambiguous: unambiguous.collect::<Vec<_>>().into_iter(), ids }
    }

    /// Returns the next object to move. Call this only after the session has moved the previous one, because only this
    /// search can tell an object from an equal pending one.
    pub(crate) fn next_moved(&mut self, objects: &LiveObjects) -> Option<MovedObject> {
        let ids = &self.ids;
        let (id, pattern, placement) = self.unambiguous.find(|(_, pattern, placement)| {
            let equals_pending = equals_pending(objects, pattern, placement, ids);
            if equals_pending {
                log_line!(Info, "an object linked for another address equals a pending one; it stays unnamed");
            }
            !equals_pending
        })?;
        Some(MovedObject { id, object: pattern.into_debug_object(&placement.sections), text: placement.text })
    }
}

/// Returns true if a pending object that is not in `matched` may also be located at `placement`.
fn equals_pending(objects: &LiveObjects, pattern: &Pattern, placement: &Placement, matched: &[ObjectId]) -> bool {
    let same_size: Vec<ObjectId> = objects.ledger(|ledger| {
        let same_size = ledger.pending_with_text_size(placement.size()).filter(|other| !matched.contains(other));
        same_size.take(MAX_SAME_SIZE_OBJECTS + 1).collect()
    });
    let may_be_same = |&pending: &ObjectId| {
        let candidate = objects.debug_object(pending).and_then(Pattern::parse);
        candidate.is_none_or(|candidate| {
            !candidate.equals_object(pattern.object()) && candidate.may_match_placement(placement, &read_memory)
        })
    };
    same_size.len() > MAX_SAME_SIZE_OBJECTS || same_size.iter().any(may_be_same)
}
