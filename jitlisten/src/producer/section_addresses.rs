//! Load addresses for objects that do not contain them.

use std::collections::{BTreeMap, VecDeque};

use object::LittleEndian as LE;
use object::elf::{FileHeader64, SHF_ALLOC, SectionHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};

use crate::{Address, Error};

type Header = FileHeader64<LE>;
type Section = SectionHeader64<LE>;

/// Offset of `sh_addr` in a section header.
const SH_ADDR: usize = 16;

/// Name and load address of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Placed<'a> {
    /// Name of the section.
    pub name: &'a [u8],
    /// Address of the first byte.
    pub address: Address,
}

impl<'a> Placed<'a> {
    /// Creates an entry for the section `name`, loaded at `address`.
    pub fn new(name: &'a [u8], address: Address) -> Placed<'a> {
        Placed { name, address }
    }
}

/// Writes load addresses into the section headers of `object`, an ELF file. If several entries have the same name, the
/// first is for the first section with that name, and so on. Entries for unknown sections, or for sections without
/// memory, are ignored, because JITs also place sections of their own.
///
/// ```
/// use jitlisten::producer::{Placed, set_section_addresses};
/// use jitlisten::{Address, LoadedObject};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/numba-0.68-llvm22-plain.o");
/// # let compile = || std::fs::read(path);
/// let mut object: Vec<u8> = compile()?;
/// set_section_addresses(&mut object, &[Placed::new(b".ltext", Address(0x10_0000))])?;
/// assert_eq!(LoadedObject::parse(&object)?.text()[0].range.start(), Address(0x10_0000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the section table cannot be parsed.
pub fn set_section_addresses(object: &mut [u8], placed: &[Placed<'_>]) -> Result<(), Error> {
    let mut fields = Vec::new();
    {
        // The ELF reader requires aligned structures.
        let aligned = object.to_vec();
        let header = Header::parse(&*aligned)?;
        let sections = header.sections(LE, &*aligned)?;
        let table = usize::try_from(header.e_shoff(LE)).unwrap_or(usize::MAX);
        // Use a map, because large objects have one section per function.
        let mut addresses: BTreeMap<&[u8], VecDeque<Address>> = BTreeMap::new();
        for entry in placed {
            addresses.entry(entry.name).or_default().push_back(entry.address);
        }
        for (index, section) in sections.enumerate() {
            if section.sh_flags(LE).0 & SHF_ALLOC.0 == 0 {
                continue;
            }
            let name = sections.section_name(LE, section)?;
            let Some(address) = addresses.get_mut(name).and_then(VecDeque::pop_front) else { continue };
            let offset = table.saturating_add(index.0 * size_of::<Section>() + SH_ADDR);
            fields.push((offset, address));
        }
    }
    for (offset, address) in fields {
        if let Some(field) = offset.checked_add(8).and_then(|end| object.get_mut(offset..end)) {
            field.copy_from_slice(&address.0.to_le_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoadedObject;

    const NUMBA_OBJECT: &[u8] = include_bytes!("../../testdata/numba-0.68-llvm22-dwarf4.o");

    #[test]
    fn an_address_given_wins_over_the_one_in_the_object() {
        let before = LoadedObject::parse(NUMBA_OBJECT).unwrap();
        let text = &before.text()[0];
        let placed = Placed { name: text.section.as_bytes(), address: Address(0x10_0000) };
        let other = Placed { name: b".made.up", address: Address(16) };
        let debug = Placed { name: b".debug_info", address: Address(32) };
        let mut object = NUMBA_OBJECT.to_vec();
        set_section_addresses(&mut object, &[other, placed, debug]).unwrap();
        let placed_object = LoadedObject::parse(&object).unwrap();
        let moved_text = placed_object.text().iter().find(|moved_text| moved_text.section == text.section).unwrap();
        assert_eq!((moved_text.range.start(), moved_text.range.size()), (Address(0x10_0000), text.range.size()));
        assert_eq!(crate::LineRows::parse(&object).is_ok(), crate::LineRows::parse(NUMBA_OBJECT).is_ok());
    }

    #[test]
    fn rubbish_is_an_error() {
        assert!(set_section_addresses(&mut [0; 64], &[]).is_err());
        for cut in (0..NUMBA_OBJECT.len()).step_by(97) {
            let _ = set_section_addresses(
                &mut NUMBA_OBJECT[..cut].to_vec(),
                &[Placed { name: b".text", address: Address(1) }],
            );
        }
    }
}
