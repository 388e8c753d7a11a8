//! Memory of the process, as the trackers see it.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{LiveObjects, checked_read, mappings_in};
use jitlisten::{Address, AddressRange};

use crate::memory::allocated::AllocatedRanges;
use crate::placement::{Pattern, Piece, Surroundings};

/// Maximum size of a memory range that is searched; larger ranges are skipped.
pub(crate) const MAX_SEARCHED_BYTES: u64 = 64 << 20;
/// Maximum number of bytes searched for unwind tables on each side of code.
pub(crate) const MAX_REACH_BYTES: u64 = 4 << 20;
/// Upper bound of the gaps between segments, in bytes.
const SEGMENT_GAPS_BYTES: u64 = 1 << 18;

pub(crate) struct LocatedObject {
    /// Debug object with the addresses of its sections.
    pub(crate) object: Vec<u8>,
    /// Slot of the LLVM instance that has linked the object; `None` if the program has loaded it itself.
    pub(crate) slot: Option<usize>,
    /// Range of the object's first text section.
    pub(crate) first_text: AddressRange,
}

/// Facts about the process's memory: live code, and allocated ranges.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    pub(crate) objects: &'a LiveObjects,
    pub(crate) allocated: &'a AllocatedRanges,
}

impl Memory<'_> {
    /// Returns true if no live object overlaps `range`.
    pub(crate) fn is_free(&self, range: AddressRange) -> bool {
        self.objects.ledger(|ledger| ledger.is_free(range))
    }

    /// Returns readable memory before and after code, up to `max_reach` bytes within the same allocation. If the
    /// allocation is unknown, returns the neighbouring mappings.
    pub(crate) fn surroundings_of(&self, code: AddressRange, max_reach: u64) -> Surroundings {
        let allocated = self.allocated.containing(code).filter(|allocation| *allocation != code);
        Surroundings::new(Box::new(move || {
            let neighbour = |address: Address| {
                mappings_in(AddressRange::new(address, 1)?).ok()??.first().map(|mapping| mapping.range)
            };
            let (before, after, max_reach) = match allocated {
                Some(allocation) => (Some(allocation), Some(allocation), max_reach),
                None => {
                    let last = code.start().0.checked_sub(1);
                    (last.and_then(|last| neighbour(Address(last))), neighbour(code.end()), MAX_REACH_BYTES)
                }
            };
            let start = before.map(|before| before.start().0.max(code.start().0.saturating_sub(max_reach)));
            let before = start.and_then(|start| AddressRange::new(Address(start), code.start().0 - start));
            let end = after.map(|after| after.end().0.min(code.end().0.saturating_add(max_reach)));
            let after = end.and_then(|end| AddressRange::new(code.end(), end - code.end().0));
            [before, after].into_iter().flatten().filter(|range| range.size() > 0).filter_map(read_piece).collect()
        }))
    }
}

/// Maximum distance between these objects' code and their other sections, if one allocation contains all of them.
pub(crate) fn max_reach<'a>(patterns: impl Iterator<Item = &'a Pattern>) -> u64 {
    let largest = patterns.map(Pattern::size).max().unwrap_or_default() as u64;
    (2 * largest + SEGMENT_GAPS_BYTES).min(MAX_REACH_BYTES)
}

/// Copies memory; `None` if it is not readable.
pub(crate) fn read_memory(range: AddressRange) -> Option<Vec<u8>> {
    checked_read::copy(range).ok()
}

/// Copies memory together with its address; `None` if it is not readable.
pub(crate) fn read_piece(range: AddressRange) -> Option<Piece> {
    Some(Piece { start: range.start(), bytes: read_memory(range)? })
}
