//! Encoder for our own copy of unwind rules. It uses absolute pointers, one CIE per group that needs it, and a
//! terminator after each group.
//!
//! Entries are padded to 8 bytes, so that `length` and `pc_begin` are aligned words. Removing a function then takes a
//! single store to `length` (see `memory`).

use std::ops::Range;

use jitlisten_unwinder::{NewCommon, NewEntry, Pointers};

use super::check::RuleChecker;
use super::parse::Fde;

/// FDEs that are registered together. libgcc takes whole sections, and the functions of different sections must not
/// interleave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Offset of the group in the encoded bytes; a terminator follows its last entry.
    pub(crate) offset: usize,
    /// Label shared by the group's FDEs.
    pub(crate) label: u32,
}

/// Encoded entries, ready to be copied to an address that is a multiple of 8.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) bytes: Vec<u8>,
    pub(crate) groups: Vec<Group>,
    /// Address ranges of functions that were rejected because their instructions do not decode.
    pub(crate) refused: Vec<(u64, u64)>,
}

/// Encodes sorted FDEs, each with a label. Neighbours with the same label form one group.
pub(crate) fn encode(cies: &[NewCommon<'_>], fdes: &[(Fde<'_>, u32)], mut checker: RuleChecker) -> Encoded {
    let mut out = Encoded { bytes: Vec::new(), groups: Vec::new(), refused: Vec::new() };
    for labelled_fdes in fdes.chunk_by(|a, b| a.1 == b.1) {
        let group_start = out.bytes.len();
        let mut cie_offsets = vec![None; cies.len()];
        for (fde, _) in labelled_fdes {
            let previous_length = out.bytes.len();
            let cie = &cies[fde.cie];
            let cie_offset = *cie_offsets[fde.cie].get_or_insert_with(|| cie.write(&mut out.bytes, Pointers::Absolute));
            let Fde { start, end, lsda, instructions, .. } = *fde;
            let entry = NewEntry { start, size: end - start, lsda, instructions };
            let fde_offset = entry.write(&mut out.bytes, cie_offset, cie, Pointers::Absolute);
            if checker.check_encoded(&out.bytes[group_start..], fde_offset - group_start).is_err() {
                out.bytes.truncate(previous_length);
                if cie_offset == previous_length {
                    cie_offsets[fde.cie] = None;
                }
                out.refused.push((fde.start, fde.end));
            }
        }
        if out.bytes.len() > group_start {
            out.bytes.extend([0; 8]); // the terminator, and padding to 8
            out.groups.push(Group { offset: group_start, label: labelled_fdes[0].1 });
        }
    }
    out
}

/// Iterates over the FDEs that [`encode`] wrote. Yields the offset of each FDE and the address range of its function.
pub(crate) fn entries(bytes: &[u8]) -> impl Iterator<Item = (usize, Range<u64>)> + '_ {
    let read_word = |position: usize| {
        bytes.get(position..position + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    };
    let mut position = 0;
    std::iter::from_fn(move || {
        loop {
            let header = read_word(position)?;
            let (offset, length, id) = (position, header as u32 as usize, header >> 32);
            position += if length == 0 { 8 } else { 4 + length };
            if id != 0 {
                let start = read_word(offset + 8)?;
                return Some((offset, start..start + read_word(offset + 16)?));
            }
        }
    })
}
