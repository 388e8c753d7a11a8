//! The DWARF of the objects of an image, linked: every relocation applied for the addresses of the image, sections of
//! one name behind each other, as a linker does it. So an image of several objects has all of their compilation units.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{FileHeader as _, SectionHeader as _};

use crate::Error;
use crate::loaded_object::relocate::relocated_sections;

/// A section for readers of the file: mostly a `.debug_*`.
pub(crate) struct DebugSection {
    pub(crate) name: Box<str>,
    pub(crate) bytes: Vec<u8>,
}

/// Offset of `sh_addr` in a section header.
const SH_ADDR: usize = 16;

/// Sections that grow object by object.
#[derive(Default)]
pub(crate) struct Linked {
    sections: Vec<DebugSection>,
    by_name: BTreeMap<Box<str>, usize>,
}

impl Linked {
    /// The sections, in the order they were first met.
    pub(crate) fn into_sections(self) -> Vec<DebugSection> {
        self.sections
    }

    /// Adds every `.debug_*` section of an object, with addresses that have lost `bias`.
    ///
    /// # Errors
    /// When the object cannot be read, or has a relocation of unknown type. Nothing of it is added then.
    pub(crate) fn add(&mut self, debug_object: &[u8], bias: u64) -> Result<(), Error> {
        // Every relocation is a sum over `sh_addr`: so it is there that code loses the bias, and that a debug section,
        // which has none, gets its place behind those of other objects.
        let mut moved = debug_object.to_vec();
        let places = self.places(&moved, bias)?;
        for (at, address) in &places.fields {
            if let Some(field) = moved.get_mut(*at..at.saturating_add(8)) {
                field.copy_from_slice(&address.to_le_bytes());
            }
        }
        let sections = relocated_sections(&moved)?;
        for ((name, bytes), start) in sections.into_iter().zip(places.starts) {
            let index = *self.by_name.entry(name.clone()).or_insert_with(|| {
                self.sections.push(DebugSection { name, bytes: Vec::new() });
                self.sections.len() - 1
            });
            let into = &mut self.sections[index].bytes;
            into.resize(start.max(into.len()), 0);
            if into.is_empty() {
                *into = bytes.into_owned();
            } else {
                into.extend_from_slice(&bytes);
            }
        }
        Ok(())
    }

    fn places(&self, object: &[u8], bias: u64) -> Result<Places, Error> {
        let header = elf::FileHeader64::<LE>::parse(object)?;
        let sections = header.sections(LE, object)?;
        let headers = usize::try_from(header.e_shoff(LE)).unwrap_or(usize::MAX);
        let mut places = Places::default();
        let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, section) in sections.enumerate() {
            let at = headers.saturating_add(index.0 * size_of::<elf::SectionHeader64<LE>>() + SH_ADDR);
            let flags = section.sh_flags(LE).0;
            let name = sections.section_name(LE, section).unwrap_or_default();
            if name.starts_with(b".debug_") && flags & elf::SHF_COMPRESSED.0 == 0 {
                let name = std::str::from_utf8(name).unwrap_or_default();
                let before = self.by_name.get(name).map_or(0, |&index| self.sections[index].bytes.len());
                let end = ends.entry(name).or_insert(before);
                let align = usize::try_from(section.sh_addralign(LE)).unwrap_or(1).clamp(1, 64);
                let start = end.next_multiple_of(align);
                *end = start.saturating_add(section.data(LE, object)?.len());
                places.starts.push(start);
                places.fields.push((at, start as u64));
            } else if section.sh_addr(LE) != 0 {
                places.fields.push((at, section.sh_addr(LE).wrapping_sub(bias)));
            }
        }
        Ok(places)
    }
}

/// Where an object's sections go.
#[derive(Default)]
struct Places {
    /// Where an `sh_addr` stands, and its new value.
    fields: Vec<(usize, u64)>,
    /// Where each debug section begins among those of its name.
    starts: Vec<usize>,
}
