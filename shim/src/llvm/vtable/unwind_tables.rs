//! The range of `.eh_frame`, from `.eh_frame_hdr` (`PT_GNU_EH_FRAME`).
//!
//! ```text
//!   .eh_frame_hdr:  u8 version (1), u8 encodings of the next two and of the table: 0x1b, 0x03, 0x3b
//!                   i32 .eh_frame, from here; u32 entries; { i32 code, i32 its FDE } entries, from the header
//! ```
//!
//! Its end is not recorded: everything up to an FDE that an entry points to belongs to it. Some entries are sampled.

#![forbid(unsafe_code)]

use std::ops::Range;

use crate::llvm::vtable::find::Segment;

const ENCODED: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const HEADER: u64 = 12;
const ENTRY: u64 = 8;
/// How many entries are looked at: the last, and others at equal distances.
const LOOKED_AT: u64 = 16;

/// The header, and what is certain of `.eh_frame`, in `segment`.
pub(crate) fn ranges(segment: &Segment<'_>, header: Range<usize>) -> Vec<Range<usize>> {
    let mut found = vec![header.clone()];
    found.extend(frames(segment, header));
    found
}

fn frames(segment: &Segment<'_>, header: Range<usize>) -> Option<Range<usize>> {
    let at = header.start as u64;
    let number = |address: u64| Some(i64::from(segment.word_at(address)? as u32 as i32));
    let entries = u64::from(segment.word_at(at + 8)? as u32);
    let is_known = segment.word_at(at)?.to_ne_bytes()[..4] == ENCODED;
    if !is_known || entries == 0 || entries.checked_mul(ENTRY)? > (header.len() as u64).checked_sub(HEADER)? {
        return None;
    }
    let start = (at + 4).checked_add_signed(number(at + 4)?)?;
    let looked_at = (0..LOOKED_AT).map(|part| entries * part / LOOKED_AT).chain([entries - 1]);
    let fde = |entry: u64| {
        // The word in front of the one that is wanted, as there may be none behind it.
        let word = segment.word_at(at + HEADER + entry * ENTRY)?;
        at.checked_add_signed(i64::from((word >> 32) as u32 as i32))
    };
    let last = looked_at.filter_map(fde).max()?;
    let is_here = |address: u64| segment.word_at(address).is_some();
    (is_here(start) && is_here(last) && start < last).then_some(start as usize..last as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7000;

    fn header(frames: i32, fdes: &[i32]) -> Vec<u8> {
        let mut bytes = ENCODED.to_vec();
        bytes.extend(frames.to_ne_bytes());
        bytes.extend((fdes.len() as u32).to_ne_bytes());
        for fde in fdes {
            bytes.extend([(-0x1000_i32).to_ne_bytes(), fde.to_ne_bytes()].concat());
        }
        bytes
    }

    #[test]
    fn it_reaches_from_where_the_header_says_to_an_fde() {
        let mut bytes = header(60, &[80, 120, 100]);
        let size = bytes.len();
        bytes.resize(200, 0);
        let segment = Segment { address: AT - 8, bytes: &[&[0; 8], &bytes[..]].concat() };
        let known = AT as usize..AT as usize + size;
        assert_eq!(ranges(&segment, known.clone()), [known.clone(), AT as usize + 64..AT as usize + 120]);
        // Fewer bytes than entries; another encoding; FDEs in front of the first, or outside.
        assert_eq!(ranges(&segment, AT as usize..AT as usize + size - 1).len(), 1);
        for (frames, fdes, first) in
            [(60, [80, 120, 100], 2), (60, [1, 2, 64], 1), (60, [80, 1000, 0], 1), (-1000, [80; 3], 1)]
        {
            let mut bytes = header(frames, &fdes);
            bytes[0] = first;
            bytes.resize(200, 0);
            let segment = Segment { address: AT, bytes: &bytes };
            assert_eq!(ranges(&segment, known.clone()), std::slice::from_ref(&known), "{frames} {fdes:?}");
        }
        let short = Segment { address: AT, bytes: &bytes[..11] };
        assert_eq!(ranges(&short, known.clone()), std::slice::from_ref(&known));
    }
}
