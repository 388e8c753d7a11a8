//! Locates an object whose load addresses are unknown: JITLink does not report them, and a host may copy code after
//! linking.
//!
//! Whole sections are searched in executable memory, by all bytes that relocations do not change:
//!
//! 1. A text section that matches at exactly one place is there.
//! 2. Its relocations point to further sections, whose bytes must match.
//! 3. `.eh_frame` is searched around it. It must agree with every section found so far, and locates others: those whose
//!    bytes match at two places (equal functions).
//!
//! Ambiguous matches are dropped: a name would be a guess. JITLink omits unused sections, so some may be missing: a
//! jump of five bytes, of which relocations change four, then matches inside other functions. Therefore nothing is
//! searched where a larger section matches, and of two sections that match at one place neither is placed. If no
//! section is found, or two disagree, there is no placement.
//!
//! A registered `.eh_frame` locates everything: `by_table.rs`.

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

/// Fewer bytes than these are somewhere by chance.
const WEIGHTY: usize = 12;

/// So many, or an unwind table that agrees, are not.
const CERTAIN: usize = 64;

/// Where a section fits more places, nothing smaller is looked for: it may be inside one of those that were not looked
/// at.
const MOST_FITS: usize = 4096;

/// So many bytes are searched for one object: what has thousands of sections has an unwind table, too.
const MOST_SEARCHED: usize = 1 << 28;

/// Memory, as it was copied.
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

/// What is in front of code and behind it, copied when it is asked for.
pub(crate) type Around = LazyCell<Vec<Piece>, Box<dyn FnOnce() -> Vec<Piece>>>;

/// The sections that were found, by their places in the section table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) sections: Vec<(usize, AddressRange)>,
    pub(crate) text: Vec<AddressRange>,
    /// So few bytes may be there by chance.
    pub(crate) is_small: bool,
    /// So many are nowhere by chance.
    pub(crate) is_certain: bool,
}

impl Placement {
    fn overlaps(&self, other: &Placement) -> bool {
        self.text.iter().any(|text| other.text.iter().any(|other| text.overlaps(*other)))
    }

    /// Of all its text.
    pub(crate) fn size(&self) -> u64 {
        self.text.iter().map(|text| text.size()).sum()
    }
}

/// Which of those that were found are there, and no other: objects have functions in common (templates of C++), and
/// what is there has more than what others have in common with it. Equal objects cannot be distinguished.
pub(crate) fn certain<'a>(found: impl Iterator<Item = &'a Placement> + Clone) -> Vec<bool> {
    let is_best = |(at, one): (usize, &Placement)| {
        let mut covered = Ranges::default();
        one.text.iter().for_each(|&text| covered.insert(text));
        found.clone().enumerate().all(|(index, other)| {
            let is_part = || other.size() < one.size() && other.text.iter().all(|&text| covered.covers(text));
            index == at || !one.overlaps(other) || is_part()
        })
    };
    found.clone().enumerate().map(is_best).collect()
}

impl Pattern {
    /// Whether all the text of `placement`, which is another object's, may be of this one as well. What cannot be read
    /// may be.
    pub(crate) fn may_also_be_at(&self, placement: &Placement, read: &dyn Fn(AddressRange) -> Option<Vec<u8>>) -> bool {
        placement.text.iter().all(|&text| {
            let size = text.size() as usize;
            let mut alike =
                self.sections.iter().filter(|section| section.is_text && section.bytes.len() == size).peekable();
            alike.peek().is_some() && read(text).is_none_or(|bytes| alike.any(|section| section.is(&bytes)))
        })
    }

