//! Encoder of images: turns [`Content`] into the bytes of an ELF file.
//!
//! To inspect an image, use `readelf -aW FILE`, `llvm-dwarfdump --verify FILE` or `eu-elflint --gnu-ld FILE`.

use object::write::StringId;
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader, Sym, Writer};
use object::{Endianness, elf};

use super::callees::encode_callees;
use super::content::Content;
use super::core_header;
use super::debug::{DebugLinker, DebugSection};
use super::layout::{Layout, LayoutSizes, NOTE_OFFSET, NOTE_SIZE, PROGRAM_HEADERS, UnwindSections};
use super::sections::{Section, SectionBytes, sections};
use super::symbols::{Symbol, symbols};
use super::unwind::{SectionOffsets, UnwindRules};
use crate::{Error, Machine, log_line, remarks};

pub(crate) struct Encoded {
    /// Content of the file.
    pub(crate) bytes: Vec<u8>,
    /// In-memory header, which replaces the bytes from file offset 0. Empty if memory and file are the same.
    pub(crate) core_header: Vec<u8>,
    /// Offsets and addresses of the image.
    pub(crate) layout: Layout,
    pub(crate) program_headers: [ProgramHeader; PROGRAM_HEADERS as usize],
    /// True if the live unwind tables refer to personality routines, which the image's tables omit.
    pub(crate) has_personality: bool,
}

/// Encodes an image for a page size of `page` bytes. Unwind tables and debug information that cannot be parsed or
/// relocated are omitted.
///
/// # Errors
/// If the ELF writer fails.
pub(crate) fn encode(content: &Content<'_>, page: u64) -> Result<Encoded, Error> {
    let rules = UnwindRules::new(content);
    let layout = Layout::new(&LayoutSizes {
        pages: content.pages,
        padding: content.padding,
        slack: content.slack(),
        hdr_size: rules.hdr_size(),
        eh_frame_size: rules.eh_frame_size(),
        page,
    });
    let (hdr, eh_frame) = match layout.unwind {
        UnwindSections::Mapped { hdr, eh_frame } => (hdr, eh_frame),
        UnwindSections::FileOnly { eh_frame } => (0, eh_frame),
    };
    let has_personality = rules.has_personality;
    let unwind = rules.encode(SectionOffsets { hdr, eh_frame, bias: layout.bias });
    let debug = link_debug_sections(content, &layout);
    let sections = sections(content, &layout, &unwind, &debug);
    let symbols = symbols(content, &layout);
    let file = File { content, layout: &layout, sections: &sections, symbols: &symbols };
    let program_headers = file.program_headers();
    let bytes = file.write()?;
    let core_header = core_header::build_header(&bytes, &layout, unwind.eh_frame.len() as u64, &symbols);
    Ok(Encoded { bytes, core_header, layout, program_headers, has_personality })
}

fn link_debug_sections(content: &Content<'_>, layout: &Layout) -> Vec<DebugSection> {
    let mut linker = DebugLinker::default();
    for debug_object in content.parts.iter().filter_map(|part| part.debug_object) {
        if let Err(error) = linker.add(debug_object, layout.bias) {
            log_line!(Warn, "an image lacks debug information: {error}");
        }
    }
    let mut sections = linker.into_sections();
    sections.extend(encode_remarks(content, layout));
    sections.extend(encode_callees(content, layout));
    sections
}

/// Encodes LLVM's loop remarks for the functions in the pages, if there are any.
fn encode_remarks(content: &Content<'_>, layout: &Layout) -> Option<DebugSection> {
    let mut text = String::new();
    let functions = content.parts.iter().flat_map(|part| part.object.functions());
    for function in functions.filter(|function| content.pages.covers(function.range)) {
        remarks::write(&function.linkage_name, layout.offset(function.range.start().0), &mut text);
    }
    (!text.is_empty()).then(|| DebugSection { name: remarks::SECTION.into(), bytes: text.into_bytes() })
}

/// Input of the ELF writer.
struct File<'a> {
    content: &'a Content<'a>,
    layout: &'a Layout,
    sections: &'a [Section<'a>],
    symbols: &'a [Symbol<'a>],
}

/// Indices and string IDs that the ELF writer has assigned.
struct Reserved {
    headers: Vec<SectionHeader>,
    section_names: Vec<StringId>,
    symbol_names: Vec<StringId>,
}

impl<'a> File<'a> {
    fn write(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(Endianness::Little, true, &mut bytes);
        let reserved = self.reserve(&mut writer)?;
        let e_machine = match self.content.machine() {
            Some(Machine::X86_64) => elf::EM_X86_64,
            Some(Machine::Aarch64) => elf::EM_AARCH64,
            None => elf::EM_NONE,
        };
        writer.write_file_header(&FileHeader { e_type: elf::ET_DYN, e_machine, ..FileHeader::default() })?;
        writer.write_align_program_headers();
        for header in self.program_headers() {
            writer.write_program_header(&header);
        }
        self.write_contents(&mut writer, &reserved);
        self.write_symbols(&mut writer, &reserved);
        self.write_section_headers(&mut writer, reserved);
        self.fill_slack(&mut bytes);
        Ok(bytes)
    }

