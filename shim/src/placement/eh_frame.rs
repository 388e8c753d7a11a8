//! `.eh_frame` as JITLink leaves it: entries of omitted functions are removed, and later ones move up. The remaining
//! entries give the address of each function. Only lengths and distances of an unrelocated section are read; no unwind
//! rules are decoded.
//!
//! The entries in memory are a subsequence of the object's. The match may be ambiguous: some of several equal functions
//! may have been omitted. The entries are therefore matched twice, from the first as early as possible and from the
//! last as late as possible. The actual match lies between the two, so a function counts as located only if both agree.

use std::collections::BTreeMap;

use jitlisten::plumbing::Ranges;
use jitlisten::{Address, AddressRange};
use jitlisten_unwinder::{Record, Section as UnwindSection};
use memchr::memmem;

use super::pattern::{Reference, Section};
use super::{Piece, Search, Surroundings};

/// Offset of the CIE pointer in an entry: the distance from an FDE to its CIE, 0 in a CIE.
const CIE_POINTER: usize = 4;
/// Offset of the function's address in an FDE.
const FIRST_ADDRESS: usize = 8;

/// Minimum length of the byte prefix by which a table is found: shorter prefixes match by chance.
const MIN_PREFIX_BYTES: usize = 9;

/// An unwind table that was found in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) address: Address,
    pub(super) size: usize,
    /// Addresses that the table gives for sections that were not located before, by index in the section table.
    pub(super) functions: Vec<(usize, Address)>,
}

/// Wraps an `.eh_frame` for reading its records.
fn unwind_section(bytes: &[u8]) -> UnwindSection<'_> {
    // The address is unused, because no pointer is read.
    UnwindSection { bytes, address: 0, data_base: None }
}

/// Entries of the section as compiled; `None` if it is malformed or empty.
fn entries(bytes: &[u8]) -> Option<Vec<Record>> {
    let entries: Vec<Record> = unwind_section(bytes).records(0).collect::<Result<_, _>>().ok()?;
    (!entries.is_empty()).then_some(entries)
}

/// Relocations of the section, by the offset of the field.
type Functions<'a> = BTreeMap<usize, &'a Reference>;

/// Returns the table in the code or `around` it that agrees with the located sections, if there is exactly one.
pub(super) fn find(search: &Search<'_>, section: &Section, around: &Surroundings) -> Option<Table> {
    let entries = entries(&section.bytes)?;
    let prefix = &section.bytes[..section.fixed_prefix_len().min(entries[0].end)];
    if prefix.len() < MIN_PREFIX_BYTES {
        return None;
    }
    let functions: Functions<'_> =
        section.references.iter().map(|reference| (reference.offset as usize, reference)).collect();
    let located_text = search.located_text();
    let mut tables = Vec::new();
    for piece in std::iter::once(search.code).chain(around.iter()) {
        let matcher = TableMatcher {
            search,
            section,
            entries: &entries,
            functions: &functions,
            piece,
            located_text: &located_text,
        };
        tables.extend(memmem::find_iter(&piece.bytes, prefix).filter_map(|start| matcher.match_at(start)));
    }
    tables.dedup();
    if tables.len() == 1 { tables.pop() } else { None }
}

/// Reads at most `max_entries` entries of a table that begins at `start` of `bytes`.
fn read_entries(bytes: &[u8], start: usize, max_entries: usize) -> Vec<Record> {
    let is_inside = |record: &Record| record.common.is_none_or(|common| common >= start);
    unwind_section(bytes).records(start).map_while(Result::ok).take_while(is_inside).take(max_entries).collect()
}

/// Matches tables in a piece of memory against the object's own table.
struct TableMatcher<'a> {
    search: &'a Search<'a>,
    section: &'a Section,
    entries: &'a [Record],
    functions: &'a Functions<'a>,
    piece: &'a Piece,
    /// Text that is already located.
    located_text: &'a Ranges,
}

