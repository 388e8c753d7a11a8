//! Addresses whose rules an unwinder's cache may still hold.
//!
//! libunwind caches rules by address until `unw_flush_cache` is called. That call also unmaps the `.debug_frame`
//! sections it has loaded by itself, without a lock (`flush_cache.c`), under the feet of walks on other threads. Builds
//! for x86_64 do not load them (`configure.ac`: only arm and aarch64 do), so there the cache is emptied at each
//! removal. On aarch64 it is emptied only when it has to be: when code is registered at an address that was in use
//! before.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

/// More ranges than this are not remembered one by one.
const MANY: usize = if cfg!(miri) { 32 } else { 4096 };

/// When an unwinder's cache is emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    AtRemoval,
    AtReuse,
}

impl Flush {
    /// What is right for this machine.
    pub(crate) const HERE: Flush = if cfg!(target_arch = "x86_64") { Flush::AtRemoval } else { Flush::AtReuse };
}

/// The ranges removed since the cache was emptied, disjoint, by their start.
pub(crate) struct Stale(BTreeMap<u64, u64>);

impl Stale {
    pub(crate) const fn new() -> Self {
        Stale(BTreeMap::new())
    }

    /// Notes that `range` was removed.
    pub(crate) fn add(&mut self, range: &Range<u64>) {
        if self.0.len() >= MANY {
            let (start, end) = (self.0.keys().next().copied(), self.0.values().max().copied());
            self.0 = start.zip(end).into_iter().collect();
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = self.0.range(..=end).next_back().filter(|(_, e)| **e >= start) {
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }

    /// Whether the cache may know something about `range`; if so, everything is forgotten, as the caller empties the
    /// cache now.
    pub(crate) fn take(&mut self, range: &Range<u64>) -> bool {
        let hit = self.0.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start);
        if hit {
            self.0.clear();
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_range() {
        let mut stale = Stale::new();
        for range in [10..20, 30..40, 20..30, 5..12, 50..60] {
            stale.add(&range);
        }
        assert_eq!(stale.0, BTreeMap::from([(5, 40), (50, 60)]));
        assert!(!stale.take(&(40..50)));
        assert!(stale.take(&(39..41)) && stale.0.is_empty());
    }

    #[test]
    fn many_ranges_are_taken_together() {
        let mut stale = Stale::new();
        (0..MANY as u64 + 2).for_each(|i| stale.add(&(i * 100..i * 100 + 10)));
        assert!(stale.0.len() <= 3);
        assert!(stale.take(&(550..560)));
    }
}