    /// Looks for the object in `code`, and for what belongs to it `around`, by `read` where something leads there.
    /// `is_free` returns whether a place is not known to be another object's. Where `sure`, this is the object's
    /// memory, and a small object is found, too.
    pub(crate) fn place(
        &self,
        code: &Piece,
        around: &Around,
        read: &dyn Fn(AddressRange) -> Option<Vec<u8>>,
        is_free: &dyn Fn(AddressRange) -> bool,
        sure: bool,
    ) -> Option<Placement> {
        let found = Found { order: Vec::new(), places: vec![None; self.sections.len()], followed: 0 };
        let mut search =
            Search { pattern: self, code, read, is_free, found, taken: Ranges::default(), budget: MOST_SEARCHED };
        let table = search.search(around, sure);
        if search.found.order.is_empty() || search.overlaps_itself() {
            return None;
        }
        let of_text = || search.found_sections().filter(|(section, _)| section.is_text);
        let mut text: Vec<AddressRange> = of_text().map(|(_, range)| range).collect();
        text.sort();
        let weight = of_text().map(|(section, _)| section.weight()).sum::<usize>();
        if weight < WEIGHTY && text.len() < self.texts() {
            return None;
        }
        let is_small = of_text().all(|(section, _)| section.weight() < WEIGHTY);
        let is_certain = weight >= CERTAIN || table.is_some();
        let sections = search.found_sections().map(|(section, range)| (section.index, range)).chain(table).collect();
        Some(Placement { sections, text, is_small, is_certain })
    }
}

struct Search<'a> {
    pattern: &'a Pattern,
    code: &'a Piece,
    read: &'a dyn Fn(AddressRange) -> Option<Vec<u8>>,
    is_free: &'a dyn Fn(AddressRange) -> bool,
    found: Found,
    /// Where text was found, or what is larger fits.
    taken: Ranges,
    /// So many bytes are still searched.
    budget: usize,
}

/// Sections of the pattern and where they are.
struct Found {
    order: Vec<(usize, Address)>,
    places: Vec<Option<Address>>,
    /// The relocations of so many have been followed.
    followed: usize,
}

