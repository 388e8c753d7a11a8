//! Finds linked objects of JITLink in memory.
//!
//! | when | where |
//! | --- | --- |
//! | memory becomes executable | there |
//! | an unwind table is registered | around its first function: that memory may always have been executable |
//! | `emit` returns, and the object was not found | writable and executable memory, then all that is executable |
//! | an object is pending for a second | the same |
//!
//! An object that matches in more than one place is dropped.

#![forbid(unsafe_code)]

use jitlisten::plumbing::{Mapping, MapsLine, mappings_of};
use jitlisten::{Address, AddressRange, ObjectId, cfi, log_line};

use super::emitted::Emitted;
use crate::channels::moved_code::copies::{LARGEST, piece, reach, read};
use crate::doctor::facts::{self, Count};
use crate::placement::{Around, Pattern, Piece, Placement, certain};
use crate::process::this_thread;
use crate::state::{Shim, State};

/// So much memory is not searched where it is not known that something was linked there.
const LARGEST_AT_END: u64 = 16 << 20;

/// Memory with code, and what may belong to it around.
struct Place {
    code: Piece,
    around: Around,
    /// Whether anybody may have linked there, and at any time.
    is_any: bool,
}

impl Place {
    fn of(state: &State, range: AddressRange, is_any: bool) -> Option<Place> {
        let reach = reach(state.emitted.patterns());
        Some(Place { code: piece(range)?, around: state.around(range, reach), is_any })
    }
}

impl Shim {
    /// An object is about to be linked by the LLVM in `slot`. Returns the number of this call of `emit`. `pattern`:
    /// where the object was understood, and where what is in it is.
    pub(crate) fn emitted(&self, slot: usize, pattern: Option<Option<Pattern>>) -> u64 {
        let mut state = self.lock();
        if pattern.is_some() {
            // The library runs, so it is relocated.
            self.prepare(&mut state, slot);
        }
        let number = state.emitted.begin();
        let Some(pattern) = pattern else { return number };
        if pattern.as_ref().is_none_or(|pattern| pattern.texts() > 0) {
            facts::count(slot, Count::ForJitLink);
        }
        if let Some(pattern) = pattern.filter(|pattern| pattern.texts() > 0) {
            state.self_loaded.linked(pattern.object());
            state.emitted.push(number, slot, pattern);
        }
        number
    }

    /// `emit` has returned; the object has been linked by now, or is when others are.
    pub(crate) fn emit_ends(&self, number: u64) {
        let mut state = self.lock();
        state.emitted.end(number);
        if !state.emitted.is_waiting(number) {
            return;
        }
        let candidates = state.emitted.candidates_at_end(number);
        let writable = self.session.ledger(|ledger| ledger.writable().collect());
        self.look_in(&mut state, writable, &candidates);
        if state.emitted.is_waiting(number) && state.emitted.may_ask() {
            let candidates = state.emitted.candidates_at_end(number);
            self.look_in(&mut state, executable_memory(), &candidates);
            let is_found = !state.emitted.is_waiting(number);
            state.emitted.asked(is_found);
        }
    }

    /// Looks once more for what waits for a second.
    pub(crate) fn look_for_overdue_emitted(&self, state: &mut State) {
        let candidates = state.emitted.overdue(jitlisten::plumbing::monotonic());
        if !candidates.is_empty() {
            self.look_in(state, executable_memory(), &candidates);
        }
    }

    /// `range` has become executable: looks there for what was linked.
    pub(crate) fn look_for_emitted(&self, state: &mut State, range: AddressRange) {
        if state.emitted.waiting.is_empty() || range.size() > LARGEST {
            return;
        }
        let Some(place) = Place::of(state, range, false) else { return };
        let candidates = state.emitted.candidates(this_thread());
        self.look_at_places(state, &[place], &candidates);
    }

    /// The table at `address` was handed to the unwinder: looks for what was linked around the first function in it.
    pub(crate) fn look_beside_table(&self, state: &mut State, address: Address) {
        let Some(extent) = state.emitted.extent(this_thread()).filter(|&extent| extent < LARGEST) else { return };
        let Some(first) = first_function(address).filter(|&first| self.is_free(first)) else {
            return;
        };
        let Some(mapping) = mapping_of(first.start()).filter(|mapping| mapping.executable) else { return };
        let code = clipped(first.start().0.saturating_sub(extent), first.end().0.saturating_add(extent), mapping.range);
        let table =
            mapping_of(address).and_then(|mapping| clipped(address.0, address.0.saturating_add(extent), mapping.range));
        let (Some(code), Some(table)) = (code.and_then(piece), table.and_then(piece)) else { return };
        let candidates = state.emitted.candidates(this_thread());
        self.look_at_places(
            state,
            &[Place { code, around: Around::new(Box::new(|| vec![table])), is_any: false }],
            &candidates,
        );
    }

    /// Looks for these in the smallest of `ranges`. What is found there was linked before.
    fn look_in(&self, state: &mut State, mut ranges: Vec<AddressRange>, candidates: &[(usize, bool)]) {
        ranges.sort_by_key(|range| range.size());
        let mut left = LARGEST_AT_END;
        let is_small = |range: &AddressRange| {
            left = left.saturating_sub(range.size());
            left > 0
        };
        let places: Vec<Place> =
            ranges.into_iter().take_while(is_small).filter_map(|range| Place::of(state, range, true)).collect();
        for id in self.look_at_places(state, &places, candidates) {
            // It may run: the kernel says so, whatever LLVM has asked for.
            let texts = self.pending(id).unwrap_or_default();
            self.look_unless_known(state, &texts);
            let outcome = self.session.overdue(id);
            self.note(state, &outcome);
        }
    }

