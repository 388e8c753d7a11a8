//! Objects that are *loaded* and not final after a second: they are searched, and the log says so once.
//!
//! There is no thread of ours: the time is checked at each event.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::ObjectId;
use jitlisten::plumbing::Mapping;

use crate::process::this_thread;

/// In nanoseconds.
const PATIENCE: u64 = 1_000_000_000;

/// How many are remembered; of more, the oldest are given up.
const MOST: usize = 1 << 16;

/// An object that was not final when it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) id: ObjectId,
    pub(crate) since: u64,
    pub(crate) thread: u64,
    /// How often it was looked for elsewhere.
    pub(crate) tries: u8,
}

impl Waiting {
    pub(crate) fn new(id: ObjectId, since: u64) -> Waiting {
        Waiting { id, since, thread: this_thread(), tries: 0 }
    }
}

/// The objects that were not final when they were loaded, the oldest first.
#[derive(Default)]
pub(crate) struct Overdue {
    waiting: VecDeque<Waiting>,
    warned: bool,
}

impl Overdue {
    /// An object was loaded at `now` and is not final.
    pub(crate) fn add(&mut self, now: u64, id: ObjectId) {
        if self.waiting.len() == MOST {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting::new(id, now));
    }

    /// Takes those that have been loaded for a second, if there are any.
    pub(crate) fn take(&mut self, now: u64) -> Vec<ObjectId> {
        let due = self.waiting.iter().take_while(|waiting| now.saturating_sub(waiting.since) >= PATIENCE).count();
        self.waiting.drain(..due).map(|waiting| waiting.id).collect()
    }

    /// The last so many, the youngest first.
    pub(crate) fn last(&mut self, count: usize) -> impl Iterator<Item = &mut Waiting> {
        self.waiting.iter_mut().rev().take(count)
    }

    /// Whether there may be some, without a look at the clock.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether this is the first warning.
    pub(crate) fn warns(&mut self) -> bool {
        !std::mem::replace(&mut self.warned, true)
    }
}

/// What is wrong with the memory of an object that is not final.
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
        overdue.add(7 + PATIENCE, ObjectId(2));
        assert_eq!(overdue.take(4 + PATIENCE), []);
        assert_eq!(overdue.take(5 + PATIENCE), [ObjectId(1)]);
        assert_eq!(overdue.take(5 + PATIENCE), []);
        assert!(!overdue.is_empty());
        assert_eq!(overdue.take(u64::MAX), [ObjectId(2)]);
        assert!(overdue.is_empty() && overdue.warns() && !overdue.warns());
    }
}
