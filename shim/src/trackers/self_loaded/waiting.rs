//! List of objects that were compiled to memory and are not yet located.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::plumbing::{Ledger, Ranges, monotonic};
use jitlisten::{AddressRange, log_line};

use crate::placement::Pattern;
use crate::trackers::waiting_list::WaitingList;
use crate::trackers::watched_code::WatchedCode;

const MAX_OBJECTS: usize = 128;
/// Maximum total size of the patterns of all objects, in bytes.
const MAX_PATTERN_BYTES: usize = 16 << 20;
/// Maximum number of searches for each object. An object that is not loaded by then was compiled for another purpose.
const MAX_SEARCHES: u32 = 256;
/// Maximum number of writable ranges that are searched when a module is compiled. Half of them are the newest ranges.
const MAX_RANGES: usize = 64;

pub(super) struct CompiledObject {
    pub(super) pattern: Pattern,
    /// True if another object may be at the same location. A doubtful object stays unnamed permanently, because the
    /// other one may be dropped first.
    pub(super) is_doubtful: bool,
}

/// Objects compiled to memory that the program may load itself.
#[derive(Default)]
pub(crate) struct SelfLoadedObjects {
    /// Objects not yet located, oldest first.
    pub(super) unlocated: WaitingList<CompiledObject, MAX_OBJECTS, MAX_PATTERN_BYTES>,
    /// True once the log has reported an object compiled to memory.
    has_logged: bool,
    /// True once the log has reported objects with equal code.
    pub(super) logged_doubtful: bool,
    /// Ranges that may contain doubtful objects.
    pub(super) doubtful_ranges: Ranges,
    /// Objects located in writable memory.
    pub(crate) located: WatchedCode,
    /// Ranges that most recently became both executable and writable, oldest first.
    newest_writable: VecDeque<AddressRange>,
    /// Address at which the next search of the other writable ranges begins.
    next_search: u64,
}

impl SelfLoadedObjects {
    /// Adds an object that has to be located.
    pub(crate) fn push(&mut self, pattern: Pattern) {
        if !std::mem::replace(&mut self.has_logged, true) {
            log_line!(
                Info,
                "objects are compiled to memory (LLVMTargetMachineEmitToMemoryBuffer): searching for the code that the \
                 program loads itself"
            );
        }
        // The program may have compiled the same object before.
        let is_doubtful = self.remove_object(pattern.object());
        let size = pattern.size();
        if size <= MAX_PATTERN_BYTES {
            self.unlocated.push(monotonic(), size, CompiledObject { pattern, is_doubtful });
        }
    }

    /// Removes an object that one of LLVM's linkers has received, or that is compiled again. Returns true if it was
    /// doubtful.
    pub(crate) fn remove_object(&mut self, object: &[u8]) -> bool {
        let index = self.unlocated.iter().position(|compiled| compiled.pattern.equals_object(object));
        index.and_then(|index| self.unlocated.remove(index)).is_some_and(|compiled| compiled.is_doubtful)
    }

    /// Returns true if there is nothing to search for, and nothing to compare with memory.
    pub(crate) fn is_idle(&self) -> bool {
        self.unlocated.is_empty() && self.located.is_empty()
    }

    /// Marks an unlocated object as doubtful, because either this object or another one is at `text`.
    pub(super) fn mark_doubtful(&mut self, index: usize, text: &[AddressRange]) {
        if let Some(compiled) = self.unlocated.iter_mut().nth(index) {
            compiled.is_doubtful = true;
        }
        text.iter().for_each(|&text| self.doubtful_ranges.insert(text));
    }

    /// Forgets that doubtful objects may be in `range`, because that memory is about to change.
    pub(crate) fn forget_doubtful(&mut self, range: AddressRange) {
        self.doubtful_ranges.remove(range);
    }

    /// Records a range that became executable and writable.
    pub(crate) fn record_writable(&mut self, range: AddressRange) {
        self.newest_writable.retain(|recorded| !recorded.overlaps(range));
        if self.newest_writable.len() == MAX_RANGES / 2 {
            self.newest_writable.pop_front();
        }
        self.newest_writable.push_back(range);
    }

    /// Returns executable and writable ranges to search: the newest ranges, and some of the others in turn.
    pub(crate) fn next_writable(&mut self, ledger: &Ledger) -> Vec<AddressRange> {
        let newest = self.newest_writable.iter().rev().copied().filter(|&range| ledger.is_writable(range));
        let mut ranges: Vec<AddressRange> = newest.collect();
        let rest: Vec<AddressRange> = ledger.writable_from(self.next_search).take(MAX_RANGES / 2).collect();
        self.next_search = rest.last().filter(|_| rest.len() == MAX_RANGES / 2).map_or(0, |range| range.end().0);
        ranges.extend(
            rest.into_iter().filter(|range| !self.newest_writable.iter().any(|recorded| recorded.overlaps(*range))),
        );
        ranges
    }

    /// Counts a search for each object, and drops objects that have reached the maximum.
    pub(super) fn begin_search(&mut self) {
        self.unlocated.retain(|compiled| compiled.try_again(MAX_SEARCHES));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::memory::range;
    use jitlisten::plumbing::Executable;

    fn pattern(byte: u8) -> Pattern {
        Pattern::from_texts(&[(&[byte; 16], 0..0)])
    }

    #[test]
    fn number_of_objects_and_searches_is_limited() {
        let mut self_loaded = SelfLoadedObjects::default();
        for byte in 0..2 * MAX_OBJECTS {
            self_loaded.push(pattern(byte as u8));
        }
        assert_eq!(self_loaded.unlocated.len(), MAX_OBJECTS);
        (0..MAX_SEARCHES).for_each(|_| self_loaded.begin_search());
        assert_eq!(self_loaded.unlocated.len(), MAX_OBJECTS);
        self_loaded.begin_search();
        assert!(self_loaded.unlocated.is_empty());
    }

    #[test]
    fn newest_ranges_are_always_searched_and_others_in_turn() {
        let (mut self_loaded, mut ledger) = (SelfLoadedObjects::default(), Ledger::default());
        let nth_range = |number: u64| range(number << 20, (number << 20) + 0x1000);
        for number in 1..=3 * MAX_RANGES as u64 {
            assert_eq!(ledger.executable(nth_range(number), Executable::Writable), Default::default());
            self_loaded.record_writable(nth_range(number));
        }
        self_loaded.record_writable(nth_range(1));
        let mut searched = BTreeSet::new();
        for _ in 0..6 {
            let ranges = self_loaded.next_writable(&ledger);
            assert!(ranges.len() <= MAX_RANGES && ranges[..2] == [nth_range(1), nth_range(3 * MAX_RANGES as u64)]);
            assert_eq!(ranges.iter().copied().collect::<BTreeSet<_>>().len(), ranges.len());
            searched.extend(ranges);
        }
        assert_eq!(searched.len(), 3 * MAX_RANGES);
    }
}
