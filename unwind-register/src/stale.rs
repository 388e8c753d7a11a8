//! Address ranges whose rules may still be in an unwinder's cache.
//!
//! libunwind caches rules by address until `unw_flush_cache` is called. That call also unmaps the `.debug_frame`
//! sections that libunwind itself has loaded (`flush_cache.c`). It takes no lock, although walks on other threads may
//! be using them. Builds for x86_64 load no such sections (`configure.ac`: only arm and aarch64 do), so there each
//! removal flushes the cache. On aarch64 the cache is flushed only when necessary: when code is registered at an
//! address that was in use before.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum number of separate ranges. Beyond it, all are merged into one.
const MAX_RANGES: usize = if cfg!(miri) { 32 } else { 4096 };

/// When to flush an unwinder's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushPolicy {
    AtRemoval,
    AtReuse,
}

impl FlushPolicy {
    /// Policy for the target architecture.
    pub(crate) const CURRENT: FlushPolicy =
        if cfg!(target_arch = "x86_64") { FlushPolicy::AtRemoval } else { FlushPolicy::AtReuse };
}

/// Ranges removed since the last flush, as a map from start to end. Ranges are disjoint.
pub(crate) struct StaleRanges(BTreeMap<u64, u64>);

impl StaleRanges {
    pub(crate) const fn new() -> Self {
        StaleRanges(BTreeMap::new())
    }

    /// Records that `range` was removed.
    pub(crate) fn add(&mut self, range: &Range<u64>) {
        if self.0.len() >= MAX_RANGES {
            let (start, end) = (self.0.keys().next().copied(), self.0.values().max().copied());
            self.0 = start.zip(end).into_iter().collect();
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&other_start, &other_end)) =
            self.0.range(..=end).next_back().filter(|(_, other_end)| **other_end >= start)
        {
            self.0.remove(&other_start);
            (start, end) = (start.min(other_start), end.max(other_end));
        }
        self.0.insert(start, end);
    }

    /// Returns true if the cache may contain rules for `range`. All ranges are then discarded, because the caller
    /// flushes the cache.
    pub(crate) fn take_overlapping(&mut self, range: &Range<u64>) -> bool {
        let is_stale = self.0.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start);
        if is_stale {
            self.0.clear();
        }
        is_stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_range() {
        let mut stale = StaleRanges::new();
        for range in [10..20, 30..40, 20..30, 5..12, 50..60] {
            stale.add(&range);
        }
        assert_eq!(stale.0, BTreeMap::from([(5, 40), (50, 60)]));
        assert!(!stale.take_overlapping(&(40..50)));
        assert!(stale.take_overlapping(&(39..41)) && stale.0.is_empty());
    }

    #[test]
    fn many_ranges_are_taken_together() {
        let mut stale = StaleRanges::new();
        (0..MAX_RANGES as u64 + 2).for_each(|i| stale.add(&(i * 100..i * 100 + 10)));
        assert!(stale.0.len() <= 3);
        assert!(stale.take_overlapping(&(550..560)));
    }
}
