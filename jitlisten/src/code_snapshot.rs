//! Copy of an object's code and unwind tables, read once for all sinks.

use std::cell::OnceCell;

use crate::process::checked_read;
use crate::{AddressRange, LoadedObject};

/// Maximum number of extra bytes to read between the requested ranges. One read takes half the time of two.
const MAX_GAP_BYTES: u64 = 8192;

/// Contents of an object's text ranges and `.eh_frame`. They are read on first use.
pub(crate) struct CodeSnapshot {
    pid: u32,
    /// Requested ranges, sorted by address.
    ranges: Vec<AddressRange>,
    read: OnceCell<Read>,
}

enum Read {
    /// Hull of all ranges, and the bytes in it.
    Whole(AddressRange, Vec<u8>),
    /// Bytes of each range; `None` if unreadable.
    Apart(Vec<Option<Vec<u8>>>),
}

impl CodeSnapshot {
    pub(crate) fn for_object(pid: u32, object: &LoadedObject) -> Self {
        let text = object.text().iter().map(|text| text.range);
        let mut ranges = Vec::with_capacity(object.text().len() + 1);
        ranges.extend(text.chain(object.eh_frame()));
        ranges.sort();
        CodeSnapshot { pid, ranges, read: OnceCell::new() }
    }

    /// PID of the process whose memory is read. Cached, because querying it takes a system call.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Bytes of `range`, which must lie within a requested range; `None` if unreadable.
    pub(crate) fn get(&self, range: AddressRange) -> Option<&[u8]> {
        // Text ranges do not overlap. If an `.eh_frame` overlaps a text range, parts of the `.eh_frame` may not be
        // found.
        let index = self.ranges.partition_point(|candidate| candidate.start() <= range.start()).checked_sub(1)?;
        self.ranges.get(index).filter(|candidate| candidate.covers(range))?;
        let (start, bytes) = match self.read.get_or_init(|| self.read()) {
            Read::Whole(hull, bytes) => (hull.start(), bytes),
            Read::Apart(parts) => (self.ranges.get(index)?.start(), parts.get(index)?.as_ref()?),
        };
        let offset = (range.start().0 - start.0) as usize;
        bytes.get(offset..offset + range.size() as usize)
    }

    fn read(&self) -> Read {
        let hull = self.hull().and_then(|hull| Some((hull, checked_read::copy_in(self.pid, hull).ok()?)));
        match hull {
            Some((hull, bytes)) => Read::Whole(hull, bytes),
            // One range, or a gap between ranges, is not mapped. The other ranges may still be readable.
            None => Read::Apart(self.ranges.iter().map(|&range| checked_read::copy_in(self.pid, range).ok()).collect()),
        }
    }

    /// Hull of all ranges, unless it contains too many other bytes.
    fn hull(&self) -> Option<AddressRange> {
        let start = self.ranges.iter().map(|range| range.start()).min()?;
        let end = self.ranges.iter().map(|range| range.end()).max()?;
        let max_size = self.ranges.iter().fold(MAX_GAP_BYTES, |sum, range| sum.saturating_add(range.size()));
        AddressRange::new(start, end.0 - start.0).filter(|hull| hull.size() <= max_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    fn snapshot(ranges: &[AddressRange]) -> CodeSnapshot {
        let mut ranges = ranges.to_vec();
        ranges.sort();
        CodeSnapshot { pid: std::process::id(), ranges, read: OnceCell::new() }
    }

    fn range(bytes: &[u8]) -> AddressRange {
        AddressRange::new(Address(bytes.as_ptr() as u64), bytes.len() as u64).unwrap()
    }

    #[test]
    fn neighbours_are_read_in_one_piece_and_others_apart() {
        let memory: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        for gap_bytes in [0, 100, 50_000] {
            let (last, first) = (&memory[300 + gap_bytes..400 + gap_bytes], &memory[100..300]);
            let snapshot = snapshot(&[range(last), range(first)]);
            assert_eq!(
                (snapshot.get(range(first)), snapshot.get(range(&last[10..20]))),
                (Some(first), Some(&last[10..20]))
            );
            assert_eq!(matches!(snapshot.read.get(), Some(Read::Whole(..))), gap_bytes < 50_000);
            assert_eq!(snapshot.get(range(&memory[..100])), None);
        }
    }

    #[test]
    fn what_is_there_is_read_whatever_is_missing() {
        let bytes = [1_u8, 2, 3];
        let unmapped = AddressRange::new(Address(16), 8).unwrap();
        let snapshot = snapshot(&[range(&bytes), unmapped]);
        assert_eq!((snapshot.get(range(&bytes)), snapshot.get(unmapped)), (Some(&bytes[..]), None));
    }
}