impl TableMatcher<'_> {
    /// Matches the table that may begin at `start`.
    fn match_at(&self, start: usize) -> Option<Table> {
        let mut records = read_entries(&self.piece.bytes, start, self.entries.len());
        // Earliest match: the object's entry for each entry in memory.
        let mut earliest = Vec::new();
        for entry in 0..self.entries.len() {
            if records.get(earliest.len()).is_some_and(|record| self.entry_matches(entry, record)) {
                earliest.push(entry);
            } else if self.is_located(entry) {
                // A located function must have an entry.
                return None;
            }
        }
        records.truncate(earliest.len());
        // Latest match, from the end.
        let mut latest = vec![usize::MAX; records.len()];
        let mut unmatched = records.len();
        for entry in (0..self.entries.len()).rev() {
            if unmatched > 0 && self.entry_matches(entry, &records[unmatched - 1]) {
                unmatched -= 1;
                latest[unmatched] = entry;
            }
        }
        // Entries in memory on which both matches agree, by entry of the object.
        let mut agreed = vec![None; self.entries.len()];
        for (position, (&entry, record)) in earliest.iter().zip(&records).enumerate() {
            agreed[entry] = Some(record).filter(|_| latest[position] == entry);
        }
        let mut agreement_count = 0;
        let mut addresses: BTreeMap<usize, Option<Address>> = BTreeMap::new();
        for (entry, agreed) in agreed.into_iter().enumerate() {
            if self.entries[entry].common.is_none() {
                continue;
            }
            let target = self.function_reference(entry)?.target;
            if self.is_located(entry) {
                agreed?;
                agreement_count += 1;
            } else {
                let address = agreed.and_then(|record| self.function_address(entry, record));
                let previous = addresses.entry(target).or_insert(address);
                *previous = previous.filter(|&previous| address == Some(previous));
            }
        }
        let end = records.last()?.end;
        let address = Address(self.piece.start.0 + start as u64);
        let addresses = addresses.into_iter().filter_map(|(target, address)| Some((target, address?))).collect();
        (agreement_count > 0).then(|| Table { address, size: end - start, functions: addresses })
    }

    /// Returns true if an entry in memory may be this entry of the object.
    fn entry_matches(&self, entry: usize, record: &Record) -> bool {
        let (Record { start, end, common: cie, .. }, bytes) =
            (self.entries[entry], &self.piece.bytes[record.start..record.end]);
        if end - start != bytes.len() {
            return false;
        }
        let (Some(cie), Some(memory_cie)) = (cie, record.common) else {
            return cie.is_none() && record.common.is_none() && self.section.part_matches(start, bytes, None);
        };
        let cie_bytes = || {
            let cie = self.entries[self.entries.binary_search_by_key(&cie, |entry| entry.start).ok()?];
            let bytes = self.piece.bytes.get(memory_cie..memory_cie + (cie.end - cie.start))?;
            Some(self.section.part_matches(cie.start, bytes, None))
        };
        if !self.section.part_matches(start, bytes, Some(CIE_POINTER..FIRST_ADDRESS)) || cie_bytes() != Some(true) {
            return false;
        }
        let (Some(reference), Some(address)) = (self.function_reference(entry), self.function_address(entry, record))
        else {
            return false;
        };
        match self.search.address_of(reference.target) {
            Some(located) => located == address,
            None => {
                let range = self.search.range_at(reference.target, address);
                range.is_some_and(|range| !self.located_text.overlaps(range))
                    && self.search.section_matches_at(reference.target, address)
            }
        }
    }

    /// Returns true if the function of an entry is already located.
    fn is_located(&self, entry: usize) -> bool {
        self.function_reference(entry).is_some_and(|reference| self.search.address_of(reference.target).is_some())
    }

    /// Relocation that holds the function of an entry.
    fn function_reference(&self, entry: usize) -> Option<&Reference> {
        self.functions.get(&(self.entries[entry].start + FIRST_ADDRESS)).copied()
    }

    /// Address that an entry in memory gives for the function of the object's entry.
    fn function_address(&self, entry: usize, record: &Record) -> Option<Address> {
        let field = Reference { offset: FIRST_ADDRESS as u64, ..*self.function_reference(entry)? };
        let address = Address(self.piece.start.0 + record.start as u64);
        Section::resolve(&field, address, &self.piece.bytes[record.start..record.end])
    }
}

impl Table {
    /// Range of the table in memory.
    pub(super) fn range(&self) -> Option<AddressRange> {
        AddressRange::new(self.address, self.size as u64)
    }
}
