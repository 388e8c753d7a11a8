//! Locates an object whose load addresses are unknown: JITLink does not report them, and a host may copy code after
//! linking.
//!
//! Executable memory is searched for whole sections. All bytes that relocations do not change must match:
//!
//! 1. A text section that matches in exactly one place is located.
//! 2. Its relocations point to further sections, whose bytes must match.
//! 3. `.eh_frame` is searched for near the text. It must agree with every located section, and gives the addresses of
//!    sections that match in several places (equal functions).
//!
//! Ambiguous matches are dropped, because a name would be a guess. JITLink omits unused sections, so sections may be
//! missing. If a five-byte jump with a relocated four-byte operand is missing, its pattern matches inside other
//! functions. Therefore ranges that match a larger section are not searched. If two sections match at the same address,
//! neither is located. If no section is located, or if two located sections overlap, the placement fails.
//!
//! If an `.eh_frame` is registered, `by_table.rs` reads all addresses from it.

#![forbid(unsafe_code)]

mod by_table;
mod eh_frame;
mod pattern;

use std::cell::LazyCell;
use std::cmp::Reverse;
use std::collections::BTreeSet;

use jitlisten::plumbing::Ranges;
use jitlisten::{Address, AddressRange};
use memchr::memmem;

pub(crate) use pattern::Pattern;
use pattern::Section;

/// Minimum weight (number of unchanged bytes) of a section that is searched for. Lighter sections match by chance.
const MIN_SEARCH_WEIGHT: usize = 12;

/// Minimum weight of a placement that is certain even without an unwind table.
const MIN_CERTAIN_WEIGHT: usize = 64;

/// Maximum number of matches of one section. If there are more, smaller sections are not searched for, because they may
/// lie inside a match that was not recorded.
const MAX_MATCHES: usize = 4096;

/// Maximum number of bytes searched for one object. Objects with thousands of sections have an unwind table, which
/// gives the addresses anyway.
const MAX_SEARCHED_BYTES: usize = 1 << 28;

/// Copy of a range of memory.
pub(crate) struct Piece {
    pub(crate) start: Address,
    pub(crate) bytes: Vec<u8>,
}

impl Piece {
    fn get(&self, range: AddressRange) -> Option<&[u8]> {
        let from = range.start().0.checked_sub(self.start.0)? as usize;
        self.bytes.get(from..from.checked_add(range.size() as usize)?)
    }
}

/// Readable memory before and after the code, copied on first use.
pub(crate) type Surroundings = LazyCell<Vec<Piece>, Box<dyn FnOnce() -> Vec<Piece>>>;

/// Located sections, by index in the section table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) sections: Vec<(usize, AddressRange)>,
    pub(crate) text: Vec<AddressRange>,
    /// True if every located text section is so short that it may match by chance.
    pub(crate) is_small: bool,
    /// True if the placement cannot be a chance match.
    pub(crate) is_certain: bool,
}

impl Placement {
    fn overlaps(&self, other: &Placement) -> bool {
        self.text.iter().any(|text| other.text.iter().any(|other| text.overlaps(*other)))
    }

    /// Total size of the located text.
    pub(crate) fn size(&self) -> u64 {
        self.text.iter().map(|text| text.size()).sum()
    }
}

/// Returns true for each placement that is unambiguous. Objects may share functions (C++ templates), but an object that
/// really is in memory covers all text that it shares with others. Equal objects cannot be distinguished.
pub(crate) fn find_unambiguous<'a>(placements: impl Iterator<Item = &'a Placement> + Clone) -> Vec<bool> {
    let is_unambiguous = |(own_index, placement): (usize, &Placement)| {
        let mut covered = Ranges::default();
        placement.text.iter().for_each(|&text| covered.insert(text));
        placements.clone().enumerate().all(|(index, other)| {
            let is_covered = || other.size() < placement.size() && other.text.iter().all(|&text| covered.covers(text));
            index == own_index || !placement.overlaps(other) || is_covered()
        })
    };
    placements.clone().enumerate().map(is_unambiguous).collect()
}

impl Pattern {
    /// Returns true if all the text in another object's `placement` may also belong to this object. Unreadable text
    /// counts as a match.
    pub(crate) fn may_match_placement(
        &self,
        placement: &Placement,
        read: &dyn Fn(AddressRange) -> Option<Vec<u8>>,
    ) -> bool {
        placement.text.iter().all(|&text| {
            let size = text.size() as usize;
            let mut candidates =
                self.sections.iter().filter(|section| section.is_text && section.bytes.len() == size).peekable();
            candidates.peek().is_some()
                && read(text).is_none_or(|bytes| candidates.any(|section| section.matches(&bytes)))
        })
    }

