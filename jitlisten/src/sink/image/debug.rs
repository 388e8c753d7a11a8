//! Linked DWARF of an image. All relocations are applied for the image's addresses, and sections of the same name are
//! concatenated, as a linker would do. An image of several objects therefore contains all their compilation units.

use std::collections::BTreeMap;

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader as _, SectionHeader as _};

use crate::Error;
use crate::loaded_object::relocate::relocated_sections;

/// Section that is not mapped, for tools that read the file; usually `.debug_*`.
pub(crate) struct DebugSection {
    pub(crate) name: Box<str>,
    pub(crate) bytes: Vec<u8>,
}

/// Offset of `sh_addr` in a section header.
const SH_ADDR: usize = 16;

/// DWARF linker that adds one object at a time.
#[derive(Default)]
pub(crate) struct DebugLinker {
    sections: Vec<DebugSection>,
    by_name: BTreeMap<Box<str>, usize>,
}

impl DebugLinker {
    /// Returns the sections in order of first use.
    pub(crate) fn into_sections(self) -> Vec<DebugSection> {
        self.sections
    }

    /// Adds all `.debug_*` sections of an object, with addresses relative to `bias`.
    ///
    /// # Errors
    /// If the object is malformed, or has an unknown relocation type. No section is added then.
    pub(crate) fn add(&mut self, debug_object: &[u8], bias: u64) -> Result<(), Error> {
        // Relocations are relative to `sh_addr`. Changing `sh_addr` subtracts the bias from code addresses, and places
        // debug sections (whose `sh_addr` is 0) after those of earlier objects.
        let mut relocated = debug_object.to_vec();
        let addresses = self.section_addresses(&relocated, bias)?;
        for (offset, address) in &addresses.fields {
            if let Some(field) = relocated.get_mut(*offset..offset.saturating_add(8)) {
                field.copy_from_slice(&address.to_le_bytes());
            }
        }
        let sections = relocated_sections(&relocated)?;
        for ((name, bytes), start) in sections.into_iter().zip(addresses.starts) {
            let index = *self.by_name.entry(name.clone()).or_insert_with(|| {
                self.sections.push(DebugSection { name, bytes: Vec::new() });
                self.sections.len() - 1
            });
            let linked = &mut self.sections[index].bytes;
            linked.resize(start.max(linked.len()), 0);
            if linked.is_empty() {
                *linked = bytes.into_owned();
            } else {
                linked.extend_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn section_addresses(&self, object: &[u8], bias: u64) -> Result<SectionAddresses, Error> {
        let header = elf::FileHeader64::<LE>::parse(object)?;
        let sections = header.sections(LE, object)?;
        let headers = usize::try_from(header.e_shoff(LE)).unwrap_or(usize::MAX);
        let mut addresses = SectionAddresses::default();
        let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, section) in sections.enumerate() {
            let offset = headers.saturating_add(index.0 * size_of::<elf::SectionHeader64<LE>>() + SH_ADDR);
            let flags = section.sh_flags(LE).0;
            let name = sections.section_name(LE, section).unwrap_or_default();
            if name.starts_with(b".debug_") && flags & elf::SHF_COMPRESSED.0 == 0 {
                let name = std::str::from_utf8(name).unwrap_or_default();
                let linked_size = self.by_name.get(name).map_or(0, |&index| self.sections[index].bytes.len());
                let end = ends.entry(name).or_insert(linked_size);
                let align = usize::try_from(section.sh_addralign(LE)).unwrap_or(1).clamp(1, 64);
                let start = end.next_multiple_of(align);
                *end = start.saturating_add(section.data(LE, object)?.len());
                addresses.starts.push(start);
                addresses.fields.push((offset, start as u64));
            } else if section.sh_addr(LE) != 0 {
                addresses.fields.push((offset, section.sh_addr(LE).wrapping_sub(bias)));
            }
        }
        Ok(addresses)
    }
}

#[derive(Default)]
struct SectionAddresses {
    /// File offset of each `sh_addr` field to change, with its new value.
    fields: Vec<(usize, u64)>,
    /// Start offset of each debug section within the linked section of the same name.
    starts: Vec<usize>,
}
