//! The loaded executable sections.
//!
//! Section names differ (`.text`, `.text.hot`, `.ltext` in the large code model since LLVM 20), so names are not used:
//! text sections are `SHF_ALLOC` and `SHF_EXECINSTR` and have an address. Every LLVM also writes an empty `.text`,
//! which is never loaded.

use object::elf;
use object::read::elf::SectionHeader;
use object::{LittleEndian, SectionIndex};

use super::budget::Budget;
use super::elf::{Elf, LE, Section, has_flag, is_loaded};
use super::parts::TextRange;
use crate::{Address, AddressRange, Error};

/// A text range and the index of its section.
pub(super) struct Text {
    pub(super) index: SectionIndex,
    pub(super) shown: TextRange,
}

/// All text ranges, sorted by address; fails if two overlap.
pub(super) fn parse(elf: &Elf<'_>, names: &mut Budget) -> Result<Vec<Text>, Error> {
    let mut text = Vec::new();
    for (index, section) in elf.sections.enumerate() {
        if is_loaded(section) && has_flag(section, elf::SHF_EXECINSTR) {
            let shown = TextRange { section: names.name(elf.name_of(section)?)?, range: range_of(elf, section)? };
            text.push(Text { index, shown });
        }
    }
    text.sort_by_key(|entry: &Text| entry.shown.range);
    for pair in text.windows(2) {
        if let [first, second] = pair
            && first.shown.range.overlaps(second.shown.range)
        {
            return Err(Error::SectionsOverlap(first.shown.range, second.shown.range));
        }
    }
    Ok(text)
}

/// Address range of a loaded section. The file must contain that many bytes, except for `SHT_NOBITS`.
pub(super) fn range_of(elf: &Elf<'_>, section: &Section) -> Result<AddressRange, Error> {
    let _bytes: &[u8] = SectionHeader::data(section, LittleEndian, elf.data)?;
    let (start, size) = (section.sh_addr(LE), section.sh_size(LE));
    AddressRange::new(Address(start), size).ok_or(Error::OutsideAddressSpace { start, size })
}
