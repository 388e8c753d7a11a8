//! Finds in memory what JITLink has linked.
//!
//! | when | where |
//! | --- | --- |
//! | memory becomes executable | there |
//! | a table is registered with the unwinder | around the first function in it: that memory may have been executable all the time |
//! | `emit` ends, and the object was not found | memory that may be written and executed; if it is not there, what the kernel says may be executed |
//! | an object waits for a second | the same |
//!
//! An object that fits in more than one place is in none of them.

#![forbid(unsafe_code)]

use jitlisten::{Address, AddressRange, Mapping, MapsLine, ObjectId, cfi, checked_read, log_line, mappings_of};

use super::emitted::Emitted;
use crate::copies::piece;
use crate::facts::{self, Count};
use crate::placement::{Pattern, Piece, Placement};
use crate::ranges::Ranges;
use crate::state::{Shim, State};
use crate::thread::this_thread;

/// Larger memory is not searched.
const LARGEST: u64 = 64 << 20;

/// Nor is so much, where it is not known that something was linked there.
const LARGEST_AT_END: u64 = 16 << 20;

/// Memory with code, and what may belong to it around.
struct Place {
    code: Piece,
    around: Vec<Piece>,
    /// Whether anybody may have linked there, and at any time.
    is_any: bool,
}

impl Place {
    fn of(state: &State, range: AddressRange, is_any: bool) -> Option<Place> {
        Some(Place { code: piece(range)?, around: state.around(range), is_any })
    }
}

impl Shim {
    /// An object is about to be linked by the LLVM in `slot`. Returns the number of this call of `emit`. `pattern`: where the object was
    /// understood, and where what is in it is.
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
        let writable = state.memory.writable().collect();
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
        let candidates = state.emitted.overdue(jitlisten::monotonic());
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
        let Some(first) = first_function(address).filter(|&first| state.memory.is_free(first)) else { return };
        let Some(mapping) = mapping_of(first.start()).filter(|mapping| mapping.executable) else { return };
        let code = clipped(first.start().0.saturating_sub(extent), first.end().0.saturating_add(extent), mapping.range);
        let table =
            mapping_of(address).and_then(|mapping| clipped(address.0, address.0.saturating_add(extent), mapping.range));
        let (Some(code), Some(table)) = (code.and_then(piece), table.and_then(piece)) else { return };
        let candidates = state.emitted.candidates(this_thread());
        self.look_at_places(state, &[Place { code, around: vec![table], is_any: false }], &candidates);
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
            let outcome = state.memory.overdue(id);
            self.notify(state, outcome);
        }
    }

    fn look_at_places(&self, state: &mut State, places: &[Place], candidates: &[(usize, bool)]) -> Vec<ObjectId> {
        let mut found: Vec<(usize, Placement)> = Vec::new();
        for &(index, sure) in candidates {
            let mut placements = places.iter().filter_map(|place| find(state, index, place, sure));
            let (Some(placement), None) = (placements.next(), placements.next()) else { continue };
            let is_whole = placement.text.len() == state.emitted.waiting[index].pattern.texts();
            let is_it = sure && is_whole && !placement.is_small;
            found.push((index, placement));
            if is_it {
                break;
            }
        }
        let mut alone: Vec<usize> = (0..found.len()).filter(|&at| is_best(&found, at)).collect();
        if alone.is_empty() && !found.is_empty() {
            log_line!(Info, "{} objects for JITLink are equal, and have no names", found.len());
        }
        // Taken out from behind.
        alone.sort_by_key(|&at| std::cmp::Reverse(found[at].0));
        let mut ids = Vec::new();
        for at in alone {
            let (index, placement) = &found[at];
            if let Some(emitted) = state.emitted.waiting.remove(*index) {
                ids.extend(self.placed(state, emitted, placement));
            }
        }
        ids
    }

    fn placed(&self, state: &mut State, emitted: Emitted, placement: &Placement) -> Option<ObjectId> {
        let texts = emitted.pattern.texts();
        if placement.text.len() < texts {
            log_line!(Info, "{} of {texts} text sections of an object of JITLink were found", placement.text.len());
        }
        facts::count(emitted.slot, Count::JitLink);
        let object = emitted.pattern.into_debug_object(&placement.sections);
        let loaded = self.session.linked(object).ok()?;
        let id = loaded.id;
        self.loaded(state, loaded);
        Some(id)
    }
}

