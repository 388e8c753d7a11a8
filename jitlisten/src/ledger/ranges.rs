//! A set of addresses, stored as disjoint ranges.

use std::collections::BTreeMap;

use crate::{Address, AddressRange};

/// Start and end of each range. Ranges neither overlap nor touch.
#[derive(Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds every address of `range`.
    pub fn insert(&mut self, range: AddressRange) {
        let (mut start, mut end) = (range.start().0, range.end().0);
        while let Some((&existing_start, &existing_end)) = self.0.range(..=end).next_back() {
            if existing_end < start {
                break;
            }
            (start, end) = (start.min(existing_start), end.max(existing_end));
            self.0.remove(&existing_start);
        }
        self.0.insert(start, end);
    }

    /// Removes every address of `range`.
    pub fn remove(&mut self, range: AddressRange) {
        let (start, end) = (range.start().0, range.end().0);
        while let Some((&existing_start, &existing_end)) = self.0.range(..end).next_back() {
            if existing_end <= start {
                break;
            }
            self.0.remove(&existing_start);
            if existing_start < start {
                self.0.insert(existing_start, start);
            }
            if existing_end > end {
                self.0.insert(end, existing_end);
            }
        }
    }

    /// All ranges in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.iter_from(0)
    }

    /// Ranges that start at or after `address`.
    pub fn iter_from(&self, address: u64) -> impl Iterator<Item = AddressRange> + '_ {
        self.0.range(address..).filter_map(|(&start, &end)| AddressRange::new(Address(start), end - start))
    }

    /// Returns true if the set contains every byte of `range`.
    pub fn covers(&self, range: AddressRange) -> bool {
        self.0.range(..=range.start().0).next_back().is_some_and(|(_, &end)| end >= range.end().0)
    }

    /// Returns true if the set contains a byte of `range`.
    pub fn overlaps(&self, range: AddressRange) -> bool {
        self.0.range(..range.end().0).next_back().is_some_and(|(_, &end)| end > range.start().0)
    }
}

#[cfg(test)]
pub(crate) fn range(start: u64, end: u64) -> AddressRange {
    AddressRange::new(Address(start), end - start).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_split() {
        let mut ranges = Ranges::default();
        ranges.insert(range(0x1000, 0x2000));
        ranges.insert(range(0x3000, 0x4000));
        ranges.insert(range(0x1800, 0x3800));
        assert_eq!(ranges.0.iter().collect::<Vec<_>>(), [(&0x1000, &0x4000)]);
        ranges.remove(range(0x2000, 0x3000));
        assert_eq!(ranges.0.iter().collect::<Vec<_>>(), [(&0x1000, &0x2000), (&0x3000, &0x4000)]);
        assert!(ranges.covers(range(0x3000, 0x4000)) && !ranges.covers(range(0x1f00, 0x2001)));
        assert!(ranges.overlaps(range(0x1f00, 0x2001)) && !ranges.overlaps(range(0x2000, 0x3000)));
        ranges.remove(range(0x0, 0x5000));
        assert!(ranges.0.is_empty());
    }
}
