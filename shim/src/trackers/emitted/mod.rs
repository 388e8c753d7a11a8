//! Tracker of JITLink objects that are not yet located in memory.

#![forbid(unsafe_code)]

mod search;

pub(crate) use search::executable_memory;

use jitlisten::log_line;
use jitlisten::plumbing::{LogEvent, monotonic};

use crate::placement::Pattern;
use crate::process::this_thread;
use crate::trackers::waiting_list::{Waiting, WaitingList};

/// Maximum number of unlocated objects. There must be a limit, because an object linked for another process is never
/// located.
const MAX_OBJECTS: usize = 256;
/// Maximum total size of the patterns of unlocated objects, in bytes.
const MAX_PATTERN_BYTES: usize = 64 << 20;
/// Time after which an object counts as missed, in ns.
const LOCATE_TIMEOUT_NS: u64 = 1_000_000_000;
/// Maximum number of searches for one object when other `emit` calls return.
const MAX_SEARCHES_AFTER_EMIT: u32 = 8;
/// Maximum number of searches for a missed object when memory becomes executable. There must be a limit, because an
/// object linked for another process is never located.
const MAX_LATE_SEARCHES: u8 = 64;
/// Maximum number of consecutive fruitless kernel queries when `emit` calls return.
const MAX_FRUITLESS_QUERIES: u8 = 8;

/// An object passed to `emit` and not yet located in memory.
struct EmittedObject {
    /// Number of the `emit` call that received the object.
    number: u64,
    /// Slot of the LLVM instance that links the object.
    slot: usize,
    pattern: Pattern,
    /// True once a search for overdue objects has included this one.
    is_missed: bool,
    /// Number of searches since the object was marked as missed.
    late_searches: u8,
}

#[derive(Default)]
pub(crate) struct EmittedObjects {
    /// Unlocated objects, oldest first. A search for an object when an `emit` call returns counts as a try.
    unlocated: WaitingList<EmittedObject, MAX_OBJECTS, MAX_PATTERN_BYTES>,
    /// Thread and number of each `emit` call that has not returned, oldest first. Includes calls whose object is not
    /// searched for.
    active_calls: Vec<(u64, u64)>,
    /// Number of the most recent `emit` call.
    last_number: u64,
    /// Number of consecutive kernel queries that located nothing.
    fruitless_queries: u8,
    /// Time of the last search for overdue objects (monotonic clock), in ns.
    last_search_ns: u64,
}

impl EmittedObjects {
    /// Records that this thread is about to call `emit`. Returns the number of the call, which also identifies the
    /// call's object.
    pub(crate) fn begin_call(&mut self) -> u64 {
        self.last_number += 1;
        if self.active_calls.len() == MAX_OBJECTS {
            self.active_calls.remove(0);
        }
        self.active_calls.push((this_thread(), self.last_number));
        self.last_number
    }

    /// Records that an `emit` call has returned.
    pub(crate) fn end_call(&mut self, number: u64) {
        self.active_calls.retain(|&(_, active)| active != number);
    }

    /// Adds an object that has to be located.
    pub(crate) fn push(&mut self, number: u64, slot: usize, pattern: Pattern) {
        let size = pattern.size();
        self.unlocated.push(
            monotonic(),
            size,
            EmittedObject { number, slot, pattern, is_missed: false, late_searches: 0 },
        );
    }

