//! Objects that JITLink links and that were not seen in memory yet.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

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
    slot: usize,
    pub(super) pattern: Pattern,
    since: u64,
    /// The thread that is inside `emit` with it: memory that becomes executable there is most likely this object's.
    pub(super) thread: Option<u64>,
}

#[derive(Default)]
pub(crate) struct EmittedObjects {
    pub(super) waiting: VecDeque<Emitted>,
    next: u64,
    warned: bool,
}

impl EmittedObjects {
    pub(super) fn push(&mut self, slot: usize, pattern: Pattern) -> u64 {
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
    pub(super) fn candidates(&self, thread: u64) -> Vec<usize> {
        let is_inside = |index: &usize| self.waiting[*index].thread == Some(thread);
        let (inside, others): (Vec<usize>, Vec<usize>) = (0..self.waiting.len()).rev().partition(is_inside);
        inside.into_iter().chain(others).collect()
    }
}
