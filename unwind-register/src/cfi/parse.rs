//! The JIT's `.eh_frame` into [`Cie`]s and [`Fde`]s: read by the crate `jitlisten-unwinder`, with indirect pointers
//! followed. An entry is copied with its instructions as they are; gimli decodes every copy once more
//! ([`check`](super::check)).

use std::collections::BTreeMap;

use jitlisten_unwinder::{Common, Malformed, Pointer, Section};

use crate::error::Error;

/// How a `DW_EH_PE_indirect` pointer is followed: returns the word at an address, or `None` where that must not be
/// read.
pub(crate) type Memory<'a> = &'a dyn Fn(u64) -> Option<u64>;

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

/// Parses `bytes`, which are mapped (or will be) at `address`. FDEs of length 0 or of address 0 (dead-stripped) are
/// left out.
pub(crate) fn parse<'a>(
    bytes: &'a [u8],
    address: u64,
    memory: Memory<'_>,
) -> Result<(Vec<Cie<'a>>, Vec<Fde<'a>>), Error> {
    let section = Section { bytes, address, data_base: None };
    let (mut cies, mut fdes, mut known) = (Vec::new(), Vec::new(), BTreeMap::new());
    let mut offset = 0;
    while let Some(record) = section.record(offset).map_err(|error| error_at(offset, error))? {
        let at = std::mem::replace(&mut offset, record.end);
        let Some(common_at) = record.common else { continue };
        let (cie, common) = match known.get(&common_at) {
            Some(&known) => known,
            None => {
                let common = section.common(common_at).map_err(|error| match error {
                    Malformed::NoCommon => Error::NoCie { offset: at },
                    error => error_at(common_at, error),
                })?;
                cies.push(cie_of(bytes, &common, common_at, memory)?);
                known.insert(common_at, (cies.len() - 1, common));
                (cies.len() - 1, common)
            }
        };
        let entry = section.entry_of(record, common).map_err(|error| error_at(at, error))?;
        let lsda = entry.lsda.map_or(Ok(0), |lsda| follow(lsda, at, memory))?;
        let start = follow(entry.pointer, at, memory)?;
        let end = start.checked_add(entry.size).filter(|_| start != 0 && entry.size != 0);
        if let Some(end) = end {
            fdes.push(Fde { cie, start, end, lsda, instructions: part(bytes, entry.instructions) });
        }
    }
    Ok((cies, fdes))
}

fn cie_of<'a>(bytes: &'a [u8], common: &Common, at: usize, memory: Memory<'_>) -> Result<Cie<'a>, Error> {
    Ok(Cie {
        code_alignment: common.code_alignment,
        data_alignment: common.data_alignment,
        return_column: common.return_address,
        personality: common.personality.map_or(Ok(0), |personality| follow(personality, at, memory))?,
        lsda: common.has_lsda,
        signal_frame: common.is_signal_frame,
        b_key: common.has_second_key,
        instructions: part(bytes, common.instructions),
    })
}

fn part(bytes: &[u8], (start, end): (usize, usize)) -> &[u8] {
    bytes.get(start..end).unwrap_or_default()
}

fn follow(pointer: Pointer, offset: usize, memory: Memory<'_>) -> Result<u64, Error> {
    let Pointer { address, is_indirect, encoding } = pointer;
    match is_indirect && address != 0 {
        true => memory(address).ok_or(Error::PointerEncoding { offset, encoding }),
        false => Ok(address),
    }
}

fn error_at(offset: usize, error: Malformed) -> Error {
    match error {
        Malformed::Version(version) => Error::CieVersion { offset, version },
        Malformed::Letter(letter) => Error::Augmentation { offset, letter },
        Malformed::Encoding(encoding) => Error::PointerEncoding { offset, encoding },
        Malformed::NoCommon => Error::NoCie { offset },
        _ => Error::Truncated { offset },
    }
}
