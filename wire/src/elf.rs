//! Writer of small ELF files: Python functions for the report, and the needed part of a library.

use object::write::StringId;
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader, Sym, Writer};
use object::{Endianness, elf};

/// Content of an ELF file. Symbols are functions in the first section.
#[derive(Debug)]
pub struct ElfFile<'a> {
    /// Byte order.
    pub endian: Endianness,
    /// File header; only the type and the machine are needed.
    pub header: FileHeader,
    /// Program headers, written as they are.
    pub program_headers: Vec<ProgramHeader>,
    /// Sections, except for the symbol table and the string tables.
    pub sections: Vec<Section<'a>>,
    /// Global functions.
    pub symbols: Vec<Symbol<'a>>,
}

/// Section of a file.
#[derive(Debug)]
pub struct Section<'a> {
    /// Name.
    pub name: &'a str,
    /// Header without name. A section without a file offset gets one; its size is at least that of `data`.
    pub header: SectionHeader,
    /// Content of the file.
    pub data: &'a [u8],
}

/// Function.
#[derive(Debug)]
pub struct Symbol<'a> {
    /// Linkage name.
    pub name: &'a [u8],
    /// Address of the first byte.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl<'a> ElfFile<'a> {
    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// If the file exceeds a limit of the format.
    pub fn encode(&self) -> object::write::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(self.endian, true, &mut bytes);
        writer.reserve_file_header();
        writer.reserve_program_headers(self.program_headers.len() as u32);
        let sections: Vec<_> = self.sections.iter().map(|section| reserve_section(&mut writer, section)).collect();
        let names: Vec<_> = self.symbols.iter().map(|symbol| writer.add_string(symbol.name)).collect();
        writer.reserve_symtab_section_index();
        writer.reserve_strtab_section_index();
        writer.reserve_shstrtab_section_index();
        writer.reserve_null_symbol_index();
        for _ in &names {
            writer.reserve_symbol_index(None);
        }
        writer.reserve_symtab();
        writer.reserve_strtab()?;
        writer.reserve_shstrtab()?;
        writer.reserve_section_headers();

        writer.write_file_header(&self.header)?;
        writer.write_align_program_headers();
        for header in &self.program_headers {
            writer.write_program_header(header);
        }
        for (section, reserved) in self.sections.iter().zip(&sections) {
            writer.pad_until(reserved.header.sh_offset);
            writer.write(section.data);
            writer.pad_until(reserved.end);
        }
        writer.write_null_symbol();
        for (symbol, name) in self.symbols.iter().zip(names) {
            let st_name = writer.string_offset(Some(name));
            writer.write_symbol(&Sym {
                section: Some(1),
                st_name,
                st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
                st_other: elf::SymbolOther::default(),
                st_shndx: elf::SHN_UNDEF,
                st_value: symbol.address,
                st_size: symbol.size,
            });
        }
        writer.write_strtab();
        writer.write_shstrtab();
        writer.write_null_section_header();
        for Reserved { name, header, .. } in sections {
            let sh_name = writer.section_name_offset(Some(name));
            writer.write_section_header(&SectionHeader { sh_name, ..header });
        }
        writer.write_symtab_section_header(1);
        writer.write_strtab_section_header();
        writer.write_shstrtab_section_header();
        Ok(bytes)
    }
}

struct Reserved {
    name: StringId,
    /// Complete except for the name.
    header: SectionHeader,
    /// File offset of the end.
    end: u64,
}

/// Reserves the section's part of the file, its name and its index.
fn reserve_section<'a>(writer: &mut Writer<'a>, section: &Section<'a>) -> Reserved {
    let mut header = section.header.clone();
    let size = section.data.len() as u64;
    header.sh_size = header.sh_size.max(size);
    match header.sh_offset {
        0 => header.sh_offset = writer.reserve(size, header.sh_addralign),
        offset => writer.reserve_until(offset + header.sh_size),
    }
    let name = writer.add_section_name(section.name.as_bytes());
    writer.reserve_section_index();
    Reserved { name, header, end: writer.reserved_len() }
}
