//! Writable memory that LLVM has allocated with `mmap(2)`. This memory becomes executable only through another call
//! that we observe, so the kernel need not be queried about it. Before Linux 6.11, such a query means reading all
//! mappings of the process as text.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

use jitlisten::AddressRange;

const MAX_RANGES: usize = 64;

/// The most recently allocated ranges, oldest first.
#[derive(Default)]
pub(crate) struct AllocatedRanges {
    ranges: VecDeque<AddressRange>,
}

impl AllocatedRanges {
    /// Records a new range, which is writable and not executable.
    pub(crate) fn add(&mut self, range: AddressRange) {
        self.remove(range);
        if self.ranges.len() == MAX_RANGES {
            self.ranges.pop_front();
        }
        self.ranges.push_back(range);
    }

    /// Forgets all ranges that overlap `range`, because that memory has changed.
    pub(crate) fn remove(&mut self, range: AddressRange) {
        self.ranges.retain(|allocated| !allocated.overlaps(range));
    }

    pub(crate) fn containing(&self, part: AddressRange) -> Option<AddressRange> {
        self.ranges
            .iter()
            .rev()
            .copied()
            .find(|allocation| allocation.start() <= part.start() && part.end() <= allocation.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::range;

    #[test]
    fn newest_allocations_are_known_until_removed() {
        let mut allocated = AllocatedRanges::default();
        allocated.add(range(0x1000, 0x4000));
        assert_eq!(allocated.containing(range(0x2000, 0x3000)), Some(range(0x1000, 0x4000)));
        assert_eq!(allocated.containing(range(0x3000, 0x5000)), None);
        allocated.add(range(0x3000, 0x5000));
        assert_eq!(allocated.containing(range(0x2000, 0x3000)), None, "something else is at its end");
        assert_eq!(allocated.containing(range(0x3000, 0x5000)), Some(range(0x3000, 0x5000)));
        allocated.remove(range(0x4000, 0x4001));
        assert_eq!(allocated.containing(range(0x3000, 0x4000)), None);
        for number in 1..=MAX_RANGES as u64 + 1 {
            allocated.add(range(number << 20, (number << 20) + 0x1000));
        }
        assert_eq!(allocated.containing(range(1 << 20, (1 << 20) + 1)), None);
        assert!(allocated.containing(range(2 << 20, (2 << 20) + 1)).is_some());
    }
}
