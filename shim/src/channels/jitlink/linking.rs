//! Search for linked JITLink objects in memory.
//!
//! | event | searched memory |
//! | --- | --- |
//! | memory becomes executable | that memory |
//! | an unwind table is registered | around its first function, because that memory may always have been executable |
//! | `emit` returns, and its object was not located | writable and executable memory, then all executable memory |
//! | an object was not located within a second | all executable memory |
//!
//! An object that matches in more than one place is not placed.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{Mapping, MapsLine, mappings_in};
use jitlisten::{Address, AddressRange, ObjectId, cfi, log_line};

use super::emitted::Emitted;
use crate::channels::moved_code::copies::{MAX_SEARCHED_BYTES, max_reach, read_memory, read_piece};
use crate::doctor::facts::{self, Count};
use crate::placement::{Around, Pattern, Piece, Placement, certain};
use crate::process::this_thread;
use crate::state::{Shim, State};

/// Maximum bytes to search without a hint that code was linked there.
const MAX_UNHINTED_BYTES: u64 = 16 << 20;

/// Memory with code, and the memory around it that may belong to the code.
struct SearchRegion {
    code: Piece,
    surroundings: Around,
    /// True if any thread may have linked code there, at any time.
    is_unhinted: bool,
}

impl SearchRegion {
    fn read_around(state: &State, range: AddressRange, is_unhinted: bool) -> Option<SearchRegion> {
        let max_reach = max_reach(state.emitted.patterns());
        Some(SearchRegion {
            code: read_piece(range)?,
            surroundings: state.memory_around(range, max_reach),
            is_unhinted,
        })
    }
}

impl Shim {
    /// Records that the LLVM in `slot` is about to link an object. Returns the number of this `emit` call. `pattern` is
    /// `None` if the object is not understood, and `Some(None)` if it cannot be located.
    pub(crate) fn begin_emit(&self, slot: usize, pattern: Option<Option<Pattern>>) -> u64 {
        let mut state = self.lock();
        if pattern.is_some() {
            // The library is running, so it is relocated.
            self.observe_running_source(&mut state, slot);
        }
        let number = state.emitted.begin_call();
        let Some(pattern) = pattern else { return number };
        if pattern.as_ref().is_none_or(|pattern| pattern.texts() > 0) {
            facts::count(slot, Count::ForJitLink);
        }
        if let Some(pattern) = pattern.filter(|pattern| pattern.texts() > 0) {
            state.self_loaded.remove_object(pattern.object());
            state.emitted.push(number, slot, pattern);
        }
        number
    }

    /// Records that `emit` has returned, and searches for its object, which is linked by now, or later together with
    /// others.
    pub(crate) fn end_emit(&self, number: u64) {
        let mut state = self.lock();
        state.emitted.end_call(number);
        if !state.emitted.is_unlocated(number) {
            return;
        }
        let candidates = state.emitted.candidates_at_end(number);
        let writable = self.session.ledger(|ledger| ledger.writable().collect());
        self.search_ranges(&mut state, writable, &candidates);
        if state.emitted.is_unlocated(number) && state.emitted.may_query_kernel() {
            let candidates = state.emitted.candidates_at_end(number);
            self.search_ranges(&mut state, executable_memory(), &candidates);
            let is_located = !state.emitted.is_unlocated(number);
            state.emitted.record_query(is_located);
        }
    }

    /// Searches again for objects that could not be located within a second.
    pub(crate) fn search_for_overdue_emitted(&self, state: &mut State) {
        let candidates = state.emitted.overdue_candidates(jitlisten::plumbing::monotonic());
        if !candidates.is_empty() {
            self.search_ranges(state, executable_memory(), &candidates);
        }
    }

    /// Searches `range`, which has become executable, for linked objects.
    pub(crate) fn search_for_emitted(&self, state: &mut State, range: AddressRange) {
        if state.emitted.unlocated.is_empty() || range.size() > MAX_SEARCHED_BYTES {
            return;
        }
        let Some(region) = SearchRegion::read_around(state, range, false) else { return };
        let candidates = state.emitted.candidates(this_thread());
        self.search_regions(state, &[region], &candidates);
    }

    /// Searches around the first function of the unwind table at `address`, which was registered, for linked objects.
    pub(crate) fn search_near_table(&self, state: &mut State, address: Address) {
        let Some(extent) = state.emitted.search_extent(this_thread()).filter(|&extent| extent < MAX_SEARCHED_BYTES)
        else {
            return;
        };
        let Some(first) = first_function(address).filter(|&first| self.is_free(first)) else {
            return;
        };
        let Some(mapping) = mapping_at(first.start()).filter(|mapping| mapping.executable) else { return };
        let code = clip(first.start().0.saturating_sub(extent), first.end().0.saturating_add(extent), mapping.range);
        let table =
            mapping_at(address).and_then(|mapping| clip(address.0, address.0.saturating_add(extent), mapping.range));
        let (Some(code), Some(table)) = (code.and_then(read_piece), table.and_then(read_piece)) else { return };
        let candidates = state.emitted.candidates(this_thread());
        self.search_regions(
            state,
            &[SearchRegion { code, surroundings: Around::new(Box::new(|| vec![table])), is_unhinted: false }],
            &candidates,
        );
    }