impl Search<'_> {
    /// The places in the code where a section may be; `None` where there are too many.
    fn fits(&self, section: &Section) -> Option<Vec<Address>> {
        let (first, length) = section.anchor;
        if length == 0 {
            return Some(Vec::new());
        }
        let size = section.bytes.len() as u64;
        let mut fits = Vec::new();
        for at in memmem::find_iter(&self.code.bytes, &section.bytes[first..first + length]) {
            let Some(start) = at.checked_sub(first) else { continue };
            let address = Address(self.code.start.0 + start as u64);
            let Some(range) = AddressRange::new(address, size) else { continue };
            let is_there = address.0.is_multiple_of(section.alignment)
                && self.code.get(range).is_some_and(|bytes| section.is(bytes))
                && !self.taken.overlaps(range)
                && (self.is_free)(range);
            if is_there {
                if fits.len() == MOST_FITS {
                    return None;
                }
                fits.push(address);
            }
        }
        Some(fits)
    }

    /// The heaviest text sections first: one of them leads to most others. Of those that weigh the same the largest,
    /// which may have the bytes of a smaller one in it.
    fn search(&mut self, around: &Around, sure: bool) -> Option<(usize, AddressRange)> {
        let pattern = self.pattern;
        let mut texts: Vec<(usize, usize)> = pattern
            .sections
            .iter()
            .enumerate()
            .filter(|(_, section)| section.is_text)
            .map(|(at, section)| (section.weight(), at))
            .collect();
        texts.sort_by_key(|&(weight, at)| Reverse((weight, pattern.sections[at].bytes.len())));
        let eh_frame = pattern.sections.iter().find(|section| section.is_eh_frame);
        let mut table = None;
        // Where these fit is known.
        let mut looked_for = BTreeSet::new();
        for (weight, at) in texts {
            if self.found.places[at].is_some() || (weight < WEIGHTY && !sure && self.found.order.is_empty()) {
                continue;
            }
            if !looked_for.insert(pattern.sections[at].search_key()) {
                continue;
            }
            let Some(left) = self.budget.checked_sub(self.code.bytes.len()) else { break };
            self.budget = left;
            let Some(fits) = self.fits(&pattern.sections[at]) else { break };
            fits.iter().for_each(|&place| self.take(at, place));
            let [only] = fits[..] else { continue };
            if self.another_fits(at, only) {
                continue;
            }
            self.put(at, only);
            self.follow();
            if let (None, Some(section)) = (table, eh_frame)
                && let Some(found) = eh_frame::find(self, section, around)
            {
                table = found.range().map(|range| (section.index, range));
                for (index, place) in found.found {
                    pattern.at(index).into_iter().for_each(|at| self.put(at, place));
                }
                self.follow();
            }
        }
        table
    }

    /// The first word counts.
    fn put(&mut self, at: usize, address: Address) {
        if self.found.places[at].is_none() {
            self.found.places[at] = Some(address);
            self.found.order.push((at, address));
            self.take(at, address);
        }
    }

    /// No other text is looked for where this section is, or may be.
    fn take(&mut self, at: usize, address: Address) {
        let section = &self.pattern.sections[at];
        if section.is_text {
            AddressRange::new(address, section.bytes.len() as u64)
                .into_iter()
                .for_each(|range| self.taken.insert(range));
        }
    }

    /// Whether another section that was not found yet, of this size or larger, may be at `address`: one of them was
    /// left out.
    fn another_fits(&self, at: usize, address: Address) -> bool {
        let size = self.pattern.sections[at].bytes.len();
        let fits = |section: &Section| {
            let range = AddressRange::new(address, section.bytes.len() as u64);
            range.and_then(|range| self.code.get(range)).is_some_and(|bytes| section.is(bytes))
        };
        let mut others = self.pattern.sections.iter().zip(&self.found.places).enumerate();
        others.any(|(other, (section, place))| {
            other != at && place.is_none() && section.is_text && section.bytes.len() >= size && fits(section)
        })
    }

    /// Where a section of the section table is.
    fn where_is(&self, index: usize) -> Option<Address> {
        self.found.places[self.pattern.at(index)?]
    }

    /// What such a section takes there.
    fn range_at(&self, index: usize, address: Address) -> Option<AddressRange> {
        AddressRange::new(address, self.pattern.sections[self.pattern.at(index)?].bytes.len() as u64)
    }

    /// The sections that were found, in the order in which they were, and where each is.
    fn found_sections(&self) -> impl Iterator<Item = (&Section, AddressRange)> {
        self.found.order.iter().filter_map(|&(at, address)| {
            let section = &self.pattern.sections[at];
            Some((section, AddressRange::new(address, section.bytes.len() as u64)?))
        })
    }

    /// The text that was found.
    fn found_text(&self) -> Ranges {
        let mut text = Ranges::default();
        let of_text = self.found_sections().filter(|(section, _)| section.is_text);
        of_text.for_each(|(_, range)| text.insert(range));
        text
    }

    /// Whether such a section may be there.
    fn index_may_be(&self, index: usize, address: Address) -> bool {
        self.pattern.at(index).is_some_and(|at| self.may_be(&self.pattern.sections[at], address))
    }

    /// Follows the relocations of what was found, until there is no more.
    fn follow(&mut self) {
        while let Some(&(at, address)) = self.found.order.get(self.found.followed) {
            self.found.followed += 1;
            let section = &self.pattern.sections[at];
            let Some(bytes) = self.copy(section, address) else { continue };
            for reference in &section.references {
                if self.where_is(reference.target).is_some() {
                    continue;
                }
                let target = self.pattern.at(reference.target).filter(|&at| !self.pattern.sections[at].is_eh_frame);
                let (Some(target), Some(there)) = (target, Section::resolve(reference, address, &bytes)) else {
                    continue;
                };
                if self.may_be(&self.pattern.sections[target], there) {
                    self.put(target, there);
                }
            }
        }
    }

    fn may_be(&self, section: &Section, address: Address) -> bool {
        let Some(range) = AddressRange::new(address, section.bytes.len() as u64) else { return false };
        address.0.is_multiple_of(section.alignment)
            && (!section.is_text || (self.code.get(range).is_some() && (self.is_free)(range)))
            && self.copy(section, address).is_some_and(|bytes| section.is(&bytes))
    }

    fn copy(&self, section: &Section, address: Address) -> Option<Vec<u8>> {
        let range = AddressRange::new(address, section.bytes.len() as u64)?;
        self.code.get(range).map(<[u8]>::to_vec).or_else(|| (self.read)(range))
    }

    /// Two sections cannot be at one place.
    fn overlaps_itself(&self) -> bool {
        let mut ranges: Vec<AddressRange> = self.found_sections().map(|(_, range)| range).collect();
        ranges.sort();
        ranges.windows(2).any(|pair| matches!(pair, [first, second] if first.overlaps(*second)))
    }
}

#[cfg(test)]
mod tests;
