//! Locates an object by a registered `.eh_frame`. A host may link code for another address (`mapSectionAddress`), write
//! the code to that address, and register its unwind table there, as Julia does.
//!
//! No search is needed, because the registered table must equal the object's own, and its fields give the address of
//! each text section. The bytes at these addresses must match.

use std::collections::BTreeMap;

use jitlisten::plumbing::Ranges;
use jitlisten::{Address, AddressRange};

use super::pattern::Section;
use super::{LocatedSections, Pattern, Piece, Placement, Search};

/// Maximum distance from the first to the last text byte of an object.
const MAX_TEXT_SPAN_BYTES: u64 = 64 << 20;

impl Pattern {
    /// Locates the sections if the object's `.eh_frame` is at `table` and each text section is at the address given
    /// there. `read` and `is_free` are the same as in [`Pattern::locate`].
    pub(crate) fn locate_by_table(
        &self,
        table: Address,
        read: &dyn Fn(AddressRange) -> Option<Vec<u8>>,
        is_free: &dyn Fn(AddressRange) -> bool,
    ) -> Option<Placement> {
        let eh_frame = self.sections.iter().find(|section| section.is_eh_frame)?;
        let range = AddressRange::new(table, eh_frame.bytes.len() as u64)?;
        let bytes = read(range).filter(|bytes| eh_frame.matches(bytes))?;
        let texts = self.locate_texts(eh_frame, table, &bytes)?;
        let start = texts.iter().map(|(_, range)| range.start().0).min()?;
        let end = texts.iter().map(|(_, range)| range.end().0).max()?;
        let span = AddressRange::new(Address(start), end - start).filter(|span| span.size() <= MAX_TEXT_SPAN_BYTES)?;
        let code = Piece { start: Address(start), bytes: read(span)? };
        let located =
            LocatedSections { order: Vec::new(), addresses: vec![None; self.sections.len()], followed_count: 0 };
        let mut search =
            Search { pattern: self, code: &code, read, is_free, located, reserved: Ranges::default(), budget: 0 };
        for &(position, range) in &texts {
            if !search.matches_at(&self.sections[position], range.start()) {
                return None;
            }
            search.place_section(position, range.start());
        }
        search.follow_references();
        if search.overlaps_itself() {
            return None;
        }
        let sections = search
            .located_sections()
            .map(|(section, section_range)| (section.index, section_range))
            .chain([(eh_frame.index, range)]);
        let sections = sections.collect();
        let mut text: Vec<AddressRange> = texts.into_iter().map(|(_, range)| range).collect();
        text.sort();
        Some(Placement { sections, text, is_small: false, is_certain: true })
    }

    /// Returns each text section (its position in `sections`) with its range according to the table. Returns `None` if
    /// the table omits a text section or gives two addresses for it.
    fn locate_texts(&self, eh_frame: &Section, table: Address, bytes: &[u8]) -> Option<Vec<(usize, AddressRange)>> {
        let mut texts = BTreeMap::new();
        for reference in &eh_frame.references {
            let Some(position) = self.position_of(reference.target).filter(|&position| self.sections[position].is_text)
            else {
                continue;
            };
            let address = Section::resolve(reference, table, bytes)?;
            if *texts.entry(position).or_insert(address) != address {
                return None;
            }
        }
        let range = |(position, start): (usize, Address)| {
            Some((position, AddressRange::new(start, self.sections[position].bytes.len() as u64)?))
        };
        let texts: Vec<(usize, AddressRange)> = texts.into_iter().map(range).collect::<Option<_>>()?;
        (texts.len() == self.text_count()).then_some(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: u64 = 0x10000;
    const TABLE: u64 = 0x20000;

    /// Two functions, and an unwind table with one entry per function. A field of each entry holds the function's
    /// address.
    struct Object {
        pattern: Pattern,
        memory: Vec<(u64, Vec<u8>)>,
    }

    fn object() -> Object {
        let (first, second) = ([1_u8; 32], [2_u8; 48]);
        let mut pattern = Pattern::from_texts(&[(&first, 4..8), (&second, 0..0)]);
        let mut table = vec![9_u8; 40];
        pattern.add_table(table.clone(), &[8, 28]);
        let mut linked_first = first;
        linked_first[4..8].fill(0x77);
        for (field, target) in [(8_usize, CODE), (28, CODE + 64)] {
            let distance = target.wrapping_sub(TABLE + field as u64) as u32;
            table[field..field + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let mut code = vec![0xcc_u8; 112];
        code[..32].copy_from_slice(&linked_first);
        code[64..].copy_from_slice(&second);
        Object { pattern, memory: vec![(CODE, code), (TABLE, table)] }
    }

    impl Object {
        fn locate(&self, table: u64, is_free: bool) -> Option<Placement> {
            let read = |range: AddressRange| {
                self.memory.iter().find_map(|(start, bytes)| {
                    let from = range.start().0.checked_sub(*start)? as usize;
                    bytes.get(from..from + range.size() as usize).map(<[u8]>::to_vec)
                })
            };
            self.pattern.locate_by_table(Address(table), &read, &|_| is_free)
        }
    }

    #[test]
    fn locates_each_text_section_by_the_table() {
        let range = |start, size| AddressRange::new(Address(start), size).unwrap();
        let located = object().locate(TABLE, true).unwrap();
        assert_eq!(located.text, [range(CODE, 32), range(CODE + 64, 48)]);
        assert_eq!(located.sections, [(0, range(CODE, 32)), (1, range(CODE + 64, 48)), (2, range(TABLE, 40))]);
    }

    #[test]
    fn refuses_tables_that_do_not_match_the_object() {
        assert_eq!(object().locate(TABLE + 4, true), None, "another table");
        assert_eq!(object().locate(TABLE, false), None, "memory of another object");
        for (piece, offset, why) in
            [(0, 20, "other code"), (0, 100, "other code in the second"), (1, 0, "another table")]
        {
            let mut object = object();
            object.memory[piece].1[offset] ^= 1;
            assert_eq!(object.locate(TABLE, true), None, "{why}");
        }
        let mut object = object();
        object.memory[1].1[28] ^= 0x10;
        assert_eq!(object.locate(TABLE, true), None, "the second is elsewhere");
    }
}