fn find(state: &State, index: usize, place: &Place, sure: bool) -> Option<Placement> {
    let read = |range| checked_read::copy(range).ok();
    let is_free = |range| state.memory.is_free(range);
    let pattern = &state.emitted.waiting.get(index)?.pattern;
    let placement = pattern.place(&place.code, &place.around, &read, &is_free, sure)?;
    (placement.is_certain || !place.is_any).then_some(placement)
}

fn overlap(one: &Placement, other: &Placement) -> bool {
    one.text.iter().any(|text| other.text.iter().any(|other| text.overlaps(*other)))
}

/// Whether one of those that were found is in this memory, and no other: objects have functions in common (templates of C++), and what is
/// there has more than what others have in common with it. Equal objects cannot be distinguished.
fn is_best(found: &[(usize, Placement)], at: usize) -> bool {
    let one = &found[at].1;
    let mut covered = Ranges::default();
    one.text.iter().for_each(|&text| covered.insert(text));
    let size = |placement: &Placement| placement.text.iter().map(|text| text.size()).sum::<u64>();
    found.iter().enumerate().all(|(index, (_, other))| {
        let is_part = || size(other) < size(one) && other.text.iter().all(|&text| covered.covers(text));
        index == at || !overlap(one, other) || is_part()
    })
}

/// In front of what is covered by the first entry of a table stand a CIE and the head of that entry: each shorter than this.
const LONGEST_ENTRY: u64 = 512;

/// The first function in the table at `address`.
fn first_function(address: Address) -> Option<AddressRange> {
    let copy = |from: u64, size: u64| checked_read::copy(AddressRange::new(Address(from), size)?).ok();
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

/// The executable memory of the process that is of no file: where code may be of which nothing was heard.
fn executable_memory() -> Vec<AddressRange> {
    let maps = std::fs::read("/proc/self/maps").unwrap_or_default();
    let is_of_no_file = |line: &MapsLine<'_>| {
        let names: [&[u8]; 2] = [b"[anon", b"/memfd:"];
        line.path.is_empty() || line.is_shared() || names.iter().any(|name| line.path.starts_with(name))
    };
    let executable = MapsLine::all(&maps).filter(|line| line.is_executable() && is_of_no_file(line));
    executable.map(|line| line.range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranges::range;

    fn placed(texts: &[(u64, u64)]) -> (usize, Placement) {
        let text = texts.iter().map(|&(start, end)| range(start, end)).collect();
        (0, Placement { sections: Vec::new(), text, is_small: false, is_certain: true })
    }

    fn best(found: &[(usize, Placement)]) -> Vec<usize> {
        (0..found.len()).filter(|&at| is_best(found, at)).collect()
    }

    #[test]
    fn the_object_that_is_there_has_all_that_others_have_in_common_with_it() {
        let whole = placed(&[(0x1000, 0x1100), (0x1100, 0x1180), (0x1200, 0x1300)]);
        let (part, inside) = (placed(&[(0x1000, 0x1100), (0x1200, 0x1300)]), placed(&[(0x1010, 0x1018)]));
        let elsewhere = placed(&[(0x3000, 0x3100)]);
        assert_eq!(best(&[part, whole, inside, elsewhere]), [1, 3]);
        let equal = || placed(&[(0x1000, 0x1100)]);
        assert_eq!(best(&[equal(), equal()]), [0_usize; 0]);
        let other = placed(&[(0x1080, 0x1280)]);
        assert_eq!(best(&[equal(), other]), [0_usize; 0]);
        assert_eq!(best(&[equal()]), [0]);
    }
}
