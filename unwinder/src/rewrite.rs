//! Writes the entries of an `.eh_frame` again, for code at another address.
//!
//! ```text
//!   CIE   u32 length, u32 0, 1, "zPLRSB\0" (as needed), alignments, return column, augmentation data, instructions
//!   FDE   u32 length, u32 distance to the CIE, start, size, augmentation data (LSDA), instructions
//! ```
//! Instructions are copied unchanged. Entries are padded with `DW_CFA_nop` to 8 bytes.

use alloc::vec::Vec;

use gimli::constants as dw;
use gimli::leb128::write::Leb128;

use crate::section::Common;

/// Encoding of the pointers in rewritten entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointers {
    /// `DW_EH_PE_absptr`: 64 bits.
    Absolute,
    /// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`. Personality routines and LSDAs may be out of reach, and are left out.
    Relative,
}

/// The fields of a CIE to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewCommon<'a> {
    /// Factor of `DW_CFA_advance_loc`.
    pub code_alignment: u64,
    /// Factor of register offsets.
    pub data_alignment: i64,
    /// Column of the return address.
    pub return_address: u8,
    /// Address of the personality routine; 0 if none.
    pub personality: u64,
    /// True if entries have a pointer to their LSDA.
    pub has_lsda: bool,
    /// True for the frame of a signal handler.
    pub is_signal_frame: bool,
    /// True if return addresses are signed with AArch64's B key.
    pub has_second_key: bool,
    /// Initial instructions.
    pub instructions: &'a [u8],
}

impl<'a> NewCommon<'a> {
    /// A CIE without personality routine, LSDA and flags.
    pub fn plain(code_alignment: u64, data_alignment: i64, return_address: u8, instructions: &'a [u8]) -> Self {
        NewCommon {
            code_alignment,
            data_alignment,
            return_address,
            personality: 0,
            has_lsda: false,
            is_signal_frame: false,
            has_second_key: false,
            instructions,
        }
    }

    /// A copy of `common`, which is in the section `bytes`, with this address of its personality routine. `None` if its
    /// return column is above 255.
    pub fn copied(bytes: &'a [u8], common: &Common, personality: u64) -> Option<Self> {
        let (start, end) = common.instructions;
        Some(NewCommon {
            personality,
            has_lsda: common.has_lsda,
            is_signal_frame: common.is_signal_frame,
            has_second_key: common.has_second_key,
            ..NewCommon::plain(
                common.code_alignment,
                common.data_alignment,
                u8::try_from(common.return_address).ok()?,
                bytes.get(start..end)?,
            )
        })
    }

    /// Appends the CIE, and returns its offset.
    pub fn write(&self, out: &mut Vec<u8>, pointers: Pointers) -> usize {
        let is_absolute = pointers == Pointers::Absolute;
        let (has_personality, has_lsda) = (is_absolute && self.personality != 0, is_absolute && self.has_lsda);
        let encoding = if is_absolute { dw::DW_EH_PE_absptr.0 } else { dw::DW_EH_PE_pcrel.0 | dw::DW_EH_PE_sdata4.0 };
        let start = begin(out, 0);
        out.push(1);
        let letters = [(true, b'z'), (has_personality, b'P'), (has_lsda, b'L'), (true, b'R')];
        let flags = [(self.is_signal_frame, b'S'), (self.has_second_key, b'B'), (true, 0)];
        out.extend(letters.iter().chain(&flags).filter(|(is_present, _)| *is_present).map(|(_, letter)| letter));
        out.extend(Leb128::unsigned(self.code_alignment).bytes());
        out.extend(Leb128::signed(self.data_alignment).bytes());
        out.push(self.return_address);
        out.push(if has_personality { 9 } else { 0 } + u8::from(has_lsda) + 1);
        if has_personality {
            out.push(encoding);
            out.extend(self.personality.to_le_bytes());
        }
        out.extend(has_lsda.then_some(encoding));
        out.push(encoding);
        out.extend_from_slice(self.instructions);
        end(out, start);
        start
    }
}

/// The fields of an FDE to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry<'a> {
    /// First address of the function; with [`Pointers::Relative`], its distance from the start of the bytes.
    pub start: u64,
    /// Size of the function in bytes.
    pub size: u64,
    /// Address of the LSDA, if the CIE has one.
    pub lsda: u64,
    /// Instructions.
    pub instructions: &'a [u8],
}

impl NewEntry<'_> {
    /// Offset of the start address in an FDE.
    pub const START_OFFSET: usize = 8;

    /// Appends the FDE of a CIE at offset `common_offset`, and returns its offset.
    pub fn write(&self, out: &mut Vec<u8>, common_offset: usize, common: &NewCommon<'_>, pointers: Pointers) -> usize {
        let start = begin(out, (out.len() + 4).wrapping_sub(common_offset) as u32);
        let has_lsda = common.has_lsda && pointers == Pointers::Absolute;
        match pointers {
            Pointers::Absolute => {
                out.extend(self.start.to_le_bytes());
                out.extend(self.size.to_le_bytes());
            }
            Pointers::Relative => {
                out.extend((self.start.wrapping_sub(out.len() as u64) as u32).to_le_bytes());
                out.extend((self.size as u32).to_le_bytes());
            }
        }
        if has_lsda {
            out.push(8);
            out.extend(self.lsda.to_le_bytes());
        } else {
            out.push(0);
        }
        out.extend_from_slice(self.instructions);
        end(out, start);
        start
    }
}

/// Starts an entry with a placeholder for its length; returns its offset.
fn begin(out: &mut Vec<u8>, id: u32) -> usize {
    let start = out.len();
    out.extend([0; 4]);
    out.extend(id.to_le_bytes());
    start
}

/// Pads the entry and writes its length.
fn end(out: &mut Vec<u8>, start: usize) {
    out.resize(out.len().next_multiple_of(8), dw::DW_CFA_nop.0);
    let length = (out.len() - start - 4) as u32;
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&length.to_le_bytes());
    }
}
