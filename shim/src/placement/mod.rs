//! Where an object is that was linked out of sight: JITLink says nothing of addresses, and a host may copy code after linking.
//!
//! Its sections are looked for in memory that has just become executable, whole, by all bytes that relocations do not change:
//!
//! 1. A text section that fits one place in that memory, and no other, is there.
//! 2. `.eh_frame` is looked for around it; it must say that every section found so far is where it is.
//! 3. Relocations of what was found lead to further sections: those whose bytes fit two places (equal functions), and data.
//!
//! What fits several places to the end is not said to be anywhere: a name would be a guess. JITLink leaves out sections that are
//! not used, so some may be missing; where none is found, or two disagree, there is no placement.

#![forbid(unsafe_code)]

mod pattern;

use jitlisten::{Address, AddressRange};
use memchr::memmem;

pub(crate) use pattern::Pattern;
use pattern::Section;

/// Fewer bytes than these are somewhere by chance.
const WEIGHTY: usize = 12;

/// Of so many places that fit none is looked at more closely.
const MOST_FITS: usize = 64;

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

/// The sections that were found, by their places in the section table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) sections: Vec<(usize, Address)>,
    pub(crate) text: Vec<AddressRange>,
}

impl Pattern {
    /// Looks for the object in `code`, and for what belongs to it `around`, by `read` where something leads there. `is_free`
    /// returns whether a place is not known to be another object's. Where `sure`, this is the object's memory, and a small
    /// object is found, too.
    pub(crate) fn place(
        &self,
        code: &Piece,
        around: &[Piece],
        read: &dyn Fn(AddressRange) -> Option<Vec<u8>>,
        is_free: &dyn Fn(AddressRange) -> bool,
        sure: bool,
    ) -> Option<Placement> {
        let mut search = Search { pattern: self, code, read, is_free, found: Vec::new() };
        let texts = self.sections.iter().enumerate().filter(|(_, section)| section.is_text);
        let mut light = Vec::new();
        for (at, section) in texts {
            let fits = search.fits(section);
            let [only] = fits[..] else { continue };
            if section.weight() >= WEIGHTY { search.found.push((at, only)) } else { light.push((at, only)) }
        }
        if sure || !search.found.is_empty() {
            search.found.append(&mut light);
        }
        if search.found.is_empty() || search.overlaps_itself() {
            return None;
        }
        search.find_eh_frame(around);
        search.follow();
        if search.overlaps_itself() {
            return None;
        }
        let mut text: Vec<AddressRange> = search
            .found
            .iter()
            .filter_map(|&(at, address)| {
                let section = &self.sections[at];
                AddressRange::new(address, section.bytes.len() as u64).filter(|_| section.is_text)
            })
            .collect();
        text.sort();
        let of_text = || search.found.iter().map(|&(at, _)| &self.sections[at]).filter(|section| section.is_text);
        if of_text().map(Section::weight).sum::<usize>() < WEIGHTY && text.len() < self.texts() {
            return None;
        }
        let sections = search.found.iter().map(|&(at, address)| (self.sections[at].index, address)).collect();
        Some(Placement { sections, text })
    }
}

struct Search<'a> {
    pattern: &'a Pattern,
    code: &'a Piece,
    read: &'a dyn Fn(AddressRange) -> Option<Vec<u8>>,
    is_free: &'a dyn Fn(AddressRange) -> bool,
    /// Sections of the pattern and where they are.
    found: Vec<(usize, Address)>,
}

impl Search<'_> {
    /// The places in the code where a section may be.
    fn fits(&self, section: &Section) -> Vec<Address> {
        let (first, length) = section.anchor;
        if length == 0 {
            return Vec::new();
        }
        let size = section.bytes.len() as u64;
        let mut fits = Vec::new();
        for at in memmem::find_iter(&self.code.bytes, &section.bytes[first..first + length]) {
            let Some(start) = at.checked_sub(first) else { continue };
            let address = Address(self.code.start.0 + start as u64);
            let Some(range) = AddressRange::new(address, size) else { continue };
            let is_there = address.0.is_multiple_of(section.alignment)
                && self.code.get(range).is_some_and(|bytes| section.is(bytes))
                && (self.is_free)(range);
            if is_there {
                fits.push(address);
                if fits.len() == MOST_FITS {
                    break;
                }
            }
        }
        fits
    }

    /// Looks for the unwind table that says where all that was found is.
    fn find_eh_frame(&mut self, around: &[Piece]) {
        let Some(at) = self.pattern.sections.iter().position(|section| section.is_eh_frame) else { return };
        let section = &self.pattern.sections[at];
        let (first, length) = section.anchor;
        if length < WEIGHTY / 2 {
            return;
        }
        let mut places = Vec::new();
        for piece in around {
            for found in memmem::find_iter(&piece.bytes, &section.bytes[first..first + length]) {
                let Some(start) = found.checked_sub(first) else { continue };
                let address = Address(piece.start.0 + start as u64);
                let Some(range) = AddressRange::new(address, section.bytes.len() as u64) else { continue };
                if piece.get(range).is_some_and(|bytes| section.is(bytes) && self.agrees(section, address, bytes)) {
                    places.push(address);
                }
            }
        }
        if let [only] = places[..] {
            self.found.push((at, only));
        }
    }

    /// Whether a section at `address` knows a section that was found, and each where it is.
    fn agrees(&self, section: &Section, address: Address, bytes: &[u8]) -> bool {
        let mut known = 0;
        for reference in &section.references {
            let Some(there) = self.where_is(reference.target) else { continue };
            if Section::resolve(reference, address, bytes) != Some(there) {
                return false;
            }
            known += 1;
        }
        known > 0
    }

    /// Where a section of the section table is.
    fn where_is(&self, index: usize) -> Option<Address> {
        self.found.iter().find(|(at, _)| self.pattern.sections[*at].index == index).map(|(_, address)| *address)
    }

    /// Follows the relocations of what was found, until there is no more.
    fn follow(&mut self) {
        let mut next = 0;
        while let Some(&(at, address)) = self.found.get(next) {
            next += 1;
            let section = &self.pattern.sections[at];
            let Some(bytes) = self.copy(section, address) else { continue };
            for reference in &section.references {
                if self.where_is(reference.target).is_some() {
                    continue;
                }
                let target = self.pattern.sections.iter().position(|section| section.index == reference.target);
                let (Some(target), Some(there)) = (target, Section::resolve(reference, address, &bytes)) else {
                    continue;
                };
                if self.may_be(&self.pattern.sections[target], there) {
                    self.found.push((target, there));
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
        let range = |&(at, address): &(usize, Address)| {
            AddressRange::new(address, self.pattern.sections[at].bytes.len() as u64).unwrap_or_default()
        };
        let mut ranges: Vec<AddressRange> = self.found.iter().map(range).collect();
        ranges.sort();
        ranges.windows(2).any(|pair| matches!(pair, [first, second] if first.overlaps(*second)))
    }
}
