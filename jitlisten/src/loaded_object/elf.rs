//! ELF header and section table of a debug object, validated once.

use object::elf::{self, FileHeader64, SectionHeader64};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, SymbolTable};
use object::{LittleEndian, SectionIndex};

use super::parts::Machine;
use crate::Error;

pub(super) type Header = FileHeader64<LittleEndian>;
pub(super) type Section = SectionHeader64<LittleEndian>;
pub(super) const LE: LittleEndian = LittleEndian;

/// A debug object with a valid header.
pub(super) struct Elf<'data> {
    pub(super) data: &'data [u8],
    pub(super) machine: Machine,
    /// True if symbol values are offsets into their section (`ET_REL`) rather than addresses.
    pub(super) relocatable: bool,
    pub(super) sections: SectionTable<'data, Header>,
}

impl<'data> Elf<'data> {
    /// Reads the header and the section table.
    pub(super) fn parse(data: &'data [u8]) -> Result<Self, Error> {
        let header = Header::parse(data)?;
        header.endian()?;
        let file_type = header.e_type(LE);
        if ![elf::ET_REL, elf::ET_EXEC, elf::ET_DYN].contains(&file_type) {
            return Err(Error::OtherFileType(file_type.0));
        }
        Ok(Elf {
            data,
            machine: Machine::from_e_machine(header.e_machine(LE))?,
            relocatable: file_type == elf::ET_REL,
            sections: header.sections(LE, data)?,
        })
    }

    /// Raw bytes of a section's name.
    pub(super) fn name_of(&self, section: &Section) -> Result<&'data [u8], Error> {
        Ok(self.sections.section_name(LE, section)?)
    }

    pub(super) fn loaded_section(&self, name: &[u8]) -> Option<&'data Section> {
        self.sections.iter().find(|section| is_loaded(section) && self.name_of(section).ok() == Some(name))
    }

    /// Returns true if the object has a line table.
    pub(super) fn has_lines(&self) -> bool {
        self.sections.iter().any(|section| self.name_of(section).ok() == Some(b".debug_line"))
    }

    /// The static symbol table; empty if it is missing.
    pub(super) fn symbols(&self) -> Result<SymbolTable<'data, Header>, Error> {
        Ok(self.sections.symbols(LE, self.data, elf::SHT_SYMTAB)?)
    }

    /// Base address of the values of symbols in section `index`.
    pub(super) fn symbol_base(&self, index: SectionIndex) -> Result<u64, Error> {
        if !self.relocatable {
            return Ok(0);
        }
        Ok(self.sections.section(index)?.sh_addr(LE))
    }
}

/// Returns true if the section was placed in memory.
pub(super) fn is_loaded(section: &Section) -> bool {
    has_flag(section, elf::SHF_ALLOC) && section.sh_addr(LE) != 0 && section.sh_size(LE) != 0
}

/// Returns true if `sh_flags` contains `flag`.
pub(super) fn has_flag(section: &Section, flag: elf::SectionFlags) -> bool {
    section.sh_flags(LE).0 & flag.0 != 0
}

/// Copies `data` if it is not aligned. The `object` crate reads structures in place, which requires alignment. Files in
/// memory are nearly always aligned, but bytes embedded in a program may not be. A fresh allocation of this size is
/// aligned.
pub(super) fn aligned_copy(data: &[u8]) -> Option<Vec<u8>> {
    (data.as_ptr().align_offset(8) != 0).then(|| data.to_vec())
}
