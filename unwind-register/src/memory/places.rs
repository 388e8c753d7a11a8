//! Allocator of blobs in the region: free blocks by size class, oldest first.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

/// Time during which the bytes of a dropped blob are not reused.
pub(crate) const QUARANTINE_NS: u64 = 1_000_000_000;

/// Number of reserved bytes at the start of the region, which contain the zero-length FDE.
const RESERVED_BYTES: usize = 64;

/// Allocator for a region of `limit` bytes.
pub(crate) struct RegionAllocator {
    limit: usize,
    /// Offset of the first byte that was never allocated.
    unused_start: usize,
    /// Free blocks by size class, each with the time when it was freed and its offset.
    free_blocks: BTreeMap<usize, VecDeque<(u64, usize)>>,
    free_bytes: usize,
}

impl RegionAllocator {
    pub(crate) const fn new() -> Self {
        RegionAllocator { limit: 0, unused_start: RESERVED_BYTES, free_blocks: BTreeMap::new(), free_bytes: 0 }
    }

    /// Sets the size of the region.
    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns two byte counts: ever allocated, and free or in quarantine.
    pub(crate) fn usage(&self) -> (usize, usize) {
        (self.unused_start, self.free_bytes)
    }

    /// Rounds a size up to one of four steps per power of two, so that blobs of similar sizes can reuse a block.
    fn size_class(size: usize) -> usize {
        let step = (size.next_power_of_two() / 8).max(16);
        size.next_multiple_of(step)
    }

    /// Allocates `size` bytes: a block whose quarantine is over, or never-used memory.
    pub(crate) fn allocate(&mut self, size: usize, now: u64) -> Option<usize> {
        let size_class = RegionAllocator::size_class(size);
        let is_reusable = |blocks: &&mut VecDeque<(u64, usize)>| {
            blocks.front().is_some_and(|(freed_at, _)| now.saturating_sub(*freed_at) >= QUARANTINE_NS)
        };
        if let Some(blocks) = self.free_blocks.get_mut(&size_class).filter(is_reusable) {
            self.free_bytes -= size_class;
            return blocks.pop_front().map(|(_, offset)| offset);
        }
        let end = self.unused_start.checked_add(size_class).filter(|&end| end <= self.limit)?;
        Some(std::mem::replace(&mut self.unused_start, end))
    }

    /// Frees the block of `size` bytes at `offset`.
    pub(crate) fn free(&mut self, offset: usize, size: usize, now: u64) {
        let size_class = RegionAllocator::size_class(size);
        self.free_bytes += size_class;
        self.free_blocks.entry(size_class).or_default().push_back((now, offset));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_after_the_quarantine_only() {
        let mut allocator = RegionAllocator::new();
        allocator.set_limit(1 << 20);
        let first = allocator.allocate(100, 0).expect("space");
        allocator.free(first, 100, 5);
        let second = allocator.allocate(100, 6).expect("space");
        assert_ne!(first, second);
        assert_eq!(allocator.allocate(97, 5 + QUARANTINE_NS), Some(first), "of the same class");
        assert_eq!(allocator.usage().1, 0);
    }

    #[test]
    fn places_are_aligned_and_end_at_the_limit() {
        let mut allocator = RegionAllocator::new();
        allocator.set_limit(1000);
        let mut offsets = Vec::new();
        while let Some(offset) = allocator.allocate(90, 0) {
            offsets.push(offset);
        }
        assert!(offsets.iter().all(|offset| offset % 16 == 0 && *offset >= RESERVED_BYTES && *offset + 90 <= 1000));
        assert_eq!(offsets.len(), (1000 - 64) / 96);
        assert_eq!(allocator.allocate(usize::MAX / 2, 0), None);
    }

    #[test]
    fn classes_waste_at_most_a_quarter() {
        for size in 64..5000 {
            let size_class = RegionAllocator::size_class(size);
            assert!(size_class >= size && size_class - size <= (size / 4).max(16), "{size} -> {size_class}");
        }
    }
}
