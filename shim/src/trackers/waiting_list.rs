//! Bounded list of items that wait for an event that may never come, such as code that is not yet located or not yet
//! final.
//!
//! The library has no thread of its own, so the age of the items and their number of tries are checked whenever an
//! event occurs.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::collections::vec_deque::IterMut;
use std::ops::{Deref, DerefMut};

/// An entry of a waiting list.
pub(crate) struct Waiting<T> {
    item: T,
    /// Size in bytes, which counts towards the limit of the list.
    size: usize,
    /// Time at which the item was added (monotonic clock), in ns.
    added_at_ns: u64,
    tries: u32,
}

impl<T> Waiting<T> {
    /// Counts a try. Returns false once there have been `max_tries` tries.
    pub(crate) fn try_again(&mut self, max_tries: u32) -> bool {
        let may_try = self.tries < max_tries;
        self.tries += u32::from(may_try);
        may_try
    }

    /// Returns true if the item has waited for `timeout_ns` at the time `now`.
    pub(crate) fn is_overdue(&self, now: u64, timeout_ns: u64) -> bool {
        now.saturating_sub(self.added_at_ns) >= timeout_ns
    }
}

impl<T> Deref for Waiting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T> DerefMut for Waiting<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.item
    }
}

/// List of at most `MAX_ENTRIES` entries with at most `MAX_BYTES` in total, oldest first. The oldest entries are
/// dropped to make room for newer ones.
pub(crate) struct WaitingList<T, const MAX_ENTRIES: usize, const MAX_BYTES: usize> {
    entries: VecDeque<Waiting<T>>,
    total_bytes: usize,
    /// True once an entry was dropped to make room.
    pub(crate) has_dropped: bool,
    has_warned: bool,
}

impl<T, const MAX_ENTRIES: usize, const MAX_BYTES: usize> Default for WaitingList<T, MAX_ENTRIES, MAX_BYTES> {
    fn default() -> Self {
        WaitingList { entries: VecDeque::new(), total_bytes: 0, has_dropped: false, has_warned: false }
    }
}

impl<T, const MAX_ENTRIES: usize, const MAX_BYTES: usize> WaitingList<T, MAX_ENTRIES, MAX_BYTES> {
    /// Adds an item of `size` bytes at the time `now`.
    pub(crate) fn push(&mut self, now: u64, size: usize, item: T) {
        while self.entries.len() >= MAX_ENTRIES || self.total_bytes.saturating_add(size) > MAX_BYTES {
            if self.remove(0).is_none() {
                break;
            }
            self.has_dropped = true;
        }
        self.total_bytes += size;
        self.entries.push_back(Waiting { item, size, added_at_ns: now, tries: 0 });
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<T> {
        let removed = self.entries.remove(index)?;
        self.total_bytes -= removed.size;
        Some(removed.item)
    }

    /// Removes the entries for which `is_kept` returns false.
    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&mut Waiting<T>) -> bool) {
        self.entries.retain_mut(is_kept);
        self.total_bytes = self.entries.iter().map(|entry| entry.size).sum();
    }

    /// Removes and returns the items that have waited for `timeout_ns` at the time `now`.
    pub(crate) fn take_overdue(&mut self, now: u64, timeout_ns: u64) -> Vec<T> {
        let count = self.entries.iter().take_while(|entry| entry.is_overdue(now, timeout_ns)).count();
        (0..count).filter_map(|_| self.remove(0)).collect()
    }

    pub(crate) fn iter_mut(&mut self) -> IterMut<'_, Waiting<T>> {
        self.entries.iter_mut()
    }

    /// Returns true the first time that `is_due` is true, so that a warning is logged only once.
    pub(crate) fn should_warn(&mut self, is_due: bool) -> bool {
        is_due && !std::mem::replace(&mut self.has_warned, true)
    }
}

impl<T, const MAX_ENTRIES: usize, const MAX_BYTES: usize> Deref for WaitingList<T, MAX_ENTRIES, MAX_BYTES> {
    type Target = VecDeque<Waiting<T>>;

    fn deref(&self) -> &Self::Target {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_entries_are_dropped_and_overdue_ones_taken_once() {
        let mut list = WaitingList::<u64, 3, 100>::default();
        (0..3).for_each(|number| list.push(number, 30, number));
        assert!(!list.has_dropped);
        list.push(3, 30, 3);
        list.push(4, 70, 4);
        assert!(list.has_dropped && list.iter().map(|entry| entry.item).eq([3, 4]), "by number, then by size");
        assert_eq!((list.take_overdue(12, 10), list.take_overdue(13, 10)), (vec![], vec![3]));
        list.push(20, 1000, 5);
        assert!(list.iter().map(|entry| entry.item).eq([5]), "the newest stays, whatever its size");
        assert!(list.iter_mut().all(|entry| entry.try_again(2) && entry.try_again(2) && !entry.try_again(2)));
        list.retain(|entry| entry.item != 5);
        assert_eq!((list.is_empty(), list.total_bytes), (true, 0));
        assert_eq!([false, true, true].map(|is_due| list.should_warn(is_due)), [false, true, false]);
    }
}
