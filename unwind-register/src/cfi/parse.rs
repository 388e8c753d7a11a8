//! Parser of the JIT's `.eh_frame` into [`NewCommon`]s and [`Fde`]s, based on the `jitlisten-unwinder` crate. It also
//! resolves indirect pointers. Call frame instructions are copied unchanged, and gimli decodes every copy afterwards
//! ([`check`](super::check)).

use std::collections::BTreeMap;

use jitlisten_unwinder::{Common, Malformed, NewCommon, Pointer, Section};

use crate::error::Error;

/// Callback that reads the target of a `DW_EH_PE_indirect` pointer: the word at an address, or `None` if it is
/// unreadable.
pub(crate) type Memory<'a> = &'a dyn Fn(u64) -> Option<u64>;

/// Frame description entry: the rules of one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fde<'a> {
    /// Index into the list of CIEs that [`parse`] returns together with the FDEs.
    pub(crate) cie: usize,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) lsda: u64,
    pub(crate) instructions: &'a [u8],
}

/// Parses `bytes`, which are (or will be) mapped at `address`. Skips FDEs with length 0 or address 0 (dead-stripped
/// functions).
pub(crate) fn parse<'a>(
    bytes: &'a [u8],
    address: u64,
    memory: Memory<'_>,
) -> Result<(Vec<NewCommon<'a>>, Vec<Fde<'a>>), Error> {
    let section = Section { bytes, address, data_base: None };
    let (mut cies, mut fdes, mut cie_by_offset) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut offset = 0;
    while let Some(record) = section.record(offset).map_err(|error| convert_error(offset, error))? {
        let record_offset = std::mem::replace(&mut offset, record.end);
        let Some(cie_offset) = record.common else { continue };
        let (cie, common) = match cie_by_offset.get(&cie_offset) {
            Some(&known) => known,
            None => {
                let common = section.common(cie_offset).map_err(|error| match error {
                    Malformed::NoCommon => Error::NoCie { offset: record_offset },
                    error => convert_error(cie_offset, error),
                })?;
                cies.push(convert_cie(bytes, &common, cie_offset, memory)?);
                cie_by_offset.insert(cie_offset, (cies.len() - 1, common));
                (cies.len() - 1, common)
            }
        };
        let entry = section.entry_of(record, common).map_err(|error| convert_error(record_offset, error))?;
        let lsda = entry.lsda.map_or(Ok(0), |lsda| resolve(lsda, record_offset, memory))?;
        let start = resolve(entry.pointer, record_offset, memory)?;
        let end = start.checked_add(entry.size).filter(|_| start != 0 && entry.size != 0);
        if let Some(end) = end {
            fdes.push(Fde { cie, start, end, lsda, instructions: slice_range(bytes, entry.instructions) });
        }
    }
    Ok((cies, fdes))
}

fn convert_cie<'a>(
    bytes: &'a [u8],
    common: &Common,
    offset: usize,
    memory: Memory<'_>,
) -> Result<NewCommon<'a>, Error> {
    let personality = common.personality.map_or(Ok(0), |personality| resolve(personality, offset, memory))?;
    NewCommon::copied(bytes, common, personality).ok_or(Error::Truncated { offset })
}

fn slice_range(bytes: &[u8], (start, end): (usize, usize)) -> &[u8] {
    bytes.get(start..end).unwrap_or_default()
}

fn resolve(pointer: Pointer, offset: usize, memory: Memory<'_>) -> Result<u64, Error> {
    let Pointer { address, is_indirect, encoding } = pointer;
    match is_indirect && address != 0 {
        true => memory(address).ok_or(Error::PointerEncoding { offset, encoding }),
        false => Ok(address),
    }
}

fn convert_error(offset: usize, error: Malformed) -> Error {
    match error {
        Malformed::Version(version) => Error::CieVersion { offset, version },
        Malformed::Letter(letter) => Error::Augmentation { offset, letter },
        Malformed::Encoding(encoding) => Error::PointerEncoding { offset, encoding },
        Malformed::NoCommon => Error::NoCie { offset },
        _ => Error::Truncated { offset },
    }
}
