//! `.eh_frame` after JITLink: entries of omitted functions are removed, and later ones move up. The remaining entries
//! give the address of each function. Only lengths and distances are read, of an unrelocated section; nothing is
//! decoded.
//!
//! The entries in memory are a subsequence of the object's. It may be ambiguous: of equal functions, some may have been
//! omitted. Therefore they are matched twice, from the first as early as possible and from the last as late as
//! possible. The truth is between the two, so a function is found only if both agree.

use std::collections::BTreeMap;

use jitlisten::plumbing::Ranges;
use jitlisten::{Address, AddressRange};
use jitlisten_unwinder::{Record, Section as Frames};
use memchr::memmem;

use super::pattern::{Reference, Section};
use super::{Around, Piece, Search};

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

fn frames(bytes: &[u8]) -> Frames<'_> {
    // Where it is does not matter: no pointer is read.
    Frames { bytes, address: 0, data_base: None }
}

/// The entries of the section as it was compiled, or `None` where they are not understood.
fn entries(bytes: &[u8]) -> Option<Vec<Record>> {
    let entries: Vec<Record> = frames(bytes).records(0).collect::<Result<_, _>>().ok()?;
    (!entries.is_empty()).then_some(entries)
}

/// The relocations of the section, by the offsets of their fields.
type Functions<'a> = BTreeMap<usize, &'a Reference>;

/// The one table in the code or `around` it that agrees with what was found.
pub(super) fn find(search: &Search<'_>, section: &Section, around: &Around) -> Option<Table> {
    let entries = entries(&section.bytes)?;
    let first = &section.bytes[..section.stays_from_start().min(entries[0].end)];
    if first.len() < SMALLEST_START {
        return None;
    }
    let functions: Functions<'_> =
        section.references.iter().map(|reference| (reference.offset as usize, reference)).collect();
    let found = search.found_text();
    let mut tables = Vec::new();
    for piece in std::iter::once(search.code).chain(around.iter()) {
        let walk = Walk { search, section, entries: &entries, functions: &functions, piece, found: &found };
        tables.extend(memmem::find_iter(&piece.bytes, first).filter_map(|at| walk.read(at)));
    }
    tables.dedup();
    if tables.len() == 1 { tables.pop() } else { None }
}

/// The entries of a table in memory that begins at `start` of `bytes`, not more than `most`.
fn entries_in_memory(bytes: &[u8], start: usize, most: usize) -> Vec<Record> {
    let is_inside = |record: &Record| record.common.is_none_or(|common| common >= start);
    frames(bytes).records(start).map_while(Result::ok).take_while(is_inside).take(most).collect()
}

/// The table that may be at `start` of a piece of memory, beside the object's own.
struct Walk<'a> {
    search: &'a Search<'a>,
    section: &'a Section,
    entries: &'a [Record],
    functions: &'a Functions<'a>,
    piece: &'a Piece,
    /// Text that was found before.
    found: &'a Ranges,
}

impl Walk<'_> {
    /// Reads the table that may begin at `start`.
    fn read(&self, start: usize) -> Option<Table> {
        let mut there = entries_in_memory(&self.piece.bytes, start, self.entries.len());
        // As early as possible: which entry of the object each entry in memory is.
        let mut early = Vec::new();
        for entry in 0..self.entries.len() {
            if there.get(early.len()).is_some_and(|there| self.may_be(entry, there)) {
                early.push(entry);
            } else if self.is_found(entry) {
                // What was found has an entry.
                return None;
            }
        }
        there.truncate(early.len());
        // As late as possible.
        let mut late = vec![usize::MAX; there.len()];
        let mut left = there.len();
        for entry in (0..self.entries.len()).rev() {
            if left > 0 && self.may_be(entry, &there[left - 1]) {
                left -= 1;
                late[left] = entry;
            }
        }
        // Where each entry of the object is for certain.
        let mut certain = vec![None; self.entries.len()];
        for (at, (&entry, there)) in early.iter().zip(&there).enumerate() {
            certain[entry] = Some(there).filter(|_| late[at] == entry);
        }
        let mut agreeing = 0;
        let mut found: BTreeMap<usize, Option<Address>> = BTreeMap::new();
        for (entry, certain) in certain.into_iter().enumerate() {
            if self.entries[entry].common.is_none() {
                continue;
            }
            let target = self.function(entry)?.target;
            if self.is_found(entry) {
                certain?;
                agreeing += 1;
            } else {
                let says = certain.and_then(|there| self.says(entry, there));
                let before = found.entry(target).or_insert(says);
                *before = before.filter(|&before| says == Some(before));
            }
        }
        let end = there.last()?.end;
        let address = Address(self.piece.start.0 + start as u64);
        let found = found.into_iter().filter_map(|(target, place)| Some((target, place?))).collect();
        (agreeing > 0).then(|| Table { address, size: end - start, found })
    }

    /// Whether an entry in memory may be this one of the object.
    fn may_be(&self, entry: usize, there: &Record) -> bool {
        let (Record { start, end, common: cie, .. }, bytes) =
            (self.entries[entry], &self.piece.bytes[there.start..there.end]);
        if end - start != bytes.len() {
            return false;
        }
        let (Some(cie), Some(cie_there)) = (cie, there.common) else {
            return cie.is_none() && there.common.is_none() && self.section.part_is(start, bytes, None);
        };
        let cie_bytes = || {
            let cie = self.entries[self.entries.binary_search_by_key(&cie, |entry| entry.start).ok()?];
            let bytes = self.piece.bytes.get(cie_there..cie_there + (cie.end - cie.start))?;
            Some(self.section.part_is(cie.start, bytes, None))
        };
        if !self.section.part_is(start, bytes, Some(CIE_POINTER..FIRST_ADDRESS)) || cie_bytes() != Some(true) {
            return false;
        }
        let (Some(function), Some(says)) = (self.function(entry), self.says(entry, there)) else { return false };
        match self.search.where_is(function.target) {
            Some(known) => known == says,
            None => {
                let range = self.search.range_at(function.target, says);
                range.is_some_and(|range| !self.found.overlaps(range))
                    && self.search.index_may_be(function.target, says)
            }
        }
    }

    /// Whether the section that an entry is about was found before.
    fn is_found(&self, entry: usize) -> bool {
        self.function(entry).is_some_and(|function| self.search.where_is(function.target).is_some())
    }

    /// The relocation with the function of an entry.
    fn function(&self, entry: usize) -> Option<&Reference> {
        self.functions.get(&(self.entries[entry].start + FIRST_ADDRESS)).copied()
    }

    /// Where an entry in memory says that the section is which this entry of the object is about.
    fn says(&self, entry: usize, there: &Record) -> Option<Address> {
        let field = Reference { offset: FIRST_ADDRESS as u64, ..*self.function(entry)? };
        let address = Address(self.piece.start.0 + there.start as u64);
        Section::resolve(&field, address, &self.piece.bytes[there.start..there.end])
    }
}

impl Table {
    /// Where it is.
    pub(super) fn range(&self) -> Option<AddressRange> {
        AddressRange::new(self.address, self.size as u64)
    }
}
