//! The records of an `.eh_frame` section.
//!
//! ```text
//!   CIE   u32 length, u32 0, version, "zPLRS\0", alignments, return column, augmentation data, instructions
//!   FDE   u32 length, u32 distance to its CIE, start, size, augmentation data (LSDA), instructions
//!   end   u32 0, or the end of the bytes
//! ```
//! A length of `0xffff_ffff` announces a length of 64 bits, and then ids and distances have 64 bits, too.

#![forbid(unsafe_code)]

use gimli::constants as dw;

use crate::reader::Reader;

/// A section and where it is in memory: pointers in it are relative to that.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// All of it, or what is there of it.
    pub bytes: &'a [u8],
    /// Where the bytes are.
    pub address: u64,
    /// The base of `DW_EH_PE_datarel`. Without one, pointers with that encoding are refused.
    pub data_base: Option<u64>,
}

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// It ends too early.
    Truncated,
    /// A CIE has a version other than 1, 3 or 4.
    Version(u8),
    /// A CIE has an unknown augmentation letter.
    Letter(u8),
    /// A pointer has an encoding that has no meaning here.
    Encoding(u8),
    /// An FDE leads to no CIE.
    NoCommon,
}

/// One record: from where to where, and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where its length is.
    pub start: usize,
    /// Behind it.
    pub end: usize,
    /// Where the CIE of an FDE begins; `None` for a CIE.
    pub common: Option<usize>,
    body: usize,
}

/// What entries have in common (CIE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// What `DW_CFA_advance_loc` multiplies by.
    pub code_alignment: u64,
    /// What offsets are multiplied by.
    pub data_alignment: i64,
    /// The column of the return address.
    pub return_address: u64,
    /// `P`: the personality routine.
    pub personality: Option<Pointer>,
    /// `L`: entries have a pointer to their LSDA.
    pub has_lsda: bool,
    /// `S`: the frame of a signal handler. The address in it is where the program was, not where it returns to.
    pub is_signal_frame: bool,
    /// `B`: return addresses are signed with the second key of aarch64.
    pub has_second_key: bool,
    /// From where to where its instructions are.
    pub instructions: (usize, usize),
    pointer_encoding: u8,
    lsda_encoding: u8,
    has_augmentation_length: bool,
}

/// What an entry says (FDE).
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The first address of its function.
    pub start: u64,
    /// That, as it is encoded.
    pub pointer: Pointer,
    /// How many bytes the function has.
    pub size: u64,
    /// What it shares with others.
    pub common: Common,
    /// Its LSDA.
    pub lsda: Option<Pointer>,
    /// The whole section, for expressions.
    pub section: &'a [u8],
    /// From where to where its instructions are.
    pub instructions: (usize, usize),
}

/// An encoded pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// What it points to; 0 for none.
    pub address: u64,
    /// The word there is the pointer that is meant.
    pub is_indirect: bool,
    /// `DW_EH_PE_*`
    pub encoding: u8,
}

impl<'a> Section<'a> {
    /// The record at `at`; `None` at the end.
    pub fn record(self, at: usize) -> Result<Option<Record>, Malformed> {
        let mut reader = Reader::new(self.bytes, at);
        let Some(short) = reader.u32().filter(|&length| length != 0) else { return Ok(None) };
        let mut read = || {
            let is_wide = short == u32::MAX;
            let length = if is_wide { reader.u64()? } else { u64::from(short) };
            let field = reader.position();
            let end = field.checked_add(usize::try_from(length).ok()?).filter(|&end| end <= self.bytes.len())?;
            let mut reader = reader.until(end)?;
            let distance = if is_wide { reader.u64()? } else { u64::from(reader.u32()?) };
            Some((field, distance, reader.position(), end))
        };
        let (field, distance, body, end) = read().ok_or(Malformed::Truncated)?;
        let common = match distance {
            0 => None,
            _ => {
                let distance = usize::try_from(distance).ok();
                Some(distance.and_then(|distance| field.checked_sub(distance)).ok_or(Malformed::NoCommon)?)
            }
        };
        Ok(Some(Record { start: at, end, common, body }))
    }

