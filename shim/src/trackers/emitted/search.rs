//! Search for linked JITLink objects in memory.
//!
//! | event | searched memory |
//! | --- | --- |
//! | memory becomes executable | that memory |
//! | an unwind table is registered | memory around its first function, which may always have been executable |
//! | `emit` returns, and its object was not located | writable and executable memory, then all executable memory |
//! | an object was not located within a second | all executable memory |
//!
//! An object that matches at more than one address stays unlocated.

#![forbid(unsafe_code)]

use jitlisten::plumbing::cfi;
use jitlisten::plumbing::{Mapping, MapsLine, mappings_in};
use jitlisten::{Address, AddressRange, log_line};
use wire::facts::Count;

use super::{EmittedObject, EmittedObjects};
use crate::doctor::facts;
use crate::placement::{Piece, Placement, Surroundings, find_unambiguous};
use crate::process::this_thread;
use crate::trackers::memory::{LocatedObject, MAX_SEARCHED_BYTES, Memory, max_reach, read_memory, read_piece};

/// Maximum number of bytes to search without a hint that code was linked there.
const MAX_UNHINTED_BYTES: u64 = 16 << 20;

/// Memory that contains code, and the memory around it that may belong to the same objects.
struct SearchRegion {
    code: Piece,
    surroundings: Surroundings,
    /// True if any thread may have linked code there, at any time.
    is_unhinted: bool,
}

impl EmittedObjects {
    pub(crate) fn search_executable(&mut self, memory: Memory<'_>, range: AddressRange) -> Vec<LocatedObject> {
        if self.unlocated.is_empty() || range.size() > MAX_SEARCHED_BYTES {
            return Vec::new();
        }
        let Some(region) = self.region(memory, range, false) else { return Vec::new() };
        let candidates = self.candidates(this_thread());
        self.search_regions(memory, &[region], &candidates)
    }

    /// Searches memory around the first function of the unwind table that was registered at `address`.
    pub(crate) fn search_near_table(&mut self, memory: Memory<'_>, address: Address) -> Vec<LocatedObject> {
        let Some(region) = self.region_of_table(memory, address) else { return Vec::new() };
        let candidates = self.candidates(this_thread());
        self.search_regions(memory, &[region], &candidates)
    }

    /// Searches `ranges` for the object of an `emit` call that has returned, and for other objects.
    pub(crate) fn search_after_emit(
        &mut self,
        memory: Memory<'_>,
        number: u64,
        ranges: Vec<AddressRange>,
    ) -> Vec<LocatedObject> {
        let candidates = self.candidates_at_end(number);
        self.search_ranges(memory, ranges, &candidates)
    }

    /// Searches again for objects that could not be located within a second.
    pub(crate) fn search_overdue(&mut self, memory: Memory<'_>, now: u64) -> Vec<LocatedObject> {
        let candidates = self.overdue_candidates(now);
        if candidates.is_empty() {
            return Vec::new();
        }
        self.search_ranges(memory, executable_memory(), &candidates)
    }

    fn region(&self, memory: Memory<'_>, range: AddressRange, is_unhinted: bool) -> Option<SearchRegion> {
        let surroundings = memory.surroundings_of(range, max_reach(self.patterns()));
        Some(SearchRegion { code: read_piece(range)?, surroundings, is_unhinted })
    }

    fn region_of_table(&self, memory: Memory<'_>, address: Address) -> Option<SearchRegion> {
        let extent = self.search_extent(this_thread()).filter(|&extent| extent < MAX_SEARCHED_BYTES)?;
        let first = first_function(address).filter(|&first| memory.is_free(first))?;
        let mapping = mapping_at(first.start()).filter(|mapping| mapping.executable)?;
        let code = clip(first.start().0.saturating_sub(extent), first.end().0.saturating_add(extent), mapping.range)?;
        let table = clip(address.0, address.0.saturating_add(extent), mapping_at(address)?.range)?;
        let (code, table) = (read_piece(code)?, read_piece(table)?);
        Some(SearchRegion { code, surroundings: Surroundings::new(Box::new(|| vec![table])), is_unhinted: false })
    }

    /// Searches the smallest of `ranges` for the candidates.
    fn search_ranges(
        &mut self,
        memory: Memory<'_>,
        mut ranges: Vec<AddressRange>,
        candidates: &[(usize, bool)],
    ) -> Vec<LocatedObject> {
        ranges.sort_by_key(|range| range.size());
        let mut remaining_bytes = MAX_UNHINTED_BYTES;
        let fits_limit = |range: &AddressRange| {
            remaining_bytes = remaining_bytes.saturating_sub(range.size());
            remaining_bytes > 0
        };
        let ranges = ranges.into_iter().take_while(fits_limit);
        let regions: Vec<SearchRegion> = ranges.filter_map(|range| self.region(memory, range, true)).collect();
        self.search_regions(memory, &regions, candidates)
    }

