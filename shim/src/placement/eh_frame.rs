//! Matches an object's `.eh_frame` with the table that JITLink has written. JITLink removes the entries of omitted
//! functions, and moves later entries up. The remaining entries give the address of each function. Only lengths and
//! distances are read from the unrelocated section; no unwind rules are decoded.
//!
//! The entries in memory are a subsequence of the object's entries. The match may be ambiguous, because JITLink may
//! have omitted some of several equal functions. The entries are therefore matched twice: forwards, each as early as
//! possible, and backwards, each as late as possible. The actual match lies between the two, so a function counts as
//! located only if both agree.

use std::collections::BTreeMap;

use jitlisten::plumbing::Ranges;
use jitlisten::{Address, AddressRange};
use jitlisten_unwinder::{Record, Section as UnwindSection};
use memchr::memmem;

use super::pattern::{Reference, Section};
use super::{Piece, Search, Surroundings};

/// Offset of the CIE pointer in an entry. In an FDE it is the distance to the CIE; in a CIE it is 0.
const CIE_POINTER: usize = 4;
/// Offset of the function's address in an FDE.
const FIRST_ADDRESS: usize = 8;

/// Minimum length of the byte prefix that is searched for to find a table. Shorter prefixes match by chance.
const MIN_PREFIX_BYTES: usize = 9;

/// An unwind table that was found in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) address: Address,
    pub(super) size: usize,
    /// Addresses of sections that were not located before, as given by the table. The key is the index in the section
    /// table.
    pub(super) functions: Vec<(usize, Address)>,
}

/// Wraps an `.eh_frame` for reading its records.
fn unwind_section(bytes: &[u8]) -> UnwindSection<'_> {
    // The address is unused, because no encoded pointer is read.
    UnwindSection { bytes, address: 0, data_base: None }
}

/// Returns the records of the section as compiled; `None` if it is malformed or empty.
fn entries(bytes: &[u8]) -> Option<Vec<Record>> {
    let entries: Vec<Record> = unwind_section(bytes).records(0).collect::<Result<_, _>>().ok()?;
    (!entries.is_empty()).then_some(entries)
}

/// Relocations of the section, by the offset of the relocated field.
type Functions<'a> = BTreeMap<usize, &'a Reference>;

/// Returns the table in the code, or `around` it, that agrees with the located sections. Returns `None` unless there is
/// exactly one such table.
pub(super) fn find(search: &Search<'_>, section: &Section, surroundings: &Surroundings) -> Option<Table> {
    let entries = entries(&section.bytes)?;
    let prefix = &section.bytes[..section.fixed_prefix_len().min(entries[0].end)];
    if prefix.len() < MIN_PREFIX_BYTES {
        return None;
    }
    let functions: Functions<'_> =
        section.references.iter().map(|reference| (reference.offset as usize, reference)).collect();
    let located_text = search.located_text();
    let mut tables = Vec::new();
    for piece in std::iter::once(search.code).chain(surroundings.iter()) {
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

/// Reads at most `max_entries` entries of the table at offset `start` in `bytes`.
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
    located_text: &'a Ranges,
}

impl TableMatcher<'_> {
    /// Matches the table that may begin at offset `start`.
    fn match_at(&self, start: usize) -> Option<Table> {
        let mut records = read_entries(&self.piece.bytes, start, self.entries.len());
        // Earliest match: for each entry in memory, the object's entry.
        let mut earliest_match = Vec::new();
        for entry in 0..self.entries.len() {
            if records.get(earliest_match.len()).is_some_and(|record| self.entry_matches(entry, record)) {
                earliest_match.push(entry);
            } else if self.is_located(entry) {
                // A located function must have an entry, so this is not the object's table.
                return None;
            }
        }
        records.truncate(earliest_match.len());
        // Latest match, determined from the end.
        let mut latest_match = vec![usize::MAX; records.len()];
        let mut unmatched = records.len();
        for entry in (0..self.entries.len()).rev() {
            if unmatched > 0 && self.entry_matches(entry, &records[unmatched - 1]) {
                unmatched -= 1;
                latest_match[unmatched] = entry;
            }
        }
        // Entries in memory for which both matches agree, indexed by the object's entry.
        let mut agreed_entries = vec![None; self.entries.len()];
        for (position, (&entry, record)) in earliest_match.iter().zip(&records).enumerate() {
            agreed_entries[entry] = Some(record).filter(|_| latest_match[position] == entry);
        }
        let mut agreement_count = 0;
        let mut addresses: BTreeMap<usize, Option<Address>> = BTreeMap::new();
        for (entry, agreed_record) in agreed_entries.into_iter().enumerate() {
            if self.entries[entry].common.is_none() {
                continue;
            }
            let target = self.function_reference(entry)?.target;
            if self.is_located(entry) {
                agreed_record?;
                agreement_count += 1;
            } else {
                let address = agreed_record.and_then(|record| self.function_address(entry, record));
                let previous = addresses.entry(target).or_insert(address);
                *previous = previous.filter(|&previous| address == Some(previous));
            }
        }
        let end = records.last()?.end;
        let address = Address(self.piece.start.0 + start as u64);
        let addresses = addresses.into_iter().filter_map(|(target, address)| Some((target, address?))).collect();
        (agreement_count > 0).then(|| Table { address, size: end - start, functions: addresses })
    }

    /// Returns true if an entry in memory may be the given entry of the object.
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

    /// Relocation of the field that holds an entry's function address.
    fn function_reference(&self, entry: usize) -> Option<&Reference> {
        self.functions.get(&(self.entries[entry].start + FIRST_ADDRESS)).copied()
    }

    /// Address that the entry in memory gives for the function of the object's entry.
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
