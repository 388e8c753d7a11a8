//! Objects that JITLink links and that were not seen in memory yet.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::log_line;

use crate::placement::Pattern;
use crate::thread::this_thread;

/// So many wait at most, and so many bytes of them: one that is linked into another process never comes.
const MOST: usize = 256;
const MOST_BYTES: usize = 64 << 20;
/// In nanoseconds.
const PATIENCE: u64 = 1_000_000_000;

/// One of them.
pub(super) struct Emitted {
    pub(super) number: u64,
    /// The source it comes from.
    pub(super) slot: usize,
    pub(super) pattern: Pattern,
    since: u64,
    /// The thread that is inside `emit` with it: memory that becomes executable there is most likely this object's.
    pub(super) thread: Option<u64>,
}

#[derive(Default)]
pub(crate) struct EmittedObjects {
    pub(super) waiting: VecDeque<Emitted>,
    next: u64,
    /// How many were given up for newer ones.
    given_up: u64,
    warned: bool,
}

impl EmittedObjects {
    pub(super) fn push(&mut self, slot: usize, pattern: Pattern) -> u64 {
        let mut bytes: usize = self.waiting.iter().map(|emitted| emitted.pattern.size()).sum();
        while self.waiting.len() >= MOST || bytes > MOST_BYTES {
            let Some(oldest) = self.waiting.pop_front() else { break };
            bytes -= oldest.pattern.size();
            self.given_up += 1;
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

    /// Says once that an object waits for longer than a second, or was given up before it was found.
    pub(crate) fn warn(&mut self) {
        if self.warns() {
            log_line!(
                Warn,
                "an object that JITLink has linked was not found in executable memory {}: it has no names. Of others like it nothing will \
                 be said",
                if self.given_up > 0 { "before more came than are remembered" } else { "for a second" }
            );
        }
    }

    /// A thread may be inside `emit` with one of them for long: that says nothing of the others.
    fn warns(&mut self) -> bool {
        if self.warned || (self.waiting.is_empty() && self.given_up == 0) {
            return false;
        }
        let oldest = self.waiting.iter().find(|emitted| emitted.thread.is_none());
        let waits = oldest.is_some_and(|oldest| jitlisten::monotonic().saturating_sub(oldest.since) >= PATIENCE);
        self.warned = waits || self.given_up > 0;
        self.warned
    }

    /// Those that may be in memory that this thread has made executable, the most likely first.
    pub(super) fn candidates(&self, thread: u64) -> Vec<usize> {
        let is_inside = |index: &usize| self.waiting[*index].thread == Some(thread);
        let (inside, others): (Vec<usize>, Vec<usize>) = (0..self.waiting.len()).rev().partition(is_inside);
        inside.into_iter().chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(number: u64, since: u64, thread: Option<u64>) -> Emitted {
        Emitted { number, slot: 0, pattern: Pattern::nothing(), since, thread }
    }

    #[test]
    fn one_that_is_inside_emit_does_not_hide_another_that_waits() {
        let mut emitted = EmittedObjects::default();
        emitted.waiting.push_back(object(1, 0, Some(1)));
        assert!(!emitted.warns());
        emitted.waiting.push_back(object(2, 0, None));
        assert!(emitted.warns() && !emitted.warns());
    }

    #[test]
    fn one_that_is_given_up_for_newer_ones_is_worth_the_warning() {
        let mut emitted = EmittedObjects::default();
        for _ in 0..MOST {
            emitted.push(0, Pattern::nothing());
        }
        assert!(!emitted.warns());
        emitted.push(0, Pattern::nothing());
        assert!(emitted.waiting.len() == MOST && emitted.warns() && !emitted.warns());
    }
}
