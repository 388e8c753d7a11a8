//! Copy of a relocatable ELF object, with the load addresses of its sections written into its section headers.

#![forbid(unsafe_code)]

use std::mem::offset_of;

use jitlisten::plumbing::checked_read;
use jitlisten::plumbing::elf::{FileHeader, LE, SectionHeader, THIS_MACHINE, file_header, structure};
use jitlisten::{Address, AddressRange};
use object::elf::{ELFMAG, ET_REL, SHF_EXECINSTR, SHT_PROGBITS};

/// Maximum number of bytes of a text section to compare.
const MAX_COMPARED_BYTES: u64 = 256;

/// A copied object, with access to its section headers.
pub(crate) struct Sections {
    bytes: Vec<u8>,
    headers_offset: usize,
    /// Number of section headers.
    count: usize,
}

/// Returns true if the objects differ, but only in section addresses, so that both are the same object linked for two
/// addresses.
pub(crate) fn differ_only_in_addresses(first: &[u8], second: &[u8]) -> bool {
    let without_addresses = |bytes: &[u8]| {
        let mut sections = Sections::parse(bytes.to_vec()).ok()?;
        (0..sections.count()).for_each(|index| sections.set_address(index, 0));
        Some(sections.into_bytes())
    };
    first.len() == second.len()
        && first != second
        && without_addresses(first).is_some_and(|first| Some(first) == without_addresses(second))
}

impl Sections {
    /// Copies the object at `data`, which must contain all its section headers. Returns `Ok(None)` for an object for
    /// another architecture (BPF).
    pub(crate) fn read(data: usize, size: usize) -> Result<Option<Sections>, &'static str> {
        let range = AddressRange::new(Address(data as u64), size as u64).ok_or("no range of addresses")?;
        if size < size_of::<FileHeader>() {
            return Err("too small for an ELF file");
        }
        let bytes = checked_read::copy(range).map_err(|_| "its bytes cannot be read")?;
        let is_of_other_machine =
            |header: FileHeader| header.e_ident.magic == ELFMAG && header.e_machine.get(LE) != THIS_MACHINE;
        if structure(&bytes, 0).is_some_and(is_of_other_machine) { Ok(None) } else { Sections::parse(bytes).map(Some) }
    }

    fn parse(bytes: Vec<u8>) -> Result<Sections, &'static str> {
        let is_relocatable =
            |header: &FileHeader| header.e_type.get(LE) == ET_REL && header.e_machine.get(LE) == THIS_MACHINE;
        let header = file_header(&bytes).filter(is_relocatable).ok_or("no relocatable ELF object of this machine")?;
        let (headers_offset, mut count) = (header.e_shoff.get(LE) as usize, usize::from(header.e_shnum.get(LE)));
        if count == 0 {
            // In a file with more than 65,279 sections, the size field of the first section header holds their number.
            count =
                structure::<SectionHeader>(&bytes, headers_offset).map_or(0, |first| first.sh_size.get(LE) as usize);
        }
        let size = usize::from(header.e_shentsize.get(LE));
        let end = count.checked_mul(size).and_then(|size| size.checked_add(headers_offset));
        let fits = end.is_some_and(|end| end <= bytes.len());
        if size != size_of::<SectionHeader>() || !fits || count == 0 {
            return Err("its section headers are not in it");
        }
        Ok(Sections { bytes, headers_offset, count })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Offset of a section's header from the start of the object.
    pub(crate) fn header_offset(&self, index: usize) -> usize {
        self.headers_offset + index * size_of::<SectionHeader>()
    }

    fn header(&self, index: usize) -> Option<SectionHeader> {
        structure(&self.bytes, self.header_offset(index))
    }

    /// Returns true if a section has a name. LLVM's debug objects contain no addresses for unnamed sections.
    pub(crate) fn has_name(&self, index: usize) -> bool {
        self.header(index).is_some_and(|header| header.sh_name.get(LE) != 0)
    }

    /// Writes the load address of a section into its header.
    pub(crate) fn set_address(&mut self, index: usize, address: u64) {
        let offset = self.header_offset(index) + offset_of!(SectionHeader, sh_addr);
        if let Some(field) = self.bytes.get_mut(offset..offset + size_of::<u64>()) {
            field.copy_from_slice(&address.to_le_bytes());
        }
    }

    /// Returns true if memory at the address of each text section holds that section. At least half of the first bytes
    /// must match, because relocations may have changed the others.
    pub(crate) fn texts_match_memory(&self) -> bool {
        (1..self.count).filter_map(|index| self.header(index)).filter(is_loaded_text).all(|header| {
            let size = header.sh_size.get(LE).min(MAX_COMPARED_BYTES);
            let start = header.sh_offset.get(LE) as usize;
            let expected = start.checked_add(size as usize).and_then(|end| self.bytes.get(start..end));
            let range = AddressRange::new(Address(header.sh_addr.get(LE)), size);
            let (Some(expected), Some(range)) = (expected, range) else { return false };
            let Ok(actual) = checked_read::copy(range) else { return false };
            actual.iter().zip(expected).filter(|(actual, expected)| actual == expected).count() * 2 >= expected.len()
        })
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Returns true if a section contains code and has a load address.
fn is_loaded_text(header: &SectionHeader) -> bool {
    header.sh_type.get(LE) == SHT_PROGBITS
        && header.sh_flags.get(LE).0 & SHF_EXECINSTR.0 != 0
        && header.sh_size.get(LE) > 0
        && header.sh_addr.get(LE) != 0
}
