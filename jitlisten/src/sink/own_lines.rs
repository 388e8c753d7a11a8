//! Byte ranges of our lines in the perf map, which may have several writers.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Byte ranges of the perf map that our sink wrote. Readers of the map must not attribute these lines to another
/// writer.
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

    /// Returns true if we wrote the byte at `offset`.
    pub(super) fn contains(&self, offset: u64) -> bool {
        let ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next_index = ranges.partition_point(|range| range.start <= offset);
        next_index.checked_sub(1).and_then(|index| ranges.get(index)).is_some_and(|range| range.contains(&offset))
    }

    /// Clears the ranges, because a new file begins.
    pub(crate) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_lines_lie_between_ours() {
        let own_lines = OwnLines::default();
        own_lines.add(10..20);
        own_lines.add(20..30);
        own_lines.add(40..50);
        assert_eq!(
            [9, 10, 29, 30, 39, 40, 49, 50].map(|offset| own_lines.contains(offset)),
            [false, true, true, false, false, true, true, false]
        );
        own_lines.forget();
        assert!(!own_lines.contains(10));
    }
}