    fn reserve(&self, writer: &mut Writer<'a>) -> Result<Reserved, Error> {
        writer.reserve_file_header();
        writer.reserve_program_headers(PROGRAM_HEADERS);
        writer.reserve_until(self.layout.code_end);
        let (mut headers, mut section_names) = (Vec::new(), Vec::new());
        for section in self.sections {
            let mut header = section.header.clone();
            if let SectionBytes::AfterPages(bytes) = section.bytes {
                header.sh_size = bytes.len() as u64;
                header.sh_offset = writer.reserve(header.sh_size, header.sh_addralign);
            }
            section_names.push(writer.add_section_name(section.name.as_bytes()));
            writer.reserve_section_index();
            headers.push(header);
        }
        let symbol_names = self.symbols.iter().map(|symbol| writer.add_string(symbol.name)).collect();
        writer.reserve_symtab_section_index();
        writer.reserve_strtab_section_index();
        writer.reserve_shstrtab_section_index();
        writer.reserve_null_symbol_index();
        for _ in self.symbols {
            writer.reserve_symbol_index(None);
        }
        writer.reserve_symtab();
        writer.reserve_strtab()?;
        writer.reserve_shstrtab()?;
        writer.reserve_section_headers();
        Ok(Reserved { headers, section_names, symbol_names })
    }

    fn write_contents(&self, writer: &mut Writer<'a>, reserved: &Reserved) {
        for section in self.sections {
            if let SectionBytes::AtOffset(bytes) = &section.bytes
                && section.header.sh_offset < self.layout.code_start
            {
                writer.pad_until(section.header.sh_offset);
                writer.write(bytes);
            }
        }
        writer.pad_until(self.layout.code_start);
        writer.write(self.content.code);
        for (section, header) in self.sections.iter().zip(&reserved.headers) {
            if let SectionBytes::AfterPages(bytes) = section.bytes {
                writer.pad_until(header.sh_offset);
                writer.write(bytes);
            }
        }
    }

    fn write_symbols(&self, writer: &mut Writer<'a>, reserved: &Reserved) {
        writer.write_null_symbol();
        for (symbol, &name) in self.symbols.iter().zip(&reserved.symbol_names) {
            let st_name = writer.string_offset(Some(name));
            writer.write_symbol(&Sym {
                section: self.section_index(symbol.offset),
                st_name,
                st_info: elf::SymbolInfo::new(symbol.bind, elf::STT_FUNC),
                st_other: elf::SymbolOther::default(),
                st_shndx: elf::SHN_ABS,
                st_value: symbol.offset,
                st_size: symbol.size,
            });
        }
        writer.write_strtab();
        writer.write_shstrtab();
    }

    /// Returns the index of the text section that contains `offset`.
    fn section_index(&self, offset: u64) -> Option<u32> {
        let has_offset = |section: &Section<'_>| {
            matches!(section.bytes, SectionBytes::InPages)
                && offset.checked_sub(section.header.sh_addr).is_some_and(|relative| relative < section.header.sh_size)
        };
        self.sections.iter().position(has_offset).map(|index| index as u32 + 1)
    }

    fn write_section_headers(&self, writer: &mut Writer<'a>, reserved: Reserved) {
        writer.write_null_section_header();
        for (header, name) in reserved.headers.into_iter().zip(reserved.section_names) {
            let sh_name = writer.section_name_offset(Some(name));
            writer.write_section_header(&SectionHeader { sh_name, ..header });
        }
        let local = self.symbols.iter().filter(|symbol| symbol.bind == elf::STB_LOCAL).count() as u32;
        writer.write_symtab_section_header(1 + local);
        writer.write_strtab_section_header();
        writer.write_shstrtab_section_header();
    }

    /// Fills zeros in the pages with the sections that the layout placed there.
    fn fill_slack(&self, file: &mut [u8]) {
        for section in self.sections {
            let offset = section.header.sh_offset as usize;
            if let SectionBytes::AtOffset(bytes) = &section.bytes
                && section.header.sh_offset >= self.layout.code_start
                && let Some(target) = file.get_mut(offset..offset + bytes.len())
            {
                target.copy_from_slice(bytes);
            }
        }
    }

    fn program_headers(&self) -> [ProgramHeader; PROGRAM_HEADERS as usize] {
        let layout = self.layout;
        let header = |p_type, p_flags, offset, size, p_align| ProgramHeader {
            p_type,
            p_flags,
            p_offset: offset,
            p_vaddr: offset,
            p_paddr: offset,
            p_filesz: size,
            p_memsz: size,
            p_align,
        };
        let search_table = self.sections.iter().find(|section| section.name == ".eh_frame_hdr");
        [
            header(
                elf::PT_LOAD,
                elf::PF_R | elf::PF_X,
                layout.mapped_start,
                layout.code_end - layout.mapped_start,
                layout.page,
            ),
            header(elf::PT_NOTE, elf::PF_R, NOTE_OFFSET, NOTE_SIZE, 4),
            header(elf::PT_GNU_STACK, elf::PF_R | elf::PF_W, 0, 0, 16),
            match search_table.map(|section| &section.header) {
                Some(table) => header(elf::PT_GNU_EH_FRAME, elf::PF_R, table.sh_offset, table.sh_size, 4),
                None => header(elf::PT_NULL, elf::ProgramFlags(0), 0, 0, 0),
            },
        ]
    }
}
