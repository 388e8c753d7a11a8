//! The memory of an object, read once for all sinks.

#![forbid(unsafe_code)]

use std::cell::OnceCell;

use crate::process::checked_read;
use crate::{AddressRange, LoadedObject};

/// The most bytes between what is wanted that are read along: reading in one piece takes half the time of reading in
/// two.
const LARGEST_GAP: u64 = 8192;

/// The text ranges and the `.eh_frame` of an object, as they are in memory when they are first asked for.
pub(crate) struct CodeSnapshot {
    pid: u32,
    /// Sorted by address.
    wanted: Vec<AddressRange>,
    read: OnceCell<Read>,
}

enum Read {
    /// All of them and what is between.
    Whole(AddressRange, Vec<u8>),
    /// Each by itself.
    Apart(Vec<Option<Vec<u8>>>),
}

impl CodeSnapshot {
    pub(crate) fn of(pid: u32, object: &LoadedObject) -> Self {
        let text = object.text().iter().map(|text| text.range);
        let mut wanted = Vec::with_capacity(object.text().len() + 1);
        wanted.extend(text.chain(object.eh_frame()));
        wanted.sort();
        CodeSnapshot { pid, wanted, read: OnceCell::new() }
    }

    /// The process that looks; asked for once, because that is a system call.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The bytes of `range`, which lies in one of them; `None` where they cannot be read.
    pub(crate) fn get(&self, range: AddressRange) -> Option<&[u8]> {
        // Text ranges do not overlap; where an `.eh_frame` does overlap one, some of it may not be found.
        let index = self.wanted.partition_point(|part| part.start() <= range.start()).checked_sub(1)?;
        self.wanted.get(index).filter(|part| part.covers(range))?;
        let (start, bytes) = match self.read.get_or_init(|| self.read()) {
            Read::Whole(hull, bytes) => (hull.start(), bytes),
            Read::Apart(parts) => (self.wanted.get(index)?.start(), parts.get(index)?.as_ref()?),
        };
        let from = (range.start().0 - start.0) as usize;
        bytes.get(from..from + range.size() as usize)
    }

    fn read(&self) -> Read {
        let hull = self.hull().and_then(|hull| Some((hull, checked_read::copy_in(self.pid, hull).ok()?)));
        match hull {
            Some((hull, bytes)) => Read::Whole(hull, bytes),
            // One of them is not there, or something between them. The others may be.
            None => Read::Apart(self.wanted.iter().map(|&range| checked_read::copy_in(self.pid, range).ok()).collect()),
        }
    }

    /// What holds all of them, if there is not much between.
    fn hull(&self) -> Option<AddressRange> {
        let start = self.wanted.iter().map(|range| range.start()).min()?;
        let end = self.wanted.iter().map(|range| range.end()).max()?;
        let wanted = self.wanted.iter().fold(LARGEST_GAP, |sum, range| sum.saturating_add(range.size()));
        AddressRange::new(start, end.0 - start.0).filter(|hull| hull.size() <= wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;

    fn snapshot(wanted: &[AddressRange]) -> CodeSnapshot {
        let mut wanted = wanted.to_vec();
        wanted.sort();
        CodeSnapshot { pid: std::process::id(), wanted, read: OnceCell::new() }
    }

    fn range(bytes: &[u8]) -> AddressRange {
        AddressRange::new(Address(bytes.as_ptr() as u64), bytes.len() as u64).unwrap()
    }

    #[test]
    fn neighbours_are_read_in_one_piece_and_others_apart() {
        let memory: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        for between in [0, 100, 50_000] {
            let (last, first) = (&memory[300 + between..400 + between], &memory[100..300]);
            let snapshot = snapshot(&[range(last), range(first)]);
            assert_eq!(
                (snapshot.get(range(first)), snapshot.get(range(&last[10..20]))),
                (Some(first), Some(&last[10..20]))
            );
            assert_eq!(matches!(snapshot.read.get(), Some(Read::Whole(..))), between < 50_000);
            assert_eq!(snapshot.get(range(&memory[..100])), None);
        }
    }

    #[test]
    fn what_is_there_is_read_whatever_is_missing() {
        let here = [1_u8, 2, 3];
        let nowhere = AddressRange::new(Address(16), 8).unwrap();
        let snapshot = snapshot(&[range(&here), nowhere]);
        assert_eq!((snapshot.get(range(&here)), snapshot.get(nowhere)), (Some(&here[..]), None));
    }
}
