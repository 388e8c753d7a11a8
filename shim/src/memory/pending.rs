//! Objects that are *loaded* but not final after a second. Their code is searched for elsewhere, and the log reports
//! the first one.
//!
//! The library has no thread of its own, so the time is checked at each event.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::ObjectId;
use jitlisten::plumbing::Mapping;

use crate::process::this_thread;

/// Time after which a pending object is overdue, in ns.
const FINALIZE_TIMEOUT_NS: u64 = 1_000_000_000;

/// Maximum number of pending objects; beyond it the oldest are dropped.
const MAX_PENDING_OBJECTS: usize = 1 << 16;

/// An object that is loaded, but not yet final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingObject {
    pub(crate) id: ObjectId,
    /// Load time (monotonic clock), in ns.
    pub(crate) loaded_at_ns: u64,
    /// Thread that loaded the object.
    pub(crate) thread: u64,
    /// Number of searches for its code at other addresses.
    pub(crate) searches: u8,
}

impl PendingObject {
    pub(crate) fn new(id: ObjectId, loaded_at_ns: u64) -> PendingObject {
        PendingObject { id, loaded_at_ns, thread: this_thread(), searches: 0 }
    }
}

/// Objects that are loaded but not final, oldest first. Some may have become final since.
#[derive(Default)]
pub(crate) struct Overdue {
    pending: VecDeque<PendingObject>,
    warned: bool,
}

impl Overdue {
    /// Adds a pending object that was loaded at `now`.
    pub(crate) fn add(&mut self, now: u64, id: ObjectId) {
        if self.pending.len() == MAX_PENDING_OBJECTS {
            self.pending.pop_front();
        }
        self.pending.push_back(PendingObject::new(id, now));
    }

    /// Removes and returns the objects that were loaded at least a second ago.
    pub(crate) fn take(&mut self, now: u64) -> Vec<ObjectId> {
        let due_count = self
            .pending
            .iter()
            .take_while(|pending| now.saturating_sub(pending.loaded_at_ns) >= FINALIZE_TIMEOUT_NS)
            .count();
        self.pending.drain(..due_count).map(|pending| pending.id).collect()
    }

    /// The newest `count` objects, newest first.
    pub(crate) fn newest(&mut self, count: usize) -> impl Iterator<Item = &mut PendingObject> {
        self.pending.iter_mut().rev().take(count)
    }

    /// Returns true if no object is pending. Needs no clock, unlike [`Overdue::take`].
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns true on the first call: the warning is logged once.
    pub(crate) fn should_warn(&mut self) -> bool {
        !std::mem::replace(&mut self.warned, true)
    }
}

/// Reason why an object is not final, according to the mappings of its memory.
pub(crate) fn reason(mappings: Option<&[Mapping]>) -> &'static str {
    let Some(mappings) = mappings else { return "its memory is gone" };
    if mappings.iter().all(|mapping| mapping.executable) {
        return "its memory may be executed and written, and no unwind table was registered for it";
    }
    "its memory may not be executed: its code was copied elsewhere, or is not used yet"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_second_is_taken_once() {
        let mut overdue = Overdue::default();
        overdue.add(5, ObjectId(1));
        overdue.add(7 + FINALIZE_TIMEOUT_NS, ObjectId(2));
        assert_eq!(overdue.take(4 + FINALIZE_TIMEOUT_NS), []);
        assert_eq!(overdue.take(5 + FINALIZE_TIMEOUT_NS), [ObjectId(1)]);
        assert_eq!(overdue.take(5 + FINALIZE_TIMEOUT_NS), []);
        assert!(!overdue.is_empty());
        assert_eq!(overdue.take(u64::MAX), [ObjectId(2)]);
        assert!(overdue.is_empty() && overdue.should_warn() && !overdue.should_warn());
    }
}
