//! The JIT's `.eh_frame` into [`Cie`]s and [`Fde`]s.
//!
//! ```text
//!   u32 length   u32 CIE id: 0         in a CIE  | version, augmentation "zPLR\0", code/data alignment, return column,
//!                                                | augmentation data, initial instructions
//!   u32 length   u32 distance to CIE   in an FDE | pc_begin, pc_range, augmentation data (LSDA), instructions
//!   u32 0                              the end   (or the end of the bytes)
//! ```
//! Elsewhere in jitlisten gimli reads such tables. Here an entry is copied with its instructions as they are, and gimli shows them
//! decoded only; it decodes every copy once more ([`check`](super::check)).
//!
//! A length of `0xffff_ffff` announces a 64-bit length; ids and distances then have 64 bits too.

use super::pointer::{self, Memory, OMIT};
use super::reader::Reader;
use crate::error::Error;
use std::collections::BTreeMap;

/// What the functions of one compiler setting have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cie<'a> {
    pub(crate) code_alignment: u64,
    pub(crate) data_alignment: i64,
    pub(crate) return_column: u64,
    /// The personality routine, resolved; 0 where there is none.
    pub(crate) personality: u64,
    /// Whether the FDEs carry an LSDA pointer (augmentation `L`).
    pub(crate) lsda: bool,
    /// A signal trampoline (augmentation `S`): the address looked up is not a return address.
    pub(crate) signal_frame: bool,
    /// The return addresses are signed with the B key (augmentation `B`, aarch64).
    pub(crate) b_key: bool,
    pub(crate) instructions: &'a [u8],
    fde_encoding: u8,
    lsda_encoding: u8,
    sized_augmentation: bool,
}

impl<'a> Cie<'a> {
    /// A CIE for rules that are not read, but made.
    pub(crate) fn made(code: u64, data: i64, return_column: u64, instructions: &'a [u8]) -> Self {
        Cie {
            code_alignment: code,
            data_alignment: data,
            return_column,
            personality: 0,
            lsda: false,
            signal_frame: false,
            b_key: false,
            instructions,
            fde_encoding: 0,
            lsda_encoding: OMIT,
            sized_augmentation: true,
        }
    }
}

/// The rules of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fde<'a> {
    /// Index into the CIEs that [`parse`] returned beside it.
    pub(crate) cie: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) lsda: u64,
    pub(crate) instructions: &'a [u8],
}

/// One entry, cut out of the section.
struct Entry<'a> {
    offset: usize,
    /// Where the CIE id (or the distance to the CIE) stands, and what it is.
    id_at: usize,
    id: u64,
    /// Ends where the entry ends; stands behind the id.
    body: Reader<'a>,
    next: usize,
}

/// Parses `bytes`, which are mapped (or will be) at `section`. FDEs of length 0 or of address 0 (dead-stripped) are left out.
pub(crate) fn parse<'a>(
    bytes: &'a [u8],
    section: u64,
    memory: Memory<'_>,
) -> Result<(Vec<Cie<'a>>, Vec<Fde<'a>>), Error> {
    let (mut cies, mut fdes, mut known) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut offset = 0;
    while let Some(entry) = entry(bytes, offset)? {
        offset = entry.next;
        if entry.id == 0 {
            continue;
        }
        let no_cie = Error::NoCie { offset: entry.offset };
        let at = usize::try_from((entry.id_at as u64).wrapping_sub(entry.id)).map_err(|_| no_cie.clone())?;
        let cie = match known.get(&at) {
            Some(&index) => index,
            None => {
                cies.push(parse_cie(bytes, at, section, memory)?.ok_or(no_cie)?);
                known.insert(at, cies.len() - 1);
                cies.len() - 1
            }
        };
        if let Some(fde) = parse_fde(&entry, cie, &cies[cie], section, memory)? {
            fdes.push(fde);
        }
    }
    Ok((cies, fdes))
}

/// Cuts out the entry at `offset`; `None` at the terminator or the end of the bytes.
fn entry(bytes: &[u8], offset: usize) -> Result<Option<Entry<'_>>, Error> {
    let truncated = Error::Truncated { offset };
    let mut reader = Reader::new(bytes, offset);
    let Some(short) = reader.u32().filter(|&length| length != 0) else {
        return Ok(None);
    };
    let wide = short == u32::MAX;
    let length = if wide { reader.u64() } else { Some(u64::from(short)) };
    let id_at = reader.at;
    let end = length.and_then(|length| id_at.checked_add(usize::try_from(length).ok()?));
    let end = end.filter(|&end| end <= bytes.len()).ok_or(truncated.clone())?;
    let mut body = Reader::new(&bytes[..end], id_at);
    let id = if wide { body.u64() } else { body.u32().map(u64::from) };
    Ok(Some(Entry { offset, id_at, id: id.ok_or(truncated)?, body, next: end }))
}

