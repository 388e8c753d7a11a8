//! Records of an `.eh_frame` section.
//!
//! ```text
//!   CIE   u32 length, u32 0, version, "zPLRS\0", alignments, return column, augmentation data, instructions
//!   FDE   u32 length, u32 distance to its CIE, start, size, augmentation data (LSDA), instructions
//!   end   u32 0, or the end of the bytes
//! ```
//! A length of `0xffff_ffff` is followed by a 64-bit length. IDs and distances in that record then also have 64 bits.

use gimli::constants as dw;

use crate::reader::Reader;

/// A complete or partial `.eh_frame` section in memory.
///
/// Offsets (`at`) count bytes from the start of `bytes`.
///
/// ```
/// use jitlisten_unwinder::Section;
/// # let eh_frame = [
/// #     0x14, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0,
/// #     0x10, 0, 0, 0, 0x1c, 0, 0, 0, 0xe0, 0xef, 0xff, 0xff, 0x20, 0, 0, 0, 0, 0x41, 0x0e, 16,
/// # ];
///
/// let section = Section { bytes: &eh_frame, address: 0x2000, data_base: None };
/// for record in section.records(0) {
///     let record = record.unwrap();
///     // An FDE names its CIE.
///     if let Some(at) = record.common {
///         let entry = section.entry_of(record, section.common(at).unwrap()).unwrap();
///         assert_eq!((entry.start, entry.size), (0x1000, 0x20));
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Bytes of the section, or its first part.
    pub bytes: &'a [u8],
    /// Address of the first byte. Pointers in the section are relative to their own address.
    pub address: u64,
    /// Base of `DW_EH_PE_datarel`. Without one, pointers with that encoding are refused.
    pub data_base: Option<u64>,
}

/// The reason why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The record is truncated.
    Truncated,
    /// The version of a CIE is not 1, 3 or 4.
    Version(u8),
    /// A CIE has an unknown augmentation letter.
    Letter(u8),
    /// The encoding of a pointer is not supported in this field.
    Encoding(u8),
    /// The CIE pointer of an FDE does not lead to a CIE.
    NoCommon,
}

/// The bounds of a CIE or an FDE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset of the record's length field.
    pub start: usize,
    /// Offset of the first byte after the record.
    pub end: usize,
    /// Offset of the FDE's CIE; `None` if the record itself is a CIE.
    pub common: Option<usize>,
    body: usize,
}

/// A common information entry (CIE): the fields that several FDEs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// Factor of `DW_CFA_advance_loc`.
    pub code_alignment: u64,
    /// Factor of register offsets.
    pub data_alignment: i64,
    /// Column of the return address.
    pub return_address: u64,
    /// Personality routine (augmentation letter `P`).
    pub personality: Option<Pointer>,
    /// True if entries have a pointer to their LSDA (`L`).
    pub has_lsda: bool,
    /// True for the frame of a signal handler (`S`). Its return address is that of the interrupted instruction, which
    /// need not follow a call.
    pub is_signal_frame: bool,
    /// True if return addresses are signed with AArch64's B key (augmentation letter `B`).
    pub has_second_key: bool,
    /// Offsets of the first byte of the instructions and of the byte after them.
    pub instructions: (usize, usize),
    pointer_encoding: u8,
    lsda_encoding: u8,
    has_augmentation_length: bool,
}

/// A frame description entry (FDE): the unwind information of one function.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// First address of the function.
    pub start: u64,
    /// Encoded form of `start`.
    pub pointer: Pointer,
    /// Size of the function in bytes.
    pub size: u64,
    /// The CIE of this entry.
    pub common: Common,
    /// Pointer to the function's language-specific data area, which exception handling uses.
    pub lsda: Option<Pointer>,
    /// Bytes of the whole section; rules refer to expressions in it.
    pub section: &'a [u8],
    /// Offsets of the first byte of the instructions and of the byte after them.
    pub instructions: (usize, usize),
}

/// An encoded pointer (`DW_EH_PE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Target of the pointer; 0 for a null pointer.
    pub address: u64,
    /// True if `address` is the location of the actual pointer.
    pub is_indirect: bool,
    /// Encoding byte, `DW_EH_PE_*`.
    pub encoding: u8,
}

impl<'a> Section<'a> {
    /// Reads the record at offset `at`. `None` at the end of the section.
    pub fn record(self, at: usize) -> Result<Option<Record>, Malformed> {
        let mut reader = Reader::new(self.bytes, at);
        let Some(length32) = reader.u32().filter(|&length| length != 0) else { return Ok(None) };
        let mut read = || {
            let is_wide = length32 == u32::MAX;
            let length = if is_wide { reader.u64()? } else { u64::from(length32) };
            let id_offset = reader.position();
            let end = id_offset.checked_add(usize::try_from(length).ok()?).filter(|&end| end <= self.bytes.len())?;
            let mut reader = reader.until(end)?;
            let distance = if is_wide { reader.u64()? } else { u64::from(reader.u32()?) };
            Some((id_offset, distance, reader.position(), end))
        };
        let (id_offset, distance, body, end) = read().ok_or(Malformed::Truncated)?;
        let common = match distance {
            0 => None,
            _ => {
                let distance = usize::try_from(distance).ok();
                Some(distance.and_then(|distance| id_offset.checked_sub(distance)).ok_or(Malformed::NoCommon)?)
            }
        };
        Ok(Some(Record { start: at, end, common, body }))
    }

