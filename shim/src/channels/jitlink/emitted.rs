//! Objects of JITLink that were not found in memory yet.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::log_line;

use crate::placement::Pattern;
use crate::process::this_thread;

/// So many wait at most, and so many bytes of them: one that is linked into another process never comes.
const MOST: usize = 256;
const MOST_BYTES: usize = 64 << 20;
/// In nanoseconds.
const PATIENCE: u64 = 1_000_000_000;
/// When the `emit` of one ends, others are looked for, too: so often each.
const TRIES: u8 = 8;
/// So often where memory becomes executable, once they are overdue: what links for another process never comes.
const LATE_TRIES: u8 = 64;
/// So often in a row the kernel is asked in vain when an `emit` ends.
const QUESTIONS: u8 = 8;

/// One of them.
pub(super) struct Emitted {
    pub(super) number: u64,
    /// The source it comes from.
    pub(super) slot: usize,
    pub(super) pattern: Pattern,
    since: u64,
    tries: u8,
    /// Whether it was looked for when it was overdue.
    is_missed: bool,
    /// How often it was looked for after that.
    late: u8,
}

#[derive(Default)]
pub(crate) struct EmittedObjects {
    pub(super) waiting: VecDeque<Emitted>,
    /// The calls of `emit` that have not returned, in the order in which they began: thread and number. Also those with
    /// an object that is not looked for.
    inside: Vec<(u64, u64)>,
    next: u64,
    /// How often the kernel was asked in vain, and when that was the last time.
    asked: u8,
    asked_at: u64,
    /// How many were given up for newer ones.
    given_up: u64,
    warned: bool,
}

impl EmittedObjects {
    /// This thread is about to call `emit`. Returns the number of that call, and of its object.
    pub(super) fn begin(&mut self) -> u64 {
        self.next += 1;
        if self.inside.len() == MOST {
            self.inside.remove(0);
        }
        self.inside.push((this_thread(), self.next));
        self.next
    }

    pub(super) fn end(&mut self, number: u64) {
        self.inside.retain(|&(_, inside)| inside != number);
    }

    pub(super) fn push(&mut self, number: u64, slot: usize, pattern: Pattern) {
        let mut bytes: usize = self.waiting.iter().map(|emitted| emitted.pattern.size()).sum();
        while self.waiting.len() >= MOST || bytes > MOST_BYTES {
            let Some(oldest) = self.waiting.pop_front() else { break };
            bytes -= oldest.pattern.size();
            self.given_up += 1;
        }
        let since = jitlisten::plumbing::monotonic();
        self.waiting.push_back(Emitted { number, slot, pattern, since, tries: 0, is_missed: false, late: 0 });
    }

    /// Forgets the objects of a source that was closed.
    pub(crate) fn forget(&mut self, slot: usize) {
        self.waiting.retain(|emitted| emitted.slot != slot);
    }

    pub(super) fn is_waiting(&self, number: u64) -> bool {
        self.waiting.iter().any(|emitted| emitted.number == number)
    }

    pub(super) fn is_inside(&self, number: u64) -> bool {
        self.inside.iter().any(|&(_, inside)| inside == number)
    }

    /// Whether this thread is inside `emit`.
    pub(crate) fn is_in_emit(&self, thread: u64) -> bool {
        self.inside.iter().any(|&(of, _)| of == thread)
    }

