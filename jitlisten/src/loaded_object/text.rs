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
    pub(super) text_range: TextRange,
}

/// All text ranges, sorted by address; fails if two overlap.
pub(super) fn parse(elf: &Elf<'_>, name_budget: &mut Budget) -> Result<Vec<Text>, Error> {
    let mut text = Vec::new();
    for (index, section) in elf.sections.enumerate() {
        if is_loaded(section) && has_flag(section, elf::SHF_EXECINSTR) {
            let text_range =
                TextRange { section: name_budget.name(elf.name_of(section)?)?, range: range_of(elf, section)? };
            text.push(Text { index, text_range });
        }
    }
    text.sort_by_key(|entry: &Text| entry.text_range.range);
    for pair in text.windows(2) {
        if let [first, second] = pair
            && first.text_range.range.overlaps(second.text_range.range)
        {
            return Err(Error::SectionsOverlap(first.text_range.range, second.text_range.range));
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