    /// Searches `regions` for the candidates. Returns the objects that have an unambiguous location.
    fn search_regions(
        &mut self,
        memory: Memory<'_>,
        regions: &[SearchRegion],
        candidates: &[(usize, bool)],
    ) -> Vec<LocatedObject> {
        let matches = self.find_matches(memory, regions, candidates);
        let is_best_match = find_unambiguous(matches.iter().map(|(.., placement)| placement));
        let matched_indices: Vec<usize> = matches.iter().map(|(index, ..)| *index).collect();
        let is_unambiguous = |(index, is_own, placement): &(usize, bool, Placement)| {
            // An object whose `emit` call has returned may be linked by any thread, namely by the one that completes
            // the link that the object waits for.
            let mut competitors = self.unlocated.iter().enumerate().filter(|&(other, emitted)| {
                other != *index && !matched_indices.contains(&other) && !(*is_own && self.is_active(emitted.number))
            });
            let object = self.unlocated[*index].pattern.object();
            !competitors.any(|(_, emitted)| {
                !emitted.pattern.equals_object(object) && emitted.pattern.may_match_placement(placement, &read_memory)
            })
        };
        let mut unambiguous: Vec<usize> = (0..matches.len())
            .filter(|&position| is_best_match[position] && is_unambiguous(&matches[position]))
            .collect();
        if unambiguous.is_empty() && !matches.is_empty() {
            log_line!(Info, "{} equal objects of JITLink stay unnamed", matches.len());
        }
        // Remove entries from the back, so that the remaining indices stay valid.
        unambiguous.sort_by_key(|&position| std::cmp::Reverse(matches[position].0));
        let located = unambiguous.into_iter().filter_map(|position| {
            let (index, _, placement) = &matches[position];
            Some(self.unlocated.remove(*index)?.into_located(placement))
        });
        located.collect()
    }

    /// Matches the candidates with `regions`. Returns each candidate's index, whether the memory certainly belongs to
    /// the object, and the placement.
    fn find_matches(
        &self,
        memory: Memory<'_>,
        regions: &[SearchRegion],
        candidates: &[(usize, bool)],
    ) -> Vec<(usize, bool, Placement)> {
        let mut matches: Vec<(usize, bool, Placement)> = Vec::new();
        for &(index, is_certain) in candidates {
            let pattern = &self.unlocated[index].pattern;
            // An equal object has already matched. Equal objects have the same function names, so either may be placed.
            if matches.iter().any(|(other, ..)| self.unlocated[*other].pattern.equals_object(pattern.object())) {
                continue;
            }
            let is_free = |range| memory.is_free(range);
            let mut placements = regions.iter().filter_map(|region| {
                pattern
                    .locate(&region.code, &region.surroundings, &read_memory, &is_free, is_certain)
                    .filter(|placement| placement.is_certain || !region.is_unhinted)
            });
            let (Some(placement), None) = (placements.next(), placements.next()) else { continue };
            let is_whole = placement.text.len() == pattern.text_count();
            // This thread's own object was found as a whole, so objects of other threads need not be searched.
            let is_own = is_certain && is_whole && !placement.is_small;
            matches.push((index, is_own, placement));
            if is_own {
                break;
            }
        }
        matches
    }
}

impl EmittedObject {
    fn into_located(self, placement: &Placement) -> LocatedObject {
        let texts = self.pattern.text_count();
        if placement.text.len() < texts {
            log_line!(Info, "found {} of {texts} text sections of an object of JITLink", placement.text.len());
        }
        facts::count(self.slot, Count::JitLink);
        let object = self.pattern.into_debug_object(&placement.sections);
        LocatedObject { object, slot: Some(self.slot), first_text: placement.text.first().copied().unwrap_or_default() }
    }
}

/// Maximum size of a table's first CIE, and of the FDE after it.
const MAX_ENTRY_BYTES: u64 = 512;

/// First function that the unwind table at `address` covers.
fn first_function(address: Address) -> Option<AddressRange> {
    let copy = |start: u64, size: u64| read_memory(AddressRange::new(Address(start), size)?);
    let entry_size = |start: u64| {
        let size = u64::from(u32::from_le_bytes(copy(start, 4)?.try_into().ok()?));
        (size != 0 && size < MAX_ENTRY_BYTES).then_some(size + 4)
    };
    let cie_size = entry_size(address.0)?;
    let entries_size = cie_size + entry_size(address.0.checked_add(cie_size)?)?;
    cfi::covered(&copy(address.0, entries_size)?, address).ok()?.first().copied()
}

fn mapping_at(address: Address) -> Option<Mapping> {
    mappings_in(AddressRange::new(address, 1)?).ok()??.first().copied()
}

/// Returns the part of `range` between `start` and `end`.
fn clip(start: u64, end: u64, range: AddressRange) -> Option<AddressRange> {
    let start = start.max(range.start().0);
    AddressRange::new(Address(start), end.min(range.end().0).checked_sub(start)?)
}

/// Executable memory that is not backed by a file on disk, and may therefore contain unreported code.
pub(crate) fn executable_memory() -> Vec<AddressRange> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let has_no_disk_file = |line: &MapsLine<'_>| {
        let names: [&[u8]; 2] = [b"[anon", b"/memfd:"];
        line.path.is_empty() || line.is_shared() || names.iter().any(|name| line.path.starts_with(name))
    };
    let executable = MapsLine::parse_all(&maps).filter(|line| line.is_executable() && has_no_disk_file(line));
    executable.map(|line| line.range).collect()
}
