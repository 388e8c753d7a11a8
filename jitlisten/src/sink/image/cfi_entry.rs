//! Headers of `.eh_frame` entries: parses existing headers and writes new ones.
//!
//! ```text
//!   CIE   length  0    1  "zR"  factors  return address  1  1b                  instructions
//!   FDE   length  CIE  i32 start  u32 length                                0   instructions
//! ```
//! New headers have a single augmentation, `R`, for start addresses encoded as `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.

#![forbid(unsafe_code)]

use gimli::leb128::write::Leb128;
use gimli::{CommonInformationEntry, EndianSlice, LittleEndian, Reader as _};

use crate::Error;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

const PCREL_SDATA4: u8 = 0x1b;
/// Offset of the function's start address in an FDE.
const FDE_START_OFFSET: usize = 8;

/// Parts of a CIE that are copied into the image.
pub(super) struct Cie<'a> {
    /// Augmentation characters without data: `S` marks a signal frame; on aarch64, `B` selects the key that signs
    /// return addresses, and `G` marks a tagged stack frame.
    flags: Vec<u8>,
    code_alignment: u64,
    data_alignment: i64,
    /// Return address register, which the CIE version that we write stores in one byte.
    return_address: u8,
    instructions: &'a [u8],
}

/// Returns the content of the entry at `offset`, without the length.
fn entry_at(section: &[u8], offset: usize) -> Result<Slice<'_>, Error> {
    let mut rest = EndianSlice::new(section.get(offset..).unwrap_or_default(), LittleEndian);
    let length = rest.read_u32()?;
    if length >= 0xffff_fff0 {
        return Err(gimli::Error::UnknownReservedLength(length).into());
    }
    Ok(rest.split(length as usize)?)
}

/// Skips the augmentation data that `z` announces.
fn skip_augmentation(rest: &mut Slice<'_>) -> Result<(), Error> {
    let size = rest.read_uleb128()?;
    Ok(rest.skip(usize::try_from(size).unwrap_or(usize::MAX))?)
}

fn register_number(number: u64) -> Result<u8, Error> {
    u8::try_from(number).map_err(|_| gimli::Error::UnsupportedRegister(number).into())
}

impl<'a> Cie<'a> {
    /// Parses the CIE at `offset`.
    ///
    /// # Errors
    /// If the CIE is truncated, has an augmentation of unknown size, or a return address register above 255.
    pub(super) fn read(section: &'a [u8], offset: usize) -> Result<Cie<'a>, Error> {
        let mut rest = entry_at(section, offset)?;
        rest.skip(4)?;
        let version = rest.read_u8()?;
        let augmentation = rest.read_null_terminated_slice()?;
        let code_alignment = rest.read_uleb128()?;
        let data_alignment = rest.read_sleb128()?;
        let return_address = if version == 1 { rest.read_u8()? } else { register_number(rest.read_uleb128()?)? };
        match augmentation.slice().first() {
            None => {}
            Some(b'z') => skip_augmentation(&mut rest)?,
            Some(_) => return Err(gimli::Error::UnknownAugmentation.into()),
        }
        let flags = augmentation.slice().iter().copied().filter(|flag| b"SBG".contains(flag)).collect();
        Ok(Cie { flags, code_alignment, data_alignment, return_address, instructions: rest.slice() })
    }

    /// Writes the CIE with a new header, and returns its offset.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> usize {
        let start = begin_entry(out, 0);
        out.extend(b"\x01zR");
        out.extend(&self.flags);
        out.push(0);
        out.extend(Leb128::unsigned(self.code_alignment).bytes());
        out.extend(Leb128::signed(self.data_alignment).bytes());
        out.extend([self.return_address, 1, PCREL_SDATA4]);
        out.extend(self.instructions);
        end_entry(out, start);
        start
    }
}

/// Returns the instructions of the FDE at `offset`.
///
/// # Errors
/// If the FDE is truncated, or its addresses have a variable size.
pub(super) fn fde_instructions<'a>(
    section: &'a [u8],
    offset: usize,
    cie: &CommonInformationEntry<Slice<'_>>,
) -> Result<&'a [u8], Error> {
    let encoding = cie.fde_address_encoding().unwrap_or(gimli::DW_EH_PE_absptr);
    let size = match encoding.format() {
        gimli::DW_EH_PE_udata2 | gimli::DW_EH_PE_sdata2 => 2,
        gimli::DW_EH_PE_udata4 | gimli::DW_EH_PE_sdata4 => 4,
        gimli::DW_EH_PE_absptr | gimli::DW_EH_PE_udata8 | gimli::DW_EH_PE_sdata8 => 8,
        _ => return Err(gimli::Error::UnknownPointerEncoding(encoding).into()),
    };
    let mut rest = entry_at(section, offset)?;
    rest.skip(4 + 2 * size)?;
    if cie.augmentation().is_some() {
        skip_augmentation(&mut rest)?;
    }
    Ok(rest.slice())
}

/// Writes an FDE with a blank start address, which [`set_start`] fills in.
pub(super) fn write_fde(out: &mut Vec<u8>, cie: usize, size: u64, instructions: &[u8]) {
    let cie_distance = (out.len() + 4 - cie) as u32;
    let start = begin_entry(out, cie_distance);
    out.extend([0; 4]);
    out.extend((size as u32).to_le_bytes());
    out.push(0);
    out.extend(instructions);
    end_entry(out, start);
}

/// Sets the start address of the FDE at offset `fde`. `start` is relative to the section.
pub(super) fn set_start(section: &mut [u8], fde: usize, start: u64) {
    let offset = fde + FDE_START_OFFSET;
    if let Some(field) = section.get_mut(offset..offset + 4) {
        field.copy_from_slice(&(start.wrapping_sub(offset as u64) as u32).to_le_bytes());
    }
}

fn begin_entry(out: &mut Vec<u8>, cie: u32) -> usize {
    let start = out.len();
    out.extend([0; 4]);
    out.extend(cie.to_le_bytes());
    start
}

/// Pads the entry with `DW_CFA_nop` to a multiple of 8, and fills in its length.
fn end_entry(out: &mut Vec<u8>, start: usize) {
    out.resize(out.len().next_multiple_of(8), 0);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
