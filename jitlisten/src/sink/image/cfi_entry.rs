//! The heads of `.eh_frame` entries: parses old ones up to their instructions, writes new ones.
//!
//! ```text
//!   CIE   length  0    1  "zR"  factors  return address  1  1b                  instructions
//!   FDE   length  CIE  i32 start  u32 length                                0   instructions
//! ```
//! New heads have one augmentation, `R`: starts are `DW_EH_PE_pcrel | DW_EH_PE_sdata4`.

#![forbid(unsafe_code)]

use gimli::leb128::write::Leb128;
use gimli::{CommonInformationEntry, EndianSlice, LittleEndian, Reader as _};

use crate::Error;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

const PCREL_SDATA4: u8 = 0x1b;
/// From the start of an FDE to the start of its function.
const FDE_START: usize = 8;

/// What stays of a CIE.
pub(super) struct Cie<'a> {
    /// Augmentations without data: signal frames, keys of return addresses on aarch64.
    flags: Vec<u8>,
    code_alignment: u64,
    data_alignment: i64,
    /// One byte in the version that is written.
    return_address: u8,
    instructions: &'a [u8],
}

/// The entry at `offset`, behind its length.
fn entry(section: &[u8], offset: usize) -> Result<Slice<'_>, Error> {
    let mut rest = EndianSlice::new(section.get(offset..).unwrap_or_default(), LittleEndian);
    let length = rest.read_u32()?;
    if length >= 0xffff_fff0 {
        return Err(gimli::Error::UnknownReservedLength(length).into());
    }
    Ok(rest.split(length as usize)?)
}

/// Skips `z`'s data, if there is any.
fn skip_augmentation(rest: &mut Slice<'_>) -> Result<(), Error> {
    let size = rest.read_uleb128()?;
    Ok(rest.skip(usize::try_from(size).unwrap_or(usize::MAX))?)
}

fn register(number: u64) -> Result<u8, Error> {
    u8::try_from(number).map_err(|_| gimli::Error::UnsupportedRegister(number).into())
}

impl<'a> Cie<'a> {
    /// Reads the CIE at `offset`.
    ///
    /// # Errors
    /// When it ends early, has an augmentation of unknown size, or a return address in no register that a byte can
    /// name.
    pub(super) fn read(section: &'a [u8], offset: usize) -> Result<Cie<'a>, Error> {
        let mut rest = entry(section, offset)?;
        rest.skip(4)?;
        let version = rest.read_u8()?;
        let augmentation = rest.read_null_terminated_slice()?;
        let code_alignment = rest.read_uleb128()?;
        let data_alignment = rest.read_sleb128()?;
        let return_address = if version == 1 { rest.read_u8()? } else { register(rest.read_uleb128()?)? };
        match augmentation.slice().first() {
            None => {}
            Some(b'z') => skip_augmentation(&mut rest)?,
            Some(_) => return Err(gimli::Error::UnknownAugmentation.into()),
        }
        let flags = augmentation.slice().iter().copied().filter(|flag| b"SBG".contains(flag)).collect();
        Ok(Cie { flags, code_alignment, data_alignment, return_address, instructions: rest.slice() })
    }

    /// Writes it with a new head. Returns where it begins.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> usize {
        let start = begin(out, 0);
        out.extend(b"\x01zR");
        out.extend(&self.flags);
        out.push(0);
        out.extend(Leb128::unsigned(self.code_alignment).bytes());
        out.extend(Leb128::signed(self.data_alignment).bytes());
        out.extend([self.return_address, 1, PCREL_SDATA4]);
        out.extend(self.instructions);
        end(out, start);
        start
    }
}

/// The instructions of the FDE at `offset`.
///
/// # Errors
/// When it ends early, or its addresses are of variable size.
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
    let mut rest = entry(section, offset)?;
    rest.skip(4 + 2 * size)?;
    if cie.augmentation().is_some() {
        skip_augmentation(&mut rest)?;
    }
    Ok(rest.slice())
}

/// Writes an FDE whose function begins somewhere: see [`set_start`].
pub(super) fn write_fde(out: &mut Vec<u8>, cie: usize, size: u64, instructions: &[u8]) {
    let back = (out.len() + 4 - cie) as u32;
    let start = begin(out, back);
    out.extend([0; 4]);
    out.extend((size as u32).to_le_bytes());
    out.push(0);
    out.extend(instructions);
    end(out, start);
}

/// Lets the FDE at `fde` begin at `start`, counted from the section.
pub(super) fn set_start(section: &mut [u8], fde: usize, start: u64) {
    let at = fde + FDE_START;
    if let Some(field) = section.get_mut(at..at + 4) {
        field.copy_from_slice(&(start.wrapping_sub(at as u64) as u32).to_le_bytes());
    }
}

fn begin(out: &mut Vec<u8>, cie: u32) -> usize {
    let start = out.len();
    out.extend([0; 4]);
    out.extend(cie.to_le_bytes());
    start
}

/// Fills up with `DW_CFA_nop` to a multiple of 8, and writes the length.
fn end(out: &mut Vec<u8>, start: usize) {
    out.resize(out.len().next_multiple_of(8), 0);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
