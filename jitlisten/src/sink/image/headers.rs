//! Program headers of an image that describe its mapped parts.

use object::elf;
use object::write::elf::ProgramHeader;

use super::encode::Encoded;
use crate::{Address, AddressRange};

/// Program headers that are kept while an image is mapped.
#[derive(Clone, Debug)]
pub(super) struct ImageHeaders {
    /// Address at which byte 0 of the file would be mapped.
    pub(super) bias: u64,
    /// Program headers that lie in the mapped part of the file.
    pub(super) headers: Vec<libc::Elf64_Phdr>,
}

impl ImageHeaders {
    pub(super) fn from_encoded(encoded: &Encoded) -> ImageHeaders {
        let layout = &encoded.layout;
        let is_mapped = |header: &ProgramHeader| {
            header.p_filesz > 0
                && header.p_offset >= layout.mapped_start
                && header.p_offset + header.p_filesz <= layout.code_end
        };
        // The image's unwind tables omit personality routines, so an unwinder that uses them for an exception would
        // skip handlers.
        let is_safe = |header: &ProgramHeader| header.p_type != elf::PT_GNU_EH_FRAME || !encoded.has_personality;
        let to_libc = |header: ProgramHeader| libc::Elf64_Phdr {
            p_type: header.p_type.0,
            p_flags: header.p_flags.0,
            p_offset: header.p_offset,
            p_vaddr: header.p_vaddr,
            p_paddr: header.p_paddr,
            p_filesz: header.p_filesz,
            p_memsz: header.p_memsz,
            p_align: header.p_align,
        };
        let headers = encoded.program_headers.iter().filter(|header| is_mapped(header) && is_safe(header));
        ImageHeaders { bias: layout.bias, headers: headers.cloned().map(to_libc).collect() }
    }

    pub(super) fn find(&self, p_type: elf::ProgramType) -> Option<&libc::Elf64_Phdr> {
        self.headers.iter().find(|header| header.p_type == p_type.0)
    }

    pub(super) fn mapped(&self) -> Option<AddressRange> {
        let load = self.find(elf::PT_LOAD)?;
        AddressRange::new(Address(self.bias.wrapping_add(load.p_vaddr)), load.p_memsz)
    }
}
