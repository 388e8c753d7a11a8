//! Copies an ELF relocatable object and writes the load addresses of its sections into its section headers.

#![forbid(unsafe_code)]

use std::mem::offset_of;

use jitlisten::plumbing::checked_read;
use jitlisten::plumbing::elf::{FileHeader, LE, SectionHeader, THIS_MACHINE, file_header, structure};
use jitlisten::{Address, AddressRange};
use object::elf::{ELFMAG, ET_REL, SHF_EXECINSTR, SHT_PROGBITS};

/// How many bytes of a text section are compared.
const COMPARED: u64 = 256;

/// The copy.
pub(crate) struct Sections {
    bytes: Vec<u8>,
    /// Where the headers are.
    table: usize,
    count: usize,
}

/// Whether two objects are one, linked for two places: nothing but the addresses of sections differs.
pub(crate) fn differ_in_place(one: &[u8], other: &[u8]) -> bool {
    let without_addresses = |bytes: &[u8]| {
        let mut sections = Sections::parse(bytes.to_vec()).ok()?;
        (0..sections.count()).for_each(|index| sections.set_address(index, 0));
        Some(sections.into_bytes())
    };
    one.len() == other.len()
        && one != other
        && without_addresses(one).is_some_and(|one| Some(one) == without_addresses(other))
}

impl Sections {
    /// Copies the object at `data`, which must have all its section headers; `None` for an object of another machine
    /// (BPF).
    pub(crate) fn read(data: usize, size: usize) -> Result<Option<Sections>, &'static str> {
        let range = AddressRange::new(Address(data as u64), size as u64).ok_or("no range of addresses")?;
        if size < size_of::<FileHeader>() {
            return Err("too small for an ELF file");
        }
        let bytes = checked_read::copy(range).map_err(|_| "its bytes cannot be read")?;
        let is_of_another =
            |header: FileHeader| header.e_ident.magic == ELFMAG && header.e_machine.get(LE) != THIS_MACHINE;
        if structure(&bytes, 0).is_some_and(is_of_another) { Ok(None) } else { Sections::parse(bytes).map(Some) }
    }

    fn parse(bytes: Vec<u8>) -> Result<Sections, &'static str> {
        let is_one = |header: &FileHeader| header.e_type.get(LE) == ET_REL && header.e_machine.get(LE) == THIS_MACHINE;
        let header = file_header(&bytes).filter(is_one).ok_or("no relocatable ELF object of this machine")?;
        let (table, mut count) = (header.e_shoff.get(LE) as usize, usize::from(header.e_shnum.get(LE)));
        if count == 0 {
            // More than 65,279 sections: the number is in the size of the first one.
            count = structure::<SectionHeader>(&bytes, table).map_or(0, |first| first.sh_size.get(LE) as usize);
        }
        let size = usize::from(header.e_shentsize.get(LE));
        let end = count.checked_mul(size).and_then(|size| size.checked_add(table));
        let fits = end.is_some_and(|end| end <= bytes.len());
        if size != size_of::<SectionHeader>() || !fits || count == 0 {
            return Err("its section headers are not in it");
        }
        Ok(Sections { bytes, table, count })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Where the header of a section is, from the object's start.
    pub(crate) fn header_offset(&self, index: usize) -> usize {
        self.table + index * size_of::<SectionHeader>()
    }

    fn header(&self, index: usize) -> Option<SectionHeader> {
        structure(&self.bytes, self.header_offset(index))
    }

    /// Sections without a name get no address in LLVM's debug objects.
    pub(crate) fn has_name(&self, index: usize) -> bool {
        self.header(index).is_some_and(|header| header.sh_name.get(LE) != 0)
    }

    pub(crate) fn set_address(&mut self, index: usize, address: u64) {
        let at = self.header_offset(index) + offset_of!(SectionHeader, sh_addr);
        if let Some(field) = self.bytes.get_mut(at..at + size_of::<u64>()) {
            field.copy_from_slice(&address.to_le_bytes());
        }
    }

    /// Whether the first bytes of each text section are at its address, as far as relocations have not changed them: at
    /// least half of them.
    pub(crate) fn are_where_they_say(&self) -> bool {
        (1..self.count).filter_map(|index| self.header(index)).filter(is_loaded_text).all(|header| {
            let size = header.sh_size.get(LE).min(COMPARED);
            let start = header.sh_offset.get(LE) as usize;
            let expected = start.checked_add(size as usize).and_then(|end| self.bytes.get(start..end));
            let range = AddressRange::new(Address(header.sh_addr.get(LE)), size);
            let (Some(expected), Some(range)) = (expected, range) else { return false };
            let Ok(there) = checked_read::copy(range) else { return false };
            there.iter().zip(expected).filter(|(there, expected)| there == expected).count() * 2 >= expected.len()
        })
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// A section with code that was loaded.
fn is_loaded_text(header: &SectionHeader) -> bool {
    header.sh_type.get(LE) == SHT_PROGBITS
        && header.sh_flags.get(LE).0 & SHF_EXECINSTR.0 != 0
        && header.sh_size.get(LE) > 0
        && header.sh_addr.get(LE) != 0
}
