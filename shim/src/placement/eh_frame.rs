//! `.eh_frame` after JITLink: entries of functions that were left out are gone from it, and those behind them moved up. The rest says
//! where each function is. Only lengths and distances are read here, of a section that is not relocated; nothing is decoded.
//!
//! Of equal functions whose entries are next to each other, one may have been left out: each entry that is left fits two, and none is found.

use std::collections::BTreeMap;

use jitlisten::{Address, AddressRange};
use memchr::memmem;

use super::pattern::{Reference, Section};
use super::{Piece, Search};

/// In an entry: length, distance to its CIE (0 in a CIE itself), first address.
const CIE_POINTER: usize = 4;
const FIRST_ADDRESS: usize = 8;

/// Fewer bytes at the start of a table are found by chance.
const SMALLEST_START: usize = 9;

/// The table in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) address: Address,
    pub(super) size: usize,
    /// What it says of sections that were not found yet.
    pub(super) found: Vec<(usize, Address)>,
}

/// One entry of the section as it was compiled.
#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    end: usize,
    /// Where its CIE begins, for all but a CIE.
    cie: Option<usize>,
}

/// The entries, or `None` where they are not understood.
fn entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let length = number(bytes, start)? as usize;
        if length == 0 {
            break;
        }
        let end = start.checked_add(4)?.checked_add(length).filter(|&end| end <= bytes.len())?;
        let pointer = number(bytes, start + CIE_POINTER)? as usize;
        let cie = if pointer == 0 { None } else { Some((start + CIE_POINTER).checked_sub(pointer)?) };
        entries.push(Entry { start, end, cie });
        start = end;
    }
    (!entries.is_empty()).then_some(entries)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

/// The relocations of the section, by the offsets of their fields.
type Functions<'a> = BTreeMap<usize, &'a Reference>;

/// The one table `around` that agrees with what was found.
pub(super) fn find(search: &Search<'_>, section: &Section, around: &[Piece]) -> Option<Table> {
    let entries = entries(&section.bytes)?;
    let first = &section.bytes[..section.stays_from_start().min(entries[0].end)];
    if first.len() < SMALLEST_START {
        return None;
    }
    let functions: Functions<'_> =
        section.references.iter().map(|reference| (reference.offset as usize, reference)).collect();
    let mut tables = Vec::new();
    for piece in around {
        for at in memmem::find_iter(&piece.bytes, first) {
            tables.extend(walk(search, section, (&entries, &functions), piece, at));
        }
    }
    tables.dedup();
    if tables.len() == 1 { tables.pop() } else { None }
}

/// Reads the table that may begin at `start` of `piece`.
fn walk(
    search: &Search<'_>,
    section: &Section,
    (entries, functions): (&[Entry], &Functions<'_>),
    piece: &Piece,
    start: usize,
) -> Option<Table> {
    let mut at = start;
    let mut cies = Vec::new();
    let mut agreeing = 0;
    let mut found: BTreeMap<usize, Address> = BTreeMap::new();
    // What the entries just before have said.
    let mut run: Vec<(usize, Address)> = Vec::new();
    for entry in entries {
        let there = piece.bytes.get(at..at + (entry.end - entry.start));
        let Some(cie) = entry.cie else {
            if !section.part_is(entry.start, there?, None) {
                return None;
            }
            cies.push((entry.start, at));
            at += entry.end - entry.start;
            continue;
        };
        let reference = *functions.get(&(entry.start + FIRST_ADDRESS))?;
        let known = search.where_is(reference.target).or_else(|| found.get(&reference.target).copied());
        let is_it = there.filter(|there| {
            let cie = cies.iter().find(|(of, _)| *of == cie).map(|(_, at)| *at);
            section.part_is(entry.start, there, Some(CIE_POINTER..FIRST_ADDRESS))
                && cie.is_some_and(|cie| number(there, CIE_POINTER) == Some((at + CIE_POINTER - cie) as u32))
        });
        let says = is_it.and_then(|there| {
            let field = Reference { offset: FIRST_ADDRESS as u64, ..*reference };
            Section::resolve(&field, Address(piece.start.0 + at as u64), there)
        });
        match (known, says) {
            (Some(known), Some(says)) if known == says => {
                agreeing += 1;
                run.clear();
            }
            // What was found has an entry, and it is this one.
            (Some(_), _) => return None,
            (None, Some(says)) if search.index_may_be(reference.target, says) => {
                found.insert(reference.target, says);
                run.push((reference.target, says));
            }
            (None, _) => {
                let mut left_out = reference.target;
                while let Some((target, _)) = run.pop_if(|&mut (_, place)| search.index_may_be(left_out, place)) {
                    found.remove(&target);
                    left_out = target;
                }
                continue;
            }
        }
        at += entry.end - entry.start;
    }
    let address = Address(piece.start.0 + start as u64);
    (agreeing > 0).then(|| Table { address, size: at - start, found: found.into_iter().collect() })
}

impl Table {
    /// Where it is.
    pub(super) fn range(&self) -> Option<AddressRange> {
        AddressRange::new(self.address, self.size as u64)
    }
}
