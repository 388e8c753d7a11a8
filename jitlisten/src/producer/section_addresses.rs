//! Load addresses for an object that does not contain them.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use object::LittleEndian as LE;
use object::elf::{FileHeader64, SHF_ALLOC, SectionHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};

use crate::{Address, Error};

type Header = FileHeader64<LE>;
type Section = SectionHeader64<LE>;

/// Offset of `sh_addr` in a section header.
const SH_ADDR: usize = 16;

/// Where a section was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placed<'a> {
    /// The name of the section.
    pub name: &'a [u8],
    /// Its first byte in memory.
    pub address: Address,
}

impl<'a> Placed<'a> {
    /// The section called `name` is at `address`.
    pub fn new(name: &'a [u8], address: Address) -> Placed<'a> {
        Placed { name, address }
    }
}

/// Writes addresses into the section headers of `object`, an ELF file. Of several entries with one name, the first is
/// for the first section of that name, and so on. Entries for sections that take no memory, or that the object does not
/// have, are passed over: JITs place what they have made up, too.
///
/// # Errors
/// When the section table cannot be read.
pub fn set_section_addresses(object: &mut [u8], placed: &[Placed<'_>]) -> Result<(), Error> {
    let mut fields = Vec::new();
    {
        // The reader wants its structures aligned.
        let aligned = object.to_vec();
        let header = Header::parse(&*aligned)?;
        let sections = header.sections(LE, &*aligned)?;
        let table = usize::try_from(header.e_shoff(LE)).unwrap_or(usize::MAX);
        // Large objects have a section for every function.
        let mut waiting: BTreeMap<&[u8], VecDeque<Address>> = BTreeMap::new();
        for entry in placed {
            waiting.entry(entry.name).or_default().push_back(entry.address);
        }
        for (index, section) in sections.enumerate() {
            if section.sh_flags(LE).0 & SHF_ALLOC.0 == 0 {
                continue;
            }
            let name = sections.section_name(LE, section)?;
            let Some(address) = waiting.get_mut(name).and_then(VecDeque::pop_front) else { continue };
            let at = table.saturating_add(index.0 * size_of::<Section>() + SH_ADDR);
            fields.push((at, address));
        }
    }
    for (at, address) in fields {
        if let Some(field) = at.checked_add(8).and_then(|end| object.get_mut(at..end)) {
            field.copy_from_slice(&address.0.to_le_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadedObject;

    const NUMBA: &[u8] = include_bytes!("../../testdata/numba-0.68-llvm22-dwarf4.o");

    #[test]
    fn an_address_given_wins_over_the_one_in_the_object() {
        let before = LoadedObject::parse(NUMBA).unwrap();
        let text = &before.text()[0];
        let placed = Placed { name: text.section.as_bytes(), address: Address(0x10_0000) };
        let other = Placed { name: b".made.up", address: Address(16) };
        let debug = Placed { name: b".debug_info", address: Address(32) };
        let mut object = NUMBA.to_vec();
        set_section_addresses(&mut object, &[other, placed, debug]).unwrap();
        let after = LoadedObject::parse(&object).unwrap();
        let moved = after.text().iter().find(|moved| moved.section == text.section).unwrap();
        assert_eq!((moved.range.start(), moved.range.size()), (Address(0x10_0000), text.range.size()));
        assert_eq!(crate::LineRows::parse(&object).is_ok(), crate::LineRows::parse(NUMBA).is_ok());
    }

    #[test]
    fn rubbish_is_an_error() {
        assert!(set_section_addresses(&mut [0; 64], &[]).is_err());
        for cut in (0..NUMBA.len()).step_by(97) {
            let _ =
                set_section_addresses(&mut NUMBA[..cut].to_vec(), &[Placed { name: b".text", address: Address(1) }]);
        }
    }
}