    /// Searches for the object in `code`, and for its other sections in the memory `around` it. `read` copies other
    /// memory that relocations refer to. `is_free` returns false for memory of another object. If `is_own_memory` is
    /// true, the memory is known to hold this object, so even a small object is accepted.
    pub(crate) fn locate(
        &self,
        code: &Piece,
        surroundings: &Surroundings,
        read: &dyn Fn(AddressRange) -> Option<Vec<u8>>,
        is_free: &dyn Fn(AddressRange) -> bool,
        is_own_memory: bool,
    ) -> Option<Placement> {
        let located =
            LocatedSections { order: Vec::new(), addresses: vec![None; self.sections.len()], followed_count: 0 };
        let mut search = Search {
            pattern: self,
            code,
            read,
            is_free,
            located,
            reserved: Ranges::default(),
            budget: MAX_SEARCHED_BYTES,
        };
        let table = search.locate_sections(surroundings, is_own_memory);
        if search.located.order.is_empty() || search.overlaps_itself() {
            return None;
        }
        let text_sections = || search.located_sections().filter(|(section, _)| section.is_text);
        let mut text: Vec<AddressRange> = text_sections().map(|(_, range)| range).collect();
        text.sort();
        let weight = text_sections().map(|(section, _)| section.weight()).sum::<usize>();
        if weight < MIN_SEARCH_WEIGHT && text.len() < self.text_count() {
            return None;
        }
        let is_small = text_sections().all(|(section, _)| section.weight() < MIN_SEARCH_WEIGHT);
        let is_certain = weight >= MIN_CERTAIN_WEIGHT || table.is_some();
        let sections = search.located_sections().map(|(section, range)| (section.index, range)).chain(table).collect();
        Some(Placement { sections, text, is_small, is_certain })
    }
}

/// State of a search for one object in a copy of memory.
struct Search<'a> {
    pattern: &'a Pattern,
    code: &'a Piece,
    read: &'a dyn Fn(AddressRange) -> Option<Vec<u8>>,
    is_free: &'a dyn Fn(AddressRange) -> bool,
    located: LocatedSections,
    /// Ranges of text that is already located, or that matches a larger section.
    reserved: Ranges,
    /// Remaining number of bytes to search.
    budget: usize,
}

struct LocatedSections {
    /// Sections (positions in `Pattern::sections`) with their addresses, in the order of discovery.
    order: Vec<(usize, Address)>,
    /// Address of each section of the pattern, if located.
    addresses: Vec<Option<Address>>,
    /// Number of entries of `order` whose relocations have been followed.
    followed_count: usize,
}

