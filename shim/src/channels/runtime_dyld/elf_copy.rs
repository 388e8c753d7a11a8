//! Copies an ELF relocatable object and writes the load addresses of its sections into its section headers.

#![forbid(unsafe_code)]

use jitlisten::plumbing::checked_read;
use jitlisten::{Address, AddressRange};

/// Offsets in `Elf64_Ehdr` and `Elf64_Shdr` of elf(5), and sizes.
const EHDR_SIZE: usize = 64;
const E_TYPE: usize = 16;
const E_MACHINE: usize = 18;
const E_SHOFF: usize = 40;
const E_SHENTSIZE: usize = 58;
const E_SHNUM: usize = 60;
const SHDR_SIZE: usize = 64;
const SH_NAME: usize = 0;
const SH_TYPE: usize = 4;
const SH_FLAGS: usize = 8;
const SH_ADDR: usize = 16;
const SH_OFFSET: usize = 24;
const SH_SIZE: usize = 32;

const ET_REL: u16 = 1;
const SHT_PROGBITS: u32 = 1;
const SHF_EXECINSTR: u64 = 4;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = object::elf::EM_X86_64.0;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = object::elf::EM_AARCH64.0;

/// How many bytes of a text section are compared.
const COMPARED: u64 = 256;

/// The copy.
pub(crate) struct Sections {
    bytes: Vec<u8>,
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
    /// Copies the object at `data`, if it is an object of this machine with all its section headers.
    pub(crate) fn read(data: usize, size: usize) -> Result<Sections, &'static str> {
        let range = AddressRange::new(Address(data as u64), size as u64).ok_or("no range of addresses")?;
        if size < EHDR_SIZE {
            return Err("too small for an ELF file");
        }
        let bytes = checked_read::copy(range).map_err(|_| "its bytes cannot be read")?;
        Sections::parse(bytes)
    }

    fn parse(bytes: Vec<u8>) -> Result<Sections, &'static str> {
        const ELF64_LITTLE: &[u8] = b"\x7fELF\x02\x01\x01";
        let half = |at: usize| number::<2>(&bytes, at) as u16;
        if !bytes.starts_with(ELF64_LITTLE) || half(E_TYPE) != ET_REL || half(E_MACHINE) != MACHINE {
            return Err("no relocatable ELF object of this machine");
        }
        let (table, mut count) = (number::<8>(&bytes, E_SHOFF) as usize, usize::from(half(E_SHNUM)));
        if count == 0 {
            // More than 65,279 sections: the number is in the size of the first one.
            count = table.checked_add(SH_SIZE).map_or(0, |at| number::<8>(&bytes, at) as usize);
        }
        let end = count.checked_mul(SHDR_SIZE).and_then(|size| size.checked_add(table));
        let fits = end.is_some_and(|end| end <= bytes.len());
        if half(E_SHENTSIZE) != SHDR_SIZE as u16 || !fits || count == 0 {
            return Err("its section headers are not in it");
        }
        Ok(Sections { bytes, table, count })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Where the header of a section is, from the object's start.
    pub(crate) fn header_offset(&self, index: usize) -> usize {
        self.table + index * SHDR_SIZE
    }

    /// Sections without a name get no address in LLVM's debug objects.
    pub(crate) fn has_name(&self, index: usize) -> bool {
        self.field::<4>(index, SH_NAME) != 0
    }

    pub(crate) fn set_address(&mut self, index: usize, address: u64) {
        let at = self.header_offset(index) + SH_ADDR;
        if let Some(field) = self.bytes.get_mut(at..at + 8) {
            field.copy_from_slice(&address.to_le_bytes());
        }
    }

    /// Whether the first bytes of each text section are at its address, as far as relocations have not changed them: at
    /// least half of them.
    pub(crate) fn are_where_they_say(&self) -> bool {
        (1..self.count).filter(|&index| self.is_text(index)).all(|index| {
            let address = self.field::<8>(index, SH_ADDR);
            let size = self.field::<8>(index, SH_SIZE).min(COMPARED);
            let start = self.field::<8>(index, SH_OFFSET) as usize;
            let expected = start.checked_add(size as usize).and_then(|end| self.bytes.get(start..end));
            let range = AddressRange::new(Address(address), size);
            let (Some(expected), Some(range)) = (expected, range) else { return false };
            let Ok(there) = checked_read::copy(range) else { return false };
            there.iter().zip(expected).filter(|(there, expected)| there == expected).count() * 2 >= expected.len()
        })
    }

    /// A section with code that was loaded.
    fn is_text(&self, index: usize) -> bool {
        self.field::<4>(index, SH_TYPE) as u32 == SHT_PROGBITS
            && self.field::<8>(index, SH_FLAGS) & SHF_EXECINSTR != 0
            && self.field::<8>(index, SH_SIZE) > 0
            && self.field::<8>(index, SH_ADDR) != 0
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn field<const SIZE: usize>(&self, index: usize, at: usize) -> u64 {
        number::<SIZE>(&self.bytes, self.header_offset(index) + at)
    }
}

/// A little-endian number of the file; 0 outside.
fn number<const SIZE: usize>(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<SIZE>());
    field.map_or(0, |field| field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}
