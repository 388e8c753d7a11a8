//! Objects not found yet.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::AddressRange;
use jitlisten::plumbing::{Ledger, Ranges};

use crate::channels::gdb_list::unregistered::Unregistered;
use crate::placement::Pattern;

/// So many are looked for at a time, and so many bytes of them. The oldest are forgotten.
const MOST: usize = 128;
const MOST_BYTES: usize = 16 << 20;
/// So often each: what is not loaded by then was compiled for something else.
const TRIES: u32 = 256;
/// So many pieces of memory that may be written are looked at when a module is compiled: half of them the last ones.
const RANGES: usize = 64;

pub(super) struct Compiled {
    pub(super) pattern: Pattern,
    tries: u32,
    /// Whether it was found where another one may be, too. Then it never has a name: the other one may be forgotten
    /// first.
    pub(super) is_doubtful: bool,
}

/// Those that wait, the oldest first.
#[derive(Default)]
pub(crate) struct SelfLoaded {
    pub(super) waiting: VecDeque<Compiled>,
    /// Whether the log has said that there are such objects.
    pub(super) logged_any: bool,
    /// Whether the log has said that some have equal code.
    pub(super) logged_doubtful: bool,
    /// Where doubtful ones are.
    pub(super) doubts: Ranges,
    /// Those that were found in memory that may be written.
    pub(crate) placed: Unregistered,
    /// The memory that has last become executable and writable, and where the rest of it was looked at last.
    writable: VecDeque<AddressRange>,
    looked_at: u64,
}

impl SelfLoaded {
    pub(super) fn push(&mut self, pattern: Pattern) {
        // The same object once more.
        let is_doubtful = self.linked(pattern.object());
        let mut bytes = pattern.size() + self.waiting.iter().map(|compiled| compiled.pattern.size()).sum::<usize>();
        while self.waiting.len() >= MOST || bytes > MOST_BYTES {
            let Some(oldest) = self.waiting.pop_front() else { return };
            bytes -= oldest.pattern.size();
        }
        self.waiting.push_back(Compiled { pattern, tries: 0, is_doubtful });
    }

    /// One of LLVM's linkers has got this object, or it is compiled once more. Returns whether it was doubtful.
    pub(crate) fn linked(&mut self, object: &[u8]) -> bool {
        let is_it = |compiled: &Compiled| compiled.pattern.is_object(object);
        let index = self.waiting.iter().position(is_it);
        index.and_then(|index| self.waiting.remove(index)).is_some_and(|compiled| compiled.is_doubtful)
    }

    /// Whether nothing is to be looked for.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.placed.is_empty()
    }

    /// One of those that wait is perhaps at `text`, and perhaps not.
    pub(super) fn doubt(&mut self, index: usize, text: &[AddressRange]) {
        if let Some(compiled) = self.waiting.get_mut(index) {
            compiled.is_doubtful = true;
        }
        text.iter().for_each(|&text| self.doubts.insert(text));
    }

    /// What is in `range` goes.
    pub(super) fn forget_doubts(&mut self, range: AddressRange) {
        self.doubts.remove(range);
    }

    /// `range` may be executed and written from now on.
    pub(super) fn note_writable(&mut self, range: AddressRange) {
        self.writable.retain(|last| !last.overlaps(range));
        if self.writable.len() == RANGES / 2 {
            self.writable.pop_front();
        }
        self.writable.push_back(range);
    }

    /// Memory that may be executed and written: the last of it, and some of the rest, in turn.
    pub(super) fn next_writable(&mut self, ledger: &Ledger) -> Vec<AddressRange> {
        let last = self.writable.iter().rev().copied().filter(|&range| ledger.is_writable(range));
        let mut ranges: Vec<AddressRange> = last.collect();
        let rest: Vec<AddressRange> = ledger.writable_from(self.looked_at).take(RANGES / 2).collect();
        self.looked_at = rest.last().filter(|_| rest.len() == RANGES / 2).map_or(0, |range| range.end().0);
        ranges.extend(rest.into_iter().filter(|range| !self.writable.iter().any(|last| last.overlaps(*range))));
        ranges
    }

    /// Memory is about to be looked at.
    pub(super) fn begin(&mut self) {
        self.waiting.retain_mut(|compiled| {
            compiled.tries += 1;
            compiled.tries <= TRIES
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::memory::range;
    use jitlisten::plumbing::Executable;

    fn pattern(byte: u8) -> Pattern {
        Pattern::of_texts(&[(&[byte; 16], 0..0)])
    }

    #[test]
    fn no_more_wait_than_are_remembered_and_none_for_ever() {
        let mut waiting = SelfLoaded::default();
        for byte in 0..2 * MOST {
            waiting.push(pattern(byte as u8));
        }
        assert_eq!(waiting.waiting.len(), MOST);
        (0..TRIES).for_each(|_| waiting.begin());
        assert_eq!(waiting.waiting.len(), MOST);
        waiting.begin();
        assert!(waiting.waiting.is_empty());
    }

    #[test]
    fn all_memory_is_looked_at_in_turn_and_the_last_of_it_each_time() {
        let (mut waiting, mut ledger) = (SelfLoaded::default(), Ledger::default());
        let place = |number: u64| range(number << 20, (number << 20) + 0x1000);
        for number in 1..=3 * RANGES as u64 {
            assert_eq!(ledger.executable(place(number), Executable::Writable), Default::default());
            waiting.note_writable(place(number));
        }
        waiting.note_writable(place(1));
        let mut seen = BTreeSet::new();
        for _ in 0..6 {
            let ranges = waiting.next_writable(&ledger);
            assert!(ranges.len() <= RANGES && ranges[..2] == [place(1), place(3 * RANGES as u64)]);
            assert_eq!(ranges.iter().copied().collect::<BTreeSet<_>>().len(), ranges.len());
            seen.extend(ranges);
        }
        assert_eq!(seen.len(), 3 * RANGES);
    }
}