    fn look_at_places(&self, state: &mut State, places: &[Place], candidates: &[(usize, bool)]) -> Vec<ObjectId> {
        let mut found: Vec<(usize, bool, Placement)> = Vec::new();
        for &(index, sure) in candidates {
            // The same object once more: whichever of the two it is, its functions have the same names.
            let object = state.emitted.waiting[index].pattern.object();
            if found.iter().any(|(found, ..)| state.emitted.waiting[*found].pattern.is_object(object)) {
                continue;
            }
            let mut placements = places.iter().filter_map(|place| self.find(state, index, place, sure));
            let (Some(placement), None) = (placements.next(), placements.next()) else { continue };
            let is_whole = placement.text.len() == state.emitted.waiting[index].pattern.texts();
            // This thread's own object is there, and all of it: what other threads are linking is not looked for.
            let is_it = sure && is_whole && !placement.is_small;
            found.push((index, is_it, placement));
            if is_it {
                break;
            }
        }
        let is_best = certain(found.iter().map(|(.., placement)| placement));
        let is_found: Vec<usize> = found.iter().map(|(index, ..)| *index).collect();
        let is_alone = |(index, is_it, placement): &(usize, bool, Placement)| {
            // One whose `emit` has returned is linked by whatever thread ends the link of what it waits for.
            let mut others = state.emitted.waiting.iter().enumerate().filter(|&(other, emitted)| {
                other != *index && !is_found.contains(&other) && !(*is_it && state.emitted.is_inside(emitted.number))
            });
            let object = state.emitted.waiting[*index].pattern.object();
            !others.any(|(_, emitted)| {
                !emitted.pattern.is_object(object) && emitted.pattern.may_also_be_at(placement, &read)
            })
        };
        let mut alone: Vec<usize> = (0..found.len()).filter(|&at| is_best[at] && is_alone(&found[at])).collect();
        if alone.is_empty() && !found.is_empty() {
            log_line!(Info, "{} equal objects of JITLink stay unnamed", found.len());
        }
        // Taken out from behind.
        alone.sort_by_key(|&at| std::cmp::Reverse(found[at].0));
        let mut ids = Vec::new();
        for at in alone {
            let (index, _, placement) = &found[at];
            if let Some(emitted) = state.emitted.waiting.remove(*index) {
                ids.extend(self.placed(state, emitted, placement));
            }
        }
        ids
    }

    fn find(&self, state: &State, index: usize, place: &Place, sure: bool) -> Option<Placement> {
        let is_free = |range| self.is_free(range);
        let pattern = &state.emitted.waiting.get(index)?.pattern;
        let placement = pattern.place(&place.code, &place.around, &read, &is_free, sure)?;
        (placement.is_certain || !place.is_any).then_some(placement)
    }

    fn placed(&self, state: &mut State, emitted: Emitted, placement: &Placement) -> Option<ObjectId> {
        let texts = emitted.pattern.texts();
        if placement.text.len() < texts {
            log_line!(Info, "found {} of {texts} text sections of an object of JITLink", placement.text.len());
        }
        facts::count(emitted.slot, Count::JitLink);
        let object = emitted.pattern.into_debug_object(&placement.sections);
        let loaded = self.session.linked(object, state.library_of(emitted.slot)).ok()?;
        let id = loaded.id;
        self.loaded(state, loaded);
        Some(id)
    }
}

/// In front of what is covered by the first entry of a table stand a CIE and the head of that entry: each shorter than
/// this.
const LONGEST_ENTRY: u64 = 512;

/// The first function in the table at `address`.
fn first_function(address: Address) -> Option<AddressRange> {
    let copy = |from: u64, size: u64| read(AddressRange::new(Address(from), size)?);
    let length = |from: u64| {
        let length = u64::from(u32::from_le_bytes(copy(from, 4)?.try_into().ok()?));
        (length != 0 && length < LONGEST_ENTRY).then_some(length + 4)
    };
    let cie = length(address.0)?;
    let both = cie + length(address.0.checked_add(cie)?)?;
    cfi::covered(&copy(address.0, both)?, address).ok()?.first().copied()
}

fn mapping_of(address: Address) -> Option<Mapping> {
    mappings_of(AddressRange::new(address, 1)?).ok()??.first().copied()
}

/// From `start` to `end`, as far as it is in `range`.
fn clipped(start: u64, end: u64, range: AddressRange) -> Option<AddressRange> {
    let start = start.max(range.start().0);
    AddressRange::new(Address(start), end.min(range.end().0).checked_sub(start)?)
}

/// The anonymous executable memory of the process, where unreported code may be.
fn executable_memory() -> Vec<AddressRange> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let is_of_no_file = |line: &MapsLine<'_>| {
        let names: [&[u8]; 2] = [b"[anon", b"/memfd:"];
        line.path.is_empty() || line.is_shared() || names.iter().any(|name| line.path.starts_with(name))
    };
    let executable = MapsLine::all(&maps).filter(|line| line.is_executable() && is_of_no_file(line));
    executable.map(|line| line.range).collect()
}