fn parse_cie<'a>(bytes: &'a [u8], offset: usize, section: u64, memory: Memory<'_>) -> Result<Option<Cie<'a>>, Error> {
    let Some(Entry { id: 0, body: mut reader, .. }) = entry(bytes, offset)? else {
        return Ok(None);
    };
    let truncated = || Error::Truncated { offset };
    let version = reader.u8().ok_or_else(truncated)?;
    if !matches!(version, 1 | 3 | 4) {
        return Err(Error::CieVersion { offset, version });
    }
    let augmentation = reader.string().ok_or_else(truncated)?;
    if version == 4 {
        reader.take(2).ok_or_else(truncated)?; // address_size and segment_selector_size
    }
    let mut cie = Cie::made(0, 0, 0, &[]);
    cie.code_alignment = reader.uleb128().ok_or_else(truncated)?;
    cie.data_alignment = reader.sleb128().ok_or_else(truncated)?;
    let column = if version == 1 { reader.u8().map(u64::from) } else { reader.uleb128() };
    cie.return_column = column.ok_or_else(truncated)?;
    cie.sized_augmentation = augmentation.first() == Some(&b'z');
    let end = match cie.sized_augmentation {
        true => {
            let size = reader.uleb128().and_then(|size| usize::try_from(size).ok()).ok_or_else(truncated)?;
            Some(reader.at.checked_add(size).ok_or_else(truncated)?)
        }
        false => None,
    };
    read_augmentation(&mut cie, augmentation, &mut reader, offset, section, memory)?;
    reader.at = end.unwrap_or(reader.at);
    cie.instructions = reader.rest();
    Ok(Some(cie))
}

/// The augmentation letters, in the order of the string; each may have data.
fn read_augmentation(
    cie: &mut Cie<'_>,
    letters: &[u8],
    reader: &mut Reader<'_>,
    offset: usize,
    section: u64,
    memory: Memory<'_>,
) -> Result<(), Error> {
    for &letter in letters {
        let truncated = Error::Truncated { offset };
        match letter {
            b'z' => {}
            b'R' => cie.fde_encoding = reader.u8().ok_or(truncated)?,
            b'L' => cie.lsda_encoding = reader.u8().ok_or(truncated)?,
            b'P' => {
                let encoding = reader.u8().ok_or(truncated)?;
                let personality = pointer::read(reader, encoding, section, memory);
                cie.personality = personality.ok_or(Error::PointerEncoding { offset, encoding })?;
            }
            b'S' => cie.signal_frame = true,
            b'B' => cie.b_key = true,
            letter => return Err(Error::Augmentation { offset, letter }),
        }
    }
    cie.lsda = cie.lsda_encoding != OMIT;
    Ok(())
}

fn parse_fde<'a>(
    entry: &Entry<'a>,
    cie_index: usize,
    cie: &Cie<'_>,
    section: u64,
    memory: Memory<'_>,
) -> Result<Option<Fde<'a>>, Error> {
    let offset = entry.offset;
    let encoding = cie.fde_encoding;
    let bad_pointer = |encoding| Error::PointerEncoding { offset, encoding };
    let mut reader = entry.body;
    let start = pointer::read(&mut reader, encoding, section, memory).ok_or(bad_pointer(encoding))?;
    let length = pointer::read_value(&mut reader, encoding).ok_or(bad_pointer(encoding))?;
    let mut lsda = 0;
    if cie.sized_augmentation {
        let size = reader.uleb128().and_then(|size| usize::try_from(size).ok());
        let end = size.and_then(|size| reader.at.checked_add(size)).ok_or(Error::Truncated { offset })?;
        if cie.lsda && end > reader.at {
            let encoding = cie.lsda_encoding;
            lsda = pointer::read(&mut reader, encoding, section, memory).ok_or(bad_pointer(encoding))?;
        }
        reader.at = end;
    }
    let Some(end) = start.checked_add(length).filter(|_| start != 0 && length != 0) else {
        return Ok(None);
    };
    Ok(Some(Fde { cie: cie_index, start, end, lsda, instructions: reader.rest() }))
}