    /// Searches the smallest of `ranges` for the candidates. Objects located there were linked earlier.
    fn search_ranges(&self, state: &mut State, mut ranges: Vec<AddressRange>, candidates: &[(usize, bool)]) {
        ranges.sort_by_key(|range| range.size());
        let mut remaining_bytes = MAX_UNHINTED_BYTES;
        let fits_limit = |range: &AddressRange| {
            remaining_bytes = remaining_bytes.saturating_sub(range.size());
            remaining_bytes > 0
        };
        let regions: Vec<SearchRegion> = ranges
            .into_iter()
            .take_while(fits_limit)
            .filter_map(|range| SearchRegion::read_around(state, range, true))
            .collect();
        for id in self.search_regions(state, &regions, candidates) {
            // Query the kernel: the code may be executable already, whatever protection LLVM has requested.
            let texts = self.pending_text(id).unwrap_or_default();
            self.query_unknown(state, &texts);
            let outcome = self.session.overdue(id);
            self.note(state, &outcome);
        }
    }

    /// Searches `regions` for the candidates, and registers the objects whose location is unambiguous.
    fn search_regions(
        &self,
        state: &mut State,
        regions: &[SearchRegion],
        candidates: &[(usize, bool)],
    ) -> Vec<ObjectId> {
        let mut matches: Vec<(usize, bool, Placement)> = Vec::new();
        for &(index, is_certain) in candidates {
            // An equal object has matched already. Both have the same function names, so either may be placed.
            let object = state.emitted.unlocated[index].pattern.object();
            if matches.iter().any(|(other, ..)| state.emitted.unlocated[*other].pattern.is_object(object)) {
                continue;
            }
            let mut placements =
                regions.iter().filter_map(|region| self.match_pattern(state, index, region, is_certain));
            let (Some(placement), None) = (placements.next(), placements.next()) else { continue };
            let is_whole = placement.text.len() == state.emitted.unlocated[index].pattern.texts();
            // This thread's own object is there as a whole, so there is no need to search for objects of other threads.
            let is_own = is_certain && is_whole && !placement.is_small;
            matches.push((index, is_own, placement));
            if is_own {
                break;
            }
        }
        let is_best_match = certain(matches.iter().map(|(.., placement)| placement));
        let matched_indices: Vec<usize> = matches.iter().map(|(index, ..)| *index).collect();
        let is_unambiguous = |(index, is_own, placement): &(usize, bool, Placement)| {
            // Any thread may link an object whose `emit` has returned, by completing the link that the object waits
            // for.
            let mut competitors = state.emitted.unlocated.iter().enumerate().filter(|&(other, emitted)| {
                other != *index
                    && !matched_indices.contains(&other)
                    && !(*is_own && state.emitted.is_active(emitted.number))
            });
            let object = state.emitted.unlocated[*index].pattern.object();
            !competitors.any(|(_, emitted)| {
                !emitted.pattern.is_object(object) && emitted.pattern.may_also_be_at(placement, &read_memory)
            })
        };
        let mut unambiguous: Vec<usize> = (0..matches.len())
            .filter(|&position| is_best_match[position] && is_unambiguous(&matches[position]))
            .collect();
        if unambiguous.is_empty() && !matches.is_empty() {
            log_line!(Info, "{} equal objects of JITLink stay unnamed", matches.len());
        }
        // Remove from the back, so that the other indices stay valid.
        unambiguous.sort_by_key(|&position| std::cmp::Reverse(matches[position].0));
        let mut ids = Vec::new();
        for position in unambiguous {
            let (index, _, placement) = &matches[position];
            if let Some(emitted) = state.emitted.unlocated.remove(*index) {
                ids.extend(self.register_located(state, emitted, placement));
            }
        }
        ids
    }

    fn match_pattern(&self, state: &State, index: usize, region: &SearchRegion, is_certain: bool) -> Option<Placement> {
        let is_free = |range| self.is_free(range);
        let pattern = &state.emitted.unlocated.get(index)?.pattern;
        let placement = pattern.place(&region.code, &region.surroundings, &read_memory, &is_free, is_certain)?;
        (placement.is_certain || !region.is_unhinted).then_some(placement)
    }

    /// Registers a located object with the session.
    fn register_located(&self, state: &mut State, emitted: Emitted, placement: &Placement) -> Option<ObjectId> {
        let texts = emitted.pattern.texts();
        if placement.text.len() < texts {
            log_line!(Info, "found {} of {texts} text sections of an object of JITLink", placement.text.len());
        }
        facts::count(emitted.slot, Count::JitLink);
        let object = emitted.pattern.into_debug_object(&placement.sections);
        let loaded = self.session.linked(object, state.library_name(emitted.slot)).ok()?;
        let id = loaded.id;
        self.record_loaded(state, loaded);
        Some(id)
    }
}

/// Maximum size of the first CIE of a table, and of the FDE after it.
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

/// Part of `range` from `start` to `end`.
fn clip(start: u64, end: u64, range: AddressRange) -> Option<AddressRange> {
    let start = start.max(range.start().0);
    AddressRange::new(Address(start), end.min(range.end().0).checked_sub(start)?)
}

/// Executable memory that is not backed by a file on disk, where unreported code may be.
fn executable_memory() -> Vec<AddressRange> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let has_no_disk_file = |line: &MapsLine<'_>| {
        let names: [&[u8]; 2] = [b"[anon", b"/memfd:"];
        line.path.is_empty() || line.is_shared() || names.iter().any(|name| line.path.starts_with(name))
    };
    let executable = MapsLine::parse_all(&maps).filter(|line| line.is_executable() && has_no_disk_file(line));
    executable.map(|line| line.range).collect()
}
