//! Locates an object by a registered `.eh_frame`: a host may link code for another address (`mapSectionAddress`), write
//! it there, and register its unwind table. Julia does so.
//!
//! Nothing is searched: the table must equal the object's, its fields give the address of each text, and the bytes
//! there must match.

use std::collections::BTreeMap;

use jitlisten::plumbing::Ranges;
use jitlisten::{Address, AddressRange};

use super::pattern::Section;
use super::{Found, Pattern, Piece, Placement, Search};

/// Text that reaches further is not one object's.
const LARGEST: u64 = 64 << 20;

impl Pattern {
    /// Where the sections are, if the object's `.eh_frame` is at `table` and each text of it is where that says. `read`
    /// and `is_free` are those of [`Pattern::place`].
    pub(crate) fn place_by_table(
        &self,
        table: Address,
        read: &dyn Fn(AddressRange) -> Option<Vec<u8>>,
        is_free: &dyn Fn(AddressRange) -> bool,
    ) -> Option<Placement> {
        let own = self.sections.iter().find(|section| section.is_eh_frame)?;
        let range = AddressRange::new(table, own.bytes.len() as u64)?;
        let bytes = read(range).filter(|bytes| own.is(bytes))?;
        let texts = self.texts_of(own, table, &bytes)?;
        let start = texts.iter().map(|(_, range)| range.start().0).min()?;
        let end = texts.iter().map(|(_, range)| range.end().0).max()?;
        let whole = AddressRange::new(Address(start), end - start).filter(|whole| whole.size() <= LARGEST)?;
        let code = Piece { start: Address(start), bytes: read(whole)? };
        let found = Found { order: Vec::new(), places: vec![None; self.sections.len()], followed: 0 };
        let mut search =
            Search { pattern: self, code: &code, read, is_free, found, taken: Ranges::default(), budget: 0 };
        for &(at, range) in &texts {
            if !search.may_be(&self.sections[at], range.start()) {
                return None;
            }
            search.put(at, range.start());
        }
        search.follow();
        if search.overlaps_itself() {
            return None;
        }
        let sections =
            search.found_sections().map(|(section, there)| (section.index, there)).chain([(own.index, range)]);
        let sections = sections.collect();
        let mut text: Vec<AddressRange> = texts.into_iter().map(|(_, range)| range).collect();
        text.sort();
        Some(Placement { sections, text, is_small: false, is_certain: true })
    }

    /// Every text, by its place in `sections`, where the table says that it is. None where it says nothing of one, or
    /// two things.
    fn texts_of(&self, own: &Section, table: Address, bytes: &[u8]) -> Option<Vec<(usize, AddressRange)>> {
        let mut texts = BTreeMap::new();
        for reference in &own.references {
            let Some(at) = self.at(reference.target).filter(|&at| self.sections[at].is_text) else { continue };
            let there = Section::resolve(reference, table, bytes)?;
            if *texts.entry(at).or_insert(there) != there {
                return None;
            }
        }
        let range =
            |(at, start): (usize, Address)| Some((at, AddressRange::new(start, self.sections[at].bytes.len() as u64)?));
        let texts: Vec<(usize, AddressRange)> = texts.into_iter().map(range).collect::<Option<_>>()?;
        (texts.len() == self.texts()).then_some(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x10000;
    const TABLE: u64 = 0x20000;

    /// Two functions and a table of two entries, each with a field that says where one is.
    struct Object {
        pattern: Pattern,
        memory: Vec<(u64, Vec<u8>)>,
    }

    fn object() -> Object {
        let (one, two) = ([1_u8; 32], [2_u8; 48]);
        let mut pattern = Pattern::of_texts(&[(&one, 4..8), (&two, 0..0)]);
        let mut table = vec![9_u8; 40];
        pattern.add_table(table.clone(), &[8, 28]);
        let mut changed = one;
        changed[4..8].fill(0x77);
        for (field, target) in [(8_usize, CODE), (28, CODE + 64)] {
            let distance = target.wrapping_sub(TABLE + field as u64) as u32;
            table[field..field + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let mut code = vec![0xcc_u8; 112];
        code[..32].copy_from_slice(&changed);
        code[64..].copy_from_slice(&two);
        Object { pattern, memory: vec![(CODE, code), (TABLE, table)] }
    }

    impl Object {
        fn place(&self, table: u64, is_free: bool) -> Option<Placement> {
            let read = |range: AddressRange| {
                self.memory.iter().find_map(|(start, bytes)| {
                    let from = range.start().0.checked_sub(*start)? as usize;
                    bytes.get(from..from + range.size() as usize).map(<[u8]>::to_vec)
                })
            };
            self.pattern.place_by_table(Address(table), &read, &|_| is_free)
        }
    }

    #[test]
    fn each_text_is_where_the_table_says() {
        let range = |start, size| AddressRange::new(Address(start), size).unwrap();
        let found = object().place(TABLE, true).unwrap();
        assert_eq!(found.text, [range(CODE, 32), range(CODE + 64, 48)]);
        assert_eq!(found.sections, [(0, range(CODE, 32)), (1, range(CODE + 64, 48)), (2, range(TABLE, 40))]);
    }

    #[test]
    fn whatever_does_not_agree_is_no_place() {
        assert_eq!(object().place(TABLE + 4, true), None, "another table");
        assert_eq!(object().place(TABLE, false), None, "memory of another object");
        for (piece, at, why) in [(0, 20, "other code"), (0, 100, "other code in the second"), (1, 0, "another table")] {
            let mut object = object();
            object.memory[piece].1[at] ^= 1;
            assert_eq!(object.place(TABLE, true), None, "{why}");
        }
        let mut object = object();
        object.memory[1].1[28] ^= 0x10;
        assert_eq!(object.place(TABLE, true), None, "the second is elsewhere");
    }
}