    /// What has not been found.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.waiting.iter().map(|emitted| &emitted.pattern)
    }

    /// The object whose `emit` this thread is inside, if that is but one: ORC ends a link inside another one's `emit`,
    /// when that knows the address the first has waited for.
    fn only_one_of(&self, thread: u64) -> Option<u64> {
        let mut inside = self.inside.iter().filter(|&&(of, _)| of == thread);
        let (_, number) = inside.next()?;
        inside.next().is_none().then_some(*number)
    }

    /// Says once that an object waits for longer than a second, or was given up before it was found.
    pub(crate) fn warn(&mut self, path: impl Fn(usize) -> String) {
        if self.warns() {
            let missed = self.waiting.iter().find(|emitted| emitted.is_missed).or(self.waiting.front());
            log_line!(
                Warn,
                "{}: could not locate a JITLink object in memory {}; its functions stay unnamed (reported once)",
                missed.map_or_else(String::new, |emitted| path(emitted.slot)),
                if self.given_up > 0 { "before too many others were pending" } else { "within a second" }
            );
        }
    }

    /// A thread may be inside `emit` with one of them for long: that says nothing of the others.
    fn warns(&mut self) -> bool {
        if self.warned || (self.waiting.is_empty() && self.given_up == 0) {
            return false;
        }
        self.warned = self.given_up > 0 || self.waiting.iter().any(|emitted| emitted.is_missed);
        self.warned
    }

    /// Those that may be in memory that this thread has made executable, the most likely first, and whether the memory
    /// is surely its own.
    pub(super) fn candidates(&mut self, thread: u64) -> Vec<(usize, bool)> {
        let sure = self.only_one_of(thread);
        let all = self.waiting.iter_mut().enumerate().rev().filter_map(|(index, emitted)| {
            emitted.late += u8::from(emitted.is_missed && emitted.late < LATE_TRIES);
            (emitted.late < LATE_TRIES).then_some((index, Some(emitted.number) == sure))
        });
        let (likely, others): (Vec<_>, Vec<_>) = all.partition(|&(_, sure)| sure);
        likely.into_iter().chain(others).collect()
    }

    /// How much memory is to be searched beside a table that this thread registers, if that may be the table of one of
    /// them.
    pub(super) fn extent(&self, thread: u64) -> Option<u64> {
        let may_be = |emitted: &&Emitted| {
            emitted.late < LATE_TRIES
                && (self.inside.contains(&(thread, emitted.number)) || !self.is_inside(emitted.number))
        };
        self.waiting.iter().filter(may_be).map(|emitted| emitted.pattern.extent()).max()
    }

    /// Those that are looked for because one's `emit` has ended.
    pub(super) fn candidates_at_end(&mut self, number: u64) -> Vec<(usize, bool)> {
        let mut candidates = Vec::new();
        for (index, emitted) in self.waiting.iter_mut().enumerate() {
            if emitted.number == number || emitted.tries < TRIES {
                emitted.tries = emitted.tries.saturating_add(1);
                candidates.push((index, false));
            }
        }
        candidates
    }

    /// Whether the kernel may be asked where code is.
    pub(super) fn may_ask(&self) -> bool {
        self.asked < QUESTIONS
    }

    /// The kernel was asked.
    pub(super) fn asked(&mut self, found: bool) {
        self.asked = if found { 0 } else { self.asked.saturating_add(1) };
    }

    /// Those that wait for a second and are looked for once more, for the last time, together with all others.
    pub(super) fn overdue(&mut self, now: u64) -> Vec<(usize, bool)> {
        let inside: Vec<u64> = self.inside.iter().map(|&(_, number)| number).collect();
        let is_due = |emitted: &Emitted| {
            !emitted.is_missed && now.saturating_sub(emitted.since) >= PATIENCE && !inside.contains(&emitted.number)
        };
        if now.saturating_sub(self.asked_at) < PATIENCE || !self.waiting.iter().any(is_due) {
            return Vec::new();
        }
        self.asked_at = now;
        let mut candidates = Vec::new();
        for (index, emitted) in self.waiting.iter_mut().enumerate() {
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

    fn with_objects(count: usize) -> (EmittedObjects, Vec<u64>) {
        let mut emitted = EmittedObjects::default();
        let numbers = (0..count).map(|_| emitted.begin()).collect::<Vec<_>>();
        numbers.iter().for_each(|&number| emitted.push(number, 0, Pattern::nothing()));
        (emitted, numbers)
    }

    /// A second later: what is looked for, and whether there is a warning.
    fn after_a_second(emitted: &mut EmittedObjects) -> (usize, bool) {
        let now = jitlisten::plumbing::monotonic() + PATIENCE;
        (emitted.overdue(now).len(), emitted.warns())
    }

    #[test]
    fn one_that_is_inside_emit_does_not_hide_another_that_waits() {
        let (mut emitted, numbers) = with_objects(2);
        assert_eq!(after_a_second(&mut emitted), (0, false));
        emitted.end(numbers[1]);
        assert!(!emitted.warns(), "it was not looked for");
        assert_eq!(after_a_second(&mut emitted), (2, true));
        assert_eq!(after_a_second(&mut emitted), (0, false));
    }

    #[test]
    fn one_that_is_given_up_for_newer_ones_is_worth_the_warning() {
        let mut emitted = EmittedObjects::default();
        for number in 0..MOST as u64 {
            emitted.push(number, 0, Pattern::nothing());
        }
        assert!(!emitted.warns());
        emitted.push(MOST as u64, 0, Pattern::nothing());
        assert!(emitted.waiting.len() == MOST && emitted.warns() && !emitted.warns());
    }

    #[test]
    fn memory_is_surely_an_objects_own_only_where_its_thread_links_no_other() {
        let (mut emitted, numbers) = with_objects(1);
        assert_eq!(emitted.candidates(this_thread()), [(0, true)]);
        assert_eq!(emitted.candidates(this_thread() + 1), [(0, false)]);
        // One that is not looked for.
        let inner = emitted.begin();
        assert_eq!(emitted.candidates(this_thread()), [(0, false)]);
        emitted.end(inner);
        assert_eq!(emitted.candidates(this_thread()), [(0, true)]);
        emitted.end(numbers[0]);
        assert_eq!(emitted.candidates(this_thread()), [(0, false)]);
    }

    #[test]
    fn what_is_overdue_is_looked_for_a_few_times_more() {
        let (mut emitted, numbers) = with_objects(1);
        emitted.end(numbers[0]);
        (0..LATE_TRIES).for_each(|_| assert_eq!(emitted.candidates(this_thread()).len(), 1));
        assert_eq!(after_a_second(&mut emitted), (1, true));
        (1..LATE_TRIES).for_each(|_| assert_eq!(emitted.candidates(this_thread()).len(), 1));
        assert_eq!((emitted.candidates(this_thread()).len(), emitted.extent(this_thread())), (0, None));
    }

    #[test]
    fn what_never_comes_is_not_looked_for_without_end() {
        let (mut emitted, numbers) = with_objects(2);
        for _ in 0..TRIES {
            assert_eq!(emitted.candidates_at_end(numbers[0]), [(0, false), (1, false)]);
        }
        assert_eq!(emitted.candidates_at_end(numbers[0]), [(0, false)]);
        (0..QUESTIONS).for_each(|_| emitted.asked(false));
        assert!(!emitted.may_ask());
        emitted.asked(true);
        assert!(emitted.may_ask());
    }
}
