//! Encoder for our own copy of unwind rules. It uses absolute pointers, one CIE per group that needs it, and a
//! terminator after each group.
//!
//! ```text
//!   CIE  u32 length, u32 0, 1, "zPLRSB\0" (as needed), alignments, return column, augmentation data, instructions
//!   FDE  u32 length, u32 distance to the CIE, u64 pc_begin, u64 pc_range, augmentation data (u64 LSDA), instructions
//!   u32 0
//! ```
//! Entries are padded with `DW_CFA_nop` to 8 bytes, so that `length` and `pc_begin` are aligned words. Removing a
//! function then takes a single store to `length` (see `memory`).

use std::ops::Range;

use super::check::RuleChecker;
use super::parse::{Cie, Fde};

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
pub(crate) fn encode(cies: &[Cie<'_>], fdes: &[(Fde<'_>, u32)], mut checker: RuleChecker) -> Encoded {
    let mut out = Encoded { bytes: Vec::new(), groups: Vec::new(), refused: Vec::new() };
    for labelled_fdes in fdes.chunk_by(|a, b| a.1 == b.1) {
        let group_start = out.bytes.len();
        let mut cie_offsets = vec![None; cies.len()];
        for (fde, _) in labelled_fdes {
            let previous_length = out.bytes.len();
            let cie_offset = *cie_offsets[fde.cie].get_or_insert_with(|| encode_cie(&mut out.bytes, &cies[fde.cie]));
            let fde_offset = encode_fde(&mut out.bytes, cie_offset, &cies[fde.cie], fde);
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

fn encode_cie(out: &mut Vec<u8>, cie: &Cie<'_>) -> usize {
    let start = begin_entry(out, 0);
    out.push(1); // version
    let letters = [(true, b'z'), (cie.personality != 0, b'P'), (cie.lsda, b'L'), (true, b'R')];
    let flags = [(cie.signal_frame, b'S'), (cie.b_key, b'B'), (true, 0)];
    out.extend(letters.iter().chain(&flags).filter(|(is_present, _)| *is_present).map(|(_, letter)| letter));
    uleb128(out, cie.code_alignment);
    sleb128(out, cie.data_alignment);
    out.push(cie.return_column as u8); // one byte in version 1; no supported architecture has a return column above 255
    let size = if cie.personality != 0 { 9 } else { 0 } + usize::from(cie.lsda) + 1;
    uleb128(out, size as u64);
    if cie.personality != 0 {
        out.push(0); // DW_EH_PE_absptr, like all pointers in this encoding
        out.extend(cie.personality.to_le_bytes());
    }
    if cie.lsda {
        out.push(0);
    }
    out.push(0);
    out.extend_from_slice(cie.instructions);
    end_entry(out, start);
    start
}

fn encode_fde(out: &mut Vec<u8>, cie_at: usize, cie: &Cie<'_>, fde: &Fde<'_>) -> usize {
    let distance = out.len() + 4 - cie_at;
    let start = begin_entry(out, distance as u32);
    out.extend(fde.start.to_le_bytes());
    out.extend((fde.end - fde.start).to_le_bytes());
    if cie.lsda {
        out.push(8);
        out.extend(fde.lsda.to_le_bytes());
    } else {
        out.push(0);
    }
    out.extend_from_slice(fde.instructions);
    end_entry(out, start);
    start
}

/// Starts an entry with a placeholder for its length; returns its offset.
fn begin_entry(out: &mut Vec<u8>, id: u32) -> usize {
    let start = out.len();
    out.extend([0; 4]);
    out.extend(id.to_le_bytes());
    start
}

/// Pads the entry with `DW_CFA_nop` (0) and writes its length.
fn end_entry(out: &mut Vec<u8>, start: usize) {
    out.resize(out.len().next_multiple_of(8), 0);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

fn uleb128(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn sleb128(out: &mut Vec<u8>, mut value: i64) {
    while !(-0x40..0x40).contains(&value) {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8 & 0x7f);
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
