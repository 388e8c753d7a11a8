//! Which parts of the region are free: first by size, then by how long they have been free.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

/// How long a dropped blob keeps its bytes, in nanoseconds.
pub(crate) const QUARANTINE: u64 = 1_000_000_000;

/// The place that is never given out: the FDE of length 0 at the start of the region.
const RESERVED: usize = 64;

/// The book of a region of `limit` bytes.
pub(crate) struct Places {
    limit: usize,
    next: usize,
    free: BTreeMap<usize, VecDeque<(u64, usize)>>,
    free_bytes: usize,
}

impl Places {
    pub(crate) const fn new() -> Self {
        Places { limit: 0, next: RESERVED, free: BTreeMap::new(), free_bytes: 0 }
    }

    /// Sets how large the region is.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// (bytes ever allocated, bytes freed since and not reused).
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.next, self.free_bytes)
    }

    /// Sizes are rounded up to four steps per power of two, so that places are found again by similar blobs.
    fn class(size: usize) -> usize {
        let step = (size.next_power_of_two() / 8).max(16);
        size.next_multiple_of(step)
    }

    /// A place for `size` bytes that no one has looked at for the quarantine, or that is new.
    pub(crate) fn take(&mut self, size: usize, now: u64) -> Option<usize> {
        let class = Places::class(size);
        let rested = |places: &&mut VecDeque<(u64, usize)>| {
            places.front().is_some_and(|(since, _)| now.saturating_sub(*since) >= QUARANTINE)
        };
        if let Some(places) = self.free.get_mut(&class).filter(rested) {
            self.free_bytes -= class;
            return places.pop_front().map(|(_, offset)| offset);
        }
        let end = self.next.checked_add(class).filter(|&end| end <= self.limit)?;
        Some(std::mem::replace(&mut self.next, end))
    }

    /// Gives back the place of `size` bytes at `offset`.
    pub(crate) fn give_back(&mut self, offset: usize, size: usize, now: u64) {
        let class = Places::class(size);
        self.free_bytes += class;
        self.free.entry(class).or_default().push_back((now, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_after_the_quarantine_only() {
        let mut places = Places::new();
        places.set_limit(1 << 20);
        let first = places.take(100, 0).expect("space");
        places.give_back(first, 100, 5);
        let second = places.take(100, 6).expect("space");
        assert_ne!(first, second);
        assert_eq!(places.take(97, 5 + QUARANTINE), Some(first), "of the same class");
        assert_eq!(places.used().1, 0);
    }

    #[test]
    fn places_are_aligned_and_end_at_the_limit() {
        let mut places = Places::new();
        places.set_limit(1000);
        let mut offsets = Vec::new();
        while let Some(offset) = places.take(90, 0) {
            offsets.push(offset);
        }
        assert!(offsets.iter().all(|offset| offset % 16 == 0 && *offset >= RESERVED && *offset + 90 <= 1000));
        assert_eq!(offsets.len(), (1000 - 64) / 96);
        assert_eq!(places.take(usize::MAX / 2, 0), None);
    }

    #[test]
    fn classes_waste_at_most_a_quarter() {
        for size in 64..5000 {
            let class = Places::class(size);
            assert!(class >= size && class - size <= (size / 4).max(16), "{size} -> {class}");
        }
    }
}