    /// Drops the objects of a closed library's LLVM instance.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.unlocated.retain(|emitted| emitted.slot != slot);
    }

    /// Returns true if the object with this number has not been located yet.
    pub(crate) fn is_unlocated(&self, number: u64) -> bool {
        self.unlocated.iter().any(|emitted| emitted.number == number)
    }

    /// Returns true while the `emit` call with this number runs.
    fn is_active(&self, number: u64) -> bool {
        self.active_calls.iter().any(|&(_, active)| active == number)
    }

    pub(crate) fn is_in_emit(&self, thread: u64) -> bool {
        self.active_calls.iter().any(|&(caller, _)| caller == thread)
    }

    /// Patterns of the unlocated objects.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.unlocated.iter().map(|emitted| &emitted.pattern)
    }

    /// Number of the `emit` call that the thread is inside, if there is exactly one. ORC may complete a link inside the
    /// `emit` call of another object, which defines symbols that the link was waiting for.
    fn sole_call(&self, thread: u64) -> Option<u64> {
        let mut calls = self.active_calls.iter().filter(|&&(caller, _)| caller == thread);
        let (_, number) = calls.next()?;
        calls.next().is_none().then_some(*number)
    }

    /// Logs once that an object could not be located within a second, or was dropped before that.
    pub(crate) fn log_missed(&mut self, path: impl Fn(usize) -> String) {
        if self.should_warn() {
            let missed = self.unlocated.iter().find(|emitted| emitted.is_missed).or(self.unlocated.front());
            let library = &missed.map_or_else(String::new, |emitted| path(emitted.slot));
            let has_dropped = self.unlocated.has_dropped;
            let time = if has_dropped { "before too many others were pending" } else { "within a second" };
            log_line!(Warn, "{}", LogEvent::Unlocated { library, time });
        }
    }

    /// Returns true once, for the first object that is missed or dropped. An object whose `emit` call is still running
    /// is not missed, however long the call takes.
    fn should_warn(&mut self) -> bool {
        let is_due = self.unlocated.has_dropped || self.unlocated.iter().any(|emitted| emitted.is_missed);
        self.unlocated.should_warn(is_due)
    }

    /// Indices of the objects that may be in memory that this thread has made executable, most likely first. The flag
    /// is true if the memory certainly belongs to the object.
    fn candidates(&mut self, thread: u64) -> Vec<(usize, bool)> {
        let own_number = self.sole_call(thread);
        let all = self.unlocated.iter_mut().enumerate().rev().filter_map(|(index, emitted)| {
            emitted.late_searches += u8::from(emitted.is_missed && emitted.late_searches < MAX_LATE_SEARCHES);
            (emitted.late_searches < MAX_LATE_SEARCHES).then_some((index, Some(emitted.number) == own_number))
        });
        let (likely, rest): (Vec<_>, Vec<_>) = all.partition(|&(_, is_own)| is_own);
        likely.into_iter().chain(rest).collect()
    }

    /// Number of bytes to search around a table that this thread registers; `None` if the table cannot belong to an
    /// unlocated object.
    fn search_extent(&self, thread: u64) -> Option<u64> {
        let may_own_table = |emitted: &&Waiting<EmittedObject>| {
            emitted.late_searches < MAX_LATE_SEARCHES
                && (self.active_calls.contains(&(thread, emitted.number)) || !self.is_active(emitted.number))
        };
        self.unlocated.iter().filter(may_own_table).map(|emitted| emitted.pattern.extent()).max()
    }

    /// Indices of the objects to search for when an `emit` call returns: the call's own object, and others with few
    /// searches so far.
    fn candidates_at_end(&mut self, number: u64) -> Vec<(usize, bool)> {
        let mut candidates = Vec::new();
        for (index, emitted) in self.unlocated.iter_mut().enumerate() {
            let is_own = emitted.number == number;
            if emitted.try_again(MAX_SEARCHES_AFTER_EMIT) || is_own {
                candidates.push((index, false));
            }
        }
        candidates
    }

    /// Returns true if the kernel may be queried for the location of code.
    pub(crate) fn may_query_kernel(&self) -> bool {
        self.fruitless_queries < MAX_FRUITLESS_QUERIES
    }

    /// Records a kernel query for the object with this number.
    pub(crate) fn record_query(&mut self, number: u64) {
        self.fruitless_queries = if self.is_unlocated(number) { self.fruitless_queries.saturating_add(1) } else { 0 };
    }

    /// Indices of the objects to search for once one of them has been pending for a second: that one for the last time,
    /// and all others that are not missed.
    fn overdue_candidates(&mut self, now: u64) -> Vec<(usize, bool)> {
        let active: Vec<u64> = self.active_calls.iter().map(|&(_, number)| number).collect();
        let is_due = |emitted: &Waiting<EmittedObject>| {
            !emitted.is_missed && emitted.is_overdue(now, LOCATE_TIMEOUT_NS) && !active.contains(&emitted.number)
        };
        if now.saturating_sub(self.last_search_ns) < LOCATE_TIMEOUT_NS || !self.unlocated.iter().any(is_due) {
            return Vec::new();
        }
        self.last_search_ns = now;
        let mut candidates = Vec::new();
        for (index, emitted) in self.unlocated.iter_mut().enumerate() {
            if !emitted.is_missed {
                emitted.is_missed = is_due(emitted);
                candidates.push((index, false));
            }
        }
        candidates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_emits(count: usize) -> (EmittedObjects, Vec<u64>) {
        let mut emitted = EmittedObjects::default();
        let numbers = (0..count).map(|_| emitted.begin_call()).collect::<Vec<_>>();
        numbers.iter().for_each(|&number| emitted.push(number, 0, Pattern::empty()));
        (emitted, numbers)
    }

    /// Returns the number of objects to search for a second from now, and whether a warning is due then.
    fn check_one_second_later(emitted: &mut EmittedObjects) -> (usize, bool) {
        let now = monotonic() + LOCATE_TIMEOUT_NS;
        (emitted.overdue_candidates(now).len(), emitted.should_warn())
    }

    #[test]
    fn object_inside_emit_does_not_hide_an_overdue_one() {
        let (mut emitted, numbers) = start_emits(2);
        assert_eq!(check_one_second_later(&mut emitted), (0, false));
        emitted.end_call(numbers[1]);
        assert!(!emitted.should_warn(), "it was not looked for");
        assert_eq!(check_one_second_later(&mut emitted), (2, true));
        assert_eq!(check_one_second_later(&mut emitted), (0, false));
    }

    #[test]
    fn warns_about_an_object_dropped_for_newer_ones() {
        let mut emitted = EmittedObjects::default();
        for number in 0..MAX_OBJECTS as u64 {
            emitted.push(number, 0, Pattern::empty());
        }
        assert!(!emitted.should_warn());
        emitted.push(MAX_OBJECTS as u64, 0, Pattern::empty());
        assert!(emitted.unlocated.len() == MAX_OBJECTS && emitted.should_warn() && !emitted.should_warn());
    }

    #[test]
    fn memory_is_certain_only_if_its_thread_links_a_single_object() {
        let (mut emitted, numbers) = start_emits(1);
        assert_eq!(emitted.candidates(this_thread()), [(0, true)]);
        assert_eq!(emitted.candidates(this_thread() + 1), [(0, false)]);
        // Begin a nested `emit` call whose object is not searched for.
        let inner = emitted.begin_call();
        assert_eq!(emitted.candidates(this_thread()), [(0, false)]);
        emitted.end_call(inner);
        assert_eq!(emitted.candidates(this_thread()), [(0, true)]);
        emitted.end_call(numbers[0]);
        assert_eq!(emitted.candidates(this_thread()), [(0, false)]);
    }

    #[test]
    fn overdue_object_is_searched_for_a_few_more_times() {
        let (mut emitted, numbers) = start_emits(1);
        emitted.end_call(numbers[0]);
        (0..MAX_LATE_SEARCHES).for_each(|_| assert_eq!(emitted.candidates(this_thread()).len(), 1));
        assert_eq!(check_one_second_later(&mut emitted), (1, true));
        (1..MAX_LATE_SEARCHES).for_each(|_| assert_eq!(emitted.candidates(this_thread()).len(), 1));
        assert_eq!((emitted.candidates(this_thread()).len(), emitted.search_extent(this_thread())), (0, None));
    }

    #[test]
    fn searches_for_an_object_are_limited() {
        let (mut emitted, numbers) = start_emits(2);
        for _ in 0..MAX_SEARCHES_AFTER_EMIT {
            assert_eq!(emitted.candidates_at_end(numbers[0]), [(0, false), (1, false)]);
        }
        assert_eq!(emitted.candidates_at_end(numbers[0]), [(0, false)]);
        (0..MAX_FRUITLESS_QUERIES).for_each(|_| emitted.record_query(numbers[0]));
        assert!(!emitted.may_query_kernel());
        emitted.record_query(0);
        assert!(emitted.may_query_kernel());
    }
}