impl Search<'_> {
    /// Returns all addresses in the code at which a section matches; `None` if there are too many.
    fn find_matches(&self, section: &Section) -> Option<Vec<Address>> {
        let (anchor_start, anchor_length) = section.anchor;
        if anchor_length == 0 {
            return Some(Vec::new());
        }
        let size = section.bytes.len() as u64;
        let mut matches = Vec::new();
        for offset in memmem::find_iter(&self.code.bytes, &section.bytes[anchor_start..anchor_start + anchor_length]) {
            let Some(start) = offset.checked_sub(anchor_start) else { continue };
            let address = Address(self.code.start.0 + start as u64);
            let Some(range) = AddressRange::new(address, size) else { continue };
            let is_match = address.0.is_multiple_of(section.alignment)
                && self.code.get(range).is_some_and(|bytes| section.matches(bytes))
                && !self.reserved.overlaps(range)
                && (self.is_free)(range);
            if is_match {
                if matches.len() == MAX_MATCHES {
                    return None;
                }
                matches.push(address);
            }
        }
        Some(matches)
    }

    /// Locates the text sections, heaviest first, because the relocations of heavy sections lead to most other
    /// sections. Among sections of equal weight, the largest comes first, because it may contain a smaller one. Returns
    /// the unwind table, if found.
    fn locate_sections(&mut self, surroundings: &Surroundings, is_own_memory: bool) -> Option<(usize, AddressRange)> {
        let pattern = self.pattern;
        let mut texts: Vec<(usize, usize)> = pattern
            .sections
            .iter()
            .enumerate()
            .filter(|(_, section)| section.is_text)
            .map(|(position, section)| (section.weight(), position))
            .collect();
        texts.sort_by_key(|&(weight, position)| Reverse((weight, pattern.sections[position].bytes.len())));
        let eh_frame = pattern.sections.iter().find(|section| section.is_eh_frame);
        let mut table = None;
        // Search keys of the sections that were already searched for.
        let mut searched_keys = BTreeSet::new();
        for (weight, position) in texts {
            if self.located.addresses[position].is_some()
                || (weight < MIN_SEARCH_WEIGHT && !is_own_memory && self.located.order.is_empty())
            {
                continue;
            }
            if !searched_keys.insert(pattern.sections[position].search_key()) {
                continue;
            }
            let Some(remaining) = self.budget.checked_sub(self.code.bytes.len()) else { break };
            self.budget = remaining;
            let Some(matches) = self.find_matches(&pattern.sections[position]) else { break };
            matches.iter().for_each(|&address| self.reserve(position, address));
            let [unique_match] = matches[..] else { continue };
            if self.larger_section_matches(position, unique_match) {
                continue;
            }
            self.place_section(position, unique_match);
            self.follow_references();
            if let (None, Some(section)) = (table, eh_frame)
                && let Some(table_match) = eh_frame::find(self, section, surroundings)
            {
                table = table_match.range().map(|range| (section.index, range));
                for (index, address) in table_match.functions {
                    pattern.position_of(index).into_iter().for_each(|position| self.place_section(position, address));
                }
                self.follow_references();
            }
        }
        table
    }

    /// Records the address of a section, unless it already has one.
    fn place_section(&mut self, position: usize, address: Address) {
        if self.located.addresses[position].is_none() {
            self.located.addresses[position] = Some(address);
            self.located.order.push((position, address));
            self.reserve(position, address);
        }
    }

    /// Excludes the range of a text section from further searches.
    fn reserve(&mut self, position: usize, address: Address) {
        let section = &self.pattern.sections[position];
        if section.is_text {
            AddressRange::new(address, section.bytes.len() as u64)
                .into_iter()
                .for_each(|range| self.reserved.insert(range));
        }
    }

    /// Returns true if another section of at least this size, not yet located, also matches at `address`. In that case,
    /// the linker has omitted one of the two.
    fn larger_section_matches(&self, position: usize, address: Address) -> bool {
        let size = self.pattern.sections[position].bytes.len();
        let matches_here = |section: &Section| {
            let range = AddressRange::new(address, section.bytes.len() as u64);
            range.and_then(|range| self.code.get(range)).is_some_and(|bytes| section.matches(bytes))
        };
        let mut sections = self.pattern.sections.iter().zip(&self.located.addresses).enumerate();
        sections.any(|(other_position, (section, located_address))| {
            other_position != position
                && located_address.is_none()
                && section.is_text
                && section.bytes.len() >= size
                && matches_here(section)
        })
    }

    /// Address of a section, given its index in the section table; `None` if it is not located.
    fn address_of(&self, index: usize) -> Option<Address> {
        self.located.addresses[self.pattern.position_of(index)?]
    }

    /// Range that a section would occupy at `address`, given its index in the section table.
    fn range_at(&self, index: usize, address: Address) -> Option<AddressRange> {
        AddressRange::new(address, self.pattern.sections[self.pattern.position_of(index)?].bytes.len() as u64)
    }

    /// Located sections with their ranges, in the order of discovery.
    fn located_sections(&self) -> impl Iterator<Item = (&Section, AddressRange)> {
        self.located.order.iter().filter_map(|&(position, address)| {
            let section = &self.pattern.sections[position];
            Some((section, AddressRange::new(address, section.bytes.len() as u64)?))
        })
    }

    fn located_text(&self) -> Ranges {
        let mut text = Ranges::default();
        let text_sections = self.located_sections().filter(|(section, _)| section.is_text);
        text_sections.for_each(|(_, range)| text.insert(range));
        text
    }

    /// Returns true if a section, given its index in the section table, matches at `address`.
    fn section_matches_at(&self, index: usize, address: Address) -> bool {
        self.pattern
            .position_of(index)
            .is_some_and(|position| self.matches_at(&self.pattern.sections[position], address))
    }

    /// Follows the relocations of all located sections.
    fn follow_references(&mut self) {
        while let Some(&(position, address)) = self.located.order.get(self.located.followed_count) {
            self.located.followed_count += 1;
            let section = &self.pattern.sections[position];
            let Some(bytes) = self.read_section(section, address) else { continue };
            for reference in &section.references {
                if self.address_of(reference.target).is_some() {
                    continue;
                }
                let target = self
                    .pattern
                    .position_of(reference.target)
                    .filter(|&position| !self.pattern.sections[position].is_eh_frame);
                let (Some(target), Some(target_address)) = (target, Section::resolve(reference, address, &bytes))
                else {
                    continue;
                };
                if self.matches_at(&self.pattern.sections[target], target_address) {
                    self.place_section(target, target_address);
                }
            }
        }
    }

    fn matches_at(&self, section: &Section, address: Address) -> bool {
        let Some(range) = AddressRange::new(address, section.bytes.len() as u64) else { return false };
        address.0.is_multiple_of(section.alignment)
            && (!section.is_text || (self.code.get(range).is_some() && (self.is_free)(range)))
            && self.read_section(section, address).is_some_and(|bytes| section.matches(&bytes))
    }

    /// Copies the memory that a section at `address` would occupy.
    fn read_section(&self, section: &Section, address: Address) -> Option<Vec<u8>> {
        let range = AddressRange::new(address, section.bytes.len() as u64)?;
        self.code.get(range).map(<[u8]>::to_vec).or_else(|| (self.read)(range))
    }

    /// Returns true if two located sections overlap.
    fn overlaps_itself(&self) -> bool {
        let mut ranges: Vec<AddressRange> = self.located_sections().map(|(_, range)| range).collect();
        ranges.sort();
        ranges.windows(2).any(|pair| matches!(pair, [first, second] if first.overlaps(*second)))
    }
}

#[cfg(test)]
mod tests;
