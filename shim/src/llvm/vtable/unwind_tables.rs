//! Determines the range of `.eh_frame` from `.eh_frame_hdr` (`PT_GNU_EH_FRAME`).
//!
//! ```text
//!   .eh_frame_hdr:  u8 version (1), u8 encodings of the next two and of the table: 0x1b, 0x03, 0x3b
//!                   i32 .eh_frame, relative to this field; u32 number of entries
//!                   { i32 code, i32 FDE } for each entry, relative to the header
//! ```
//!
//! The end of `.eh_frame` is not recorded anywhere, but the section extends at least to the last FDE that an entry
//! points to. Only a sample of the entries is read.

#![forbid(unsafe_code)]

use std::ops::Range;

use crate::llvm::vtable::find::Segment;

/// Supported version and encodings of `.eh_frame_hdr`.
const SUPPORTED_ENCODINGS: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// Size of `.eh_frame_hdr` without its table.
const HEADER_BYTES: u64 = 12;
/// Size of an entry in the search table of `.eh_frame_hdr`.
const ENTRY_BYTES: u64 = 8;
/// Number of entries sampled at equal distances; the last entry is read as well.
const SAMPLED_ENTRIES: u64 = 16;

/// Returns the ranges of the header and of the known part of `.eh_frame` in `segment`.
pub(crate) fn ranges(segment: &Segment<'_>, header: Range<usize>) -> Vec<Range<usize>> {
    let mut ranges = vec![header.clone()];
    ranges.extend(eh_frame_range(segment, header));
    ranges
}

/// Returns the range from the start of `.eh_frame` to the last sampled FDE.
fn eh_frame_range(segment: &Segment<'_>, header: Range<usize>) -> Option<Range<usize>> {
    let header_start = header.start as u64;
    let read_i32 = |address: u64| Some(i64::from(segment.word_at(address)? as u32 as i32));
    let entries = u64::from(segment.word_at(header_start + 8)? as u32);
    let is_known = segment.word_at(header_start)?.to_ne_bytes()[..4] == SUPPORTED_ENCODINGS;
    if !is_known
        || entries == 0
        || entries.checked_mul(ENTRY_BYTES)? > (header.len() as u64).checked_sub(HEADER_BYTES)?
    {
        return None;
    }
    let start = (header_start + 4).checked_add_signed(read_i32(header_start + 4)?)?;
    let sampled_entries = (0..SAMPLED_ENTRIES).map(|index| entries * index / SAMPLED_ENTRIES).chain([entries - 1]);
    let fde_address = |entry: u64| {
        // The last entry may be at the end of the segment, so read the word that ends with the entry's FDE field.
        let word = segment.word_at(header_start + HEADER_BYTES + entry * ENTRY_BYTES)?;
        header_start.checked_add_signed(i64::from((word >> 32) as u32 as i32))
    };
    let last_fde = sampled_entries.filter_map(fde_address).max()?;
    let is_in_segment = |address: u64| segment.word_at(address).is_some();
    (is_in_segment(start) && is_in_segment(last_fde) && start < last_fde).then_some(start as usize..last_fde as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_ADDRESS: u64 = 0x7000;

    fn header(frames: i32, fdes: &[i32]) -> Vec<u8> {
        let mut bytes = SUPPORTED_ENCODINGS.to_vec();
        bytes.extend(frames.to_ne_bytes());
        bytes.extend((fdes.len() as u32).to_ne_bytes());
        for fde in fdes {
            bytes.extend([(-0x1000_i32).to_ne_bytes(), fde.to_ne_bytes()].concat());
        }
        bytes
    }

    #[test]
    fn eh_frame_range_ends_at_the_last_fde() {
        let mut bytes = header(60, &[80, 120, 100]);
        let size = bytes.len();
        bytes.resize(200, 0);
        let segment = Segment { address: HEADER_ADDRESS - 8, bytes: &[&[0; 8], &bytes[..]].concat() };
        let header_range = HEADER_ADDRESS as usize..HEADER_ADDRESS as usize + size;
        assert_eq!(
            ranges(&segment, header_range.clone()),
            [header_range.clone(), HEADER_ADDRESS as usize + 64..HEADER_ADDRESS as usize + 120]
        );
        // Malformed input: too few bytes for the entries, an unsupported encoding, FDEs before the first one, FDEs
        // outside the segment.
        assert_eq!(ranges(&segment, HEADER_ADDRESS as usize..HEADER_ADDRESS as usize + size - 1).len(), 1);
        for (frames, fdes, first) in
            [(60, [80, 120, 100], 2), (60, [1, 2, 64], 1), (60, [80, 1000, 0], 1), (-1000, [80; 3], 1)]
        {
            let mut bytes = header(frames, &fdes);
            bytes[0] = first;
            bytes.resize(200, 0);
            let segment = Segment { address: HEADER_ADDRESS, bytes: &bytes };
            assert_eq!(
                ranges(&segment, header_range.clone()),
                std::slice::from_ref(&header_range),
                "{frames} {fdes:?}"
            );
        }
        let short = Segment { address: HEADER_ADDRESS, bytes: &bytes[..11] };
        assert_eq!(ranges(&short, header_range.clone()), std::slice::from_ref(&header_range));
    }
}
