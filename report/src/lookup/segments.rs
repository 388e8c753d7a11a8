//! Mapped segments of an ELF file.

use object::Endianness;
use object::elf::{PT_LOAD, ProgramHeader64};
use object::read::elf::ProgramHeader as _;

#[derive(Clone)]
struct Segment {
    offset: u64,
    size: u64,
    address: u64,
}

/// Loadable segments, for converting file offsets to addresses.
#[derive(Clone)]
pub(crate) struct Segments(Vec<Segment>);

impl Segments {
    pub(crate) fn from_headers(headers: &[ProgramHeader64<Endianness>], endian: Endianness) -> Segments {
        let loaded = headers.iter().filter(|header| header.p_type(endian) == PT_LOAD);
        let segment = |header: &ProgramHeader64<Endianness>| Segment {
            offset: header.p_offset(endian),
            size: header.p_filesz(endian),
            address: header.p_vaddr(endian),
        };
        Segments(loaded.map(segment).collect())
    }

    /// Converts a file offset to an address in the file's address space.
    pub(crate) fn address_of_offset(&self, offset: u64) -> Option<u64> {
        // Without program headers, file offsets are addresses.
        if self.0.is_empty() {
            return Some(offset);
        }
        let inside =
            |segment: &&Segment| offset.checked_sub(segment.offset).is_some_and(|relative| relative < segment.size);
        let segment = self.0.iter().find(inside)?;
        (offset - segment.offset).checked_add(segment.address)
    }

    /// Returns true if an address in the file's address space is in a segment.
    pub(crate) fn contains(&self, address: u64) -> bool {
        let inside =
            |segment: &Segment| address.checked_sub(segment.address).is_some_and(|relative| relative < segment.size);
        self.0.iter().any(inside)
    }
}