    /// Iterates over the records from offset `at` on, up to the end or the first malformed one.
    pub fn records(self, at: usize) -> impl Iterator<Item = Result<Record, Malformed>> + use<'a> {
        let mut next = Some(at);
        core::iter::from_fn(move || {
            let record = self.record(next.take()?).transpose()?;
            next = record.ok().map(|record| record.end);
            Some(record)
        })
    }

    /// Reads the FDE at offset `at`, with its CIE.
    pub fn entry(self, at: usize) -> Result<Entry<'a>, Malformed> {
        let record = self.record(at)?.ok_or(Malformed::Truncated)?;
        self.entry_of(record, self.common(record.common.ok_or(Malformed::NoCommon)?)?)
    }

    /// Reads the FDE in `record`, whose CIE is `common`.
    pub fn entry_of(self, record: Record, common: Common) -> Result<Entry<'a>, Malformed> {
        let mut reader = self.body(record)?;
        let encoding = Malformed::Encoding(common.pointer_encoding);
        let pointer = self.pointer(&mut reader, common.pointer_encoding)?.ok_or(encoding)?;
        let size =
            reader.encoded_number(common.pointer_encoding).ok_or(Malformed::Encoding(common.pointer_encoding))?;
        let mut lsda = None;
        if common.has_augmentation_length {
            let data_end = read_block_end(&mut reader)?;
            if common.has_lsda && data_end > reader.position() {
                lsda = self.pointer(&mut reader, common.lsda_encoding)?;
            }
            reader.move_to(data_end).ok_or(Malformed::Truncated)?;
        }
        let instructions = (reader.position(), record.end);
        Ok(Entry { start: pointer.address, pointer, size, common, lsda, section: self.bytes, instructions })
    }

    /// Reads the CIE at offset `at`.
    pub fn common(self, at: usize) -> Result<Common, Malformed> {
        let record = self.record(at)?.filter(|record| record.common.is_none()).ok_or(Malformed::NoCommon)?;
        let mut reader = self.body(record)?;
        let version = reader.u8().ok_or(Malformed::Truncated)?;
        if !matches!(version, 1 | 3 | 4) {
            return Err(Malformed::Version(version));
        }
        let augmentation = reader.string().ok_or(Malformed::Truncated)?;
        let (mut common, data_end) = fixed_fields(&mut reader, version, augmentation)?;
        for &letter in augmentation {
            self.read_augmentation(letter, &mut reader, &mut common)?;
        }
        if let Some(data_end) = data_end {
            reader.move_to(data_end).ok_or(Malformed::Truncated)?;
        }
        common.instructions = (reader.position(), record.end);
        Ok(common)
    }

    fn read_augmentation(self, letter: u8, reader: &mut Reader<'a>, common: &mut Common) -> Result<(), Malformed> {
        match letter {
            b'z' => {}
            b'R' => common.pointer_encoding = reader.u8().ok_or(Malformed::Truncated)?,
            b'L' => {
                common.lsda_encoding = reader.u8().ok_or(Malformed::Truncated)?;
                common.has_lsda = common.lsda_encoding != dw::DW_EH_PE_omit.0;
            }
            b'P' => {
                let encoding = reader.u8().ok_or(Malformed::Truncated)?;
                common.personality = self.pointer(reader, encoding)?;
            }
            b'S' => common.is_signal_frame = true,
            b'B' => common.has_second_key = true,
            // Memory tagging of the stack on AArch64 (MTE) does not affect unwinding.
            b'G' => {}
            letter => return Err(Malformed::Letter(letter)),
        }
        Ok(())
    }

    /// Reads a pointer. `None` if the encoding is `DW_EH_PE_omit`.
    fn pointer(self, reader: &mut Reader<'a>, encoding: u8) -> Result<Option<Pointer>, Malformed> {
        if encoding == dw::DW_EH_PE_omit.0 {
            return Ok(None);
        }
        let field_address = self.address.wrapping_add(reader.position() as u64);
        let address = reader.encoded(encoding, field_address, self.data_base).ok_or(Malformed::Encoding(encoding))?;
        let is_indirect = encoding & dw::DW_EH_PE_indirect.0 != 0;
        Ok(Some(Pointer { address, is_indirect, encoding }))
    }

    fn body(self, record: Record) -> Result<Reader<'a>, Malformed> {
        Reader::new(self.bytes, record.body).until(record.end).ok_or(Malformed::Truncated)
    }
}

/// Reads the fields of a CIE between its augmentation string and its augmentation data. Also returns the offset of the
/// instructions, if the augmentation data has a length.
fn fixed_fields(
    reader: &mut Reader<'_>,
    version: u8,
    augmentation: &[u8],
) -> Result<(Common, Option<usize>), Malformed> {
    let has_augmentation_length = augmentation.first() == Some(&b'z');
    let mut read = || {
        if version == 4 {
            // Skip the sizes of addresses and of segment selectors.
            reader.take(2)?;
        }
        Some(Common {
            code_alignment: reader.uleb()?,
            data_alignment: reader.sleb()?,
            return_address: if version == 1 { u64::from(reader.u8()?) } else { reader.uleb()? },
            personality: None,
            has_lsda: false,
            is_signal_frame: false,
            has_second_key: false,
            instructions: (0, 0),
            pointer_encoding: dw::DW_EH_PE_absptr.0,
            lsda_encoding: dw::DW_EH_PE_omit.0,
            has_augmentation_length,
        })
    };
    let common = read().ok_or(Malformed::Truncated)?;
    let data_end = if has_augmentation_length { Some(read_block_end(reader)?) } else { None };
    Ok((common, data_end))
}

/// Reads the length of a block, and returns the offset after the block.
fn read_block_end(reader: &mut Reader<'_>) -> Result<usize, Malformed> {
    let length = reader.uleb().and_then(|length| usize::try_from(length).ok());
    length.and_then(|length| reader.position().checked_add(length)).ok_or(Malformed::Truncated)
}