    /// The records from `at` on, up to the end or to the first that cannot be read.
    pub fn records(self, at: usize) -> impl Iterator<Item = Result<Record, Malformed>> + use<'a> {
        let mut next = Some(at);
        core::iter::from_fn(move || {
            let record = self.record(next.take()?).transpose()?;
            next = record.ok().map(|record| record.end);
            Some(record)
        })
    }

    /// The entry at `at`.
    pub fn entry(self, at: usize) -> Result<Entry<'a>, Malformed> {
        let record = self.record(at)?.ok_or(Malformed::Truncated)?;
        self.entry_of(record, self.common(record.common.ok_or(Malformed::NoCommon)?)?)
    }

    /// The entry in `record`, whose CIE is `common`.
    pub fn entry_of(self, record: Record, common: Common) -> Result<Entry<'a>, Malformed> {
        let mut reader = self.body(record)?;
        let encoding = Malformed::Encoding(common.pointer_encoding);
        let pointer = self.pointer(&mut reader, common.pointer_encoding)?.ok_or(encoding)?;
        let size =
            reader.encoded_number(common.pointer_encoding).ok_or(Malformed::Encoding(common.pointer_encoding))?;
        let mut lsda = None;
        if common.has_augmentation_length {
            let behind = behind_block(&mut reader)?;
            if common.has_lsda && behind > reader.position() {
                lsda = self.pointer(&mut reader, common.lsda_encoding)?;
            }
            reader.move_to(behind).ok_or(Malformed::Truncated)?;
        }
        let instructions = (reader.position(), record.end);
        Ok(Entry { start: pointer.address, pointer, size, common, lsda, section: self.bytes, instructions })
    }

    /// The CIE at `at`.
    pub fn common(self, at: usize) -> Result<Common, Malformed> {
        let record = self.record(at)?.filter(|record| record.common.is_none()).ok_or(Malformed::NoCommon)?;
        let mut reader = self.body(record)?;
        let version = reader.u8().ok_or(Malformed::Truncated)?;
        if !matches!(version, 1 | 3 | 4) {
            return Err(Malformed::Version(version));
        }
        let augmentation = reader.string().ok_or(Malformed::Truncated)?;
        let (mut common, behind) = fixed_fields(&mut reader, version, augmentation)?;
        for &letter in augmentation {
            self.read_augmentation(letter, &mut reader, &mut common)?;
        }
        if let Some(behind) = behind {
            reader.move_to(behind).ok_or(Malformed::Truncated)?;
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
            // Tagged memory of aarch64.
            b'G' => {}
            letter => return Err(Malformed::Letter(letter)),
        }
        Ok(())
    }

    /// `None` where the encoding says that there is none.
    fn pointer(self, reader: &mut Reader<'a>, encoding: u8) -> Result<Option<Pointer>, Malformed> {
        if encoding == dw::DW_EH_PE_omit.0 {
            return Ok(None);
        }
        let place = self.address.wrapping_add(reader.position() as u64);
        let address = reader.encoded(encoding, place, self.data_base).ok_or(Malformed::Encoding(encoding))?;
        let is_indirect = encoding & dw::DW_EH_PE_indirect.0 != 0;
        Ok(Some(Pointer { address, is_indirect, encoding }))
    }

    fn body(self, record: Record) -> Result<Reader<'a>, Malformed> {
        Reader::new(self.bytes, record.body).until(record.end).ok_or(Malformed::Truncated)
    }
}

/// The fields of a CIE between its augmentation string and the data of that, and where the instructions begin, if the
/// CIE says so.
fn fixed_fields(
    reader: &mut Reader<'_>,
    version: u8,
    augmentation: &[u8],
) -> Result<(Common, Option<usize>), Malformed> {
    let has_augmentation_length = augmentation.first() == Some(&b'z');
    let mut read = || {
        if version == 4 {
            // The sizes of addresses and of segment selectors.
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
    let behind = if has_augmentation_length { Some(behind_block(reader)?) } else { None };
    Ok((common, behind))
}

/// Reads the length of a block. The position behind that block.
fn behind_block(reader: &mut Reader<'_>) -> Result<usize, Malformed> {
    let length = reader.uleb().and_then(|length| usize::try_from(length).ok());
    length.and_then(|length| reader.position().checked_add(length)).ok_or(Malformed::Truncated)
}
