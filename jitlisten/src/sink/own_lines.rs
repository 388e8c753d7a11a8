//! Our lines of the perf map, which may have several writers.

#![forbid(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Which bytes of the perf map this process's sink wrote: a reader of the map must not take them for another writer's.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnLines(Arc<Mutex<Vec<Range<u64>>>>);

impl OwnLines {
    pub(super) fn add(&self, range: Range<u64>) {
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
    }

    /// Whether the byte at `offset` is ours.
    pub(super) fn contains(&self, offset: u64) -> bool {
        let ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let after = ranges.partition_point(|range| range.start <= offset);
        after.checked_sub(1).and_then(|last| ranges.get(last)).is_some_and(|range| range.contains(&offset))
    }

    /// A file with nothing of ours begins.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_others_lie_between_ours() {
        let own = OwnLines::default();
        own.add(10..20);
        own.add(20..30);
        own.add(40..50);
        assert_eq!(
            [9, 10, 29, 30, 39, 40, 49, 50].map(|at| own.contains(at)),
            [false, true, true, false, false, true, true, false]
        );
        own.forget();
        assert!(!own.contains(10));
    }
}
