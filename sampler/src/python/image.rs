//! Encodes the ELF file of interpreted functions: symbols and a line table, at addresses where no process has memory.
//!
//! ```text
//!   0       ELF header, program header
//!   4096    .text: nothing to execute; four bytes for each line of each function
//!   ...     .debug_info, .debug_abbrev, .debug_line, .symtab, .strtab
//! ```
//! A sample lies in the middle of its line's four bytes, so a reader that subtracts one from a return address finds the
//! same line. The symbol is `py::NAME:FILE`, as CPython writes it into perf maps. To inspect a file: `addr2line -e FILE
//! -f ADDRESS`, `readelf -sW`, `objdump --dwarf=decodedline`.

#![forbid(unsafe_code)]

use gimli::write::{Address, AttributeValue, Dwarf, EndianVec, LineProgram, LineString, Sections, Unit};
use gimli::{Encoding, Format, LineEncoding, LittleEndian, SectionId};
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, elf};
use wire::elf::{ElfFile, Section, Symbol};

/// File offset of the code.
pub(super) const TEXT_OFFSET: u64 = 4096;
pub(super) const LINE_BYTES: u64 = 4;

#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) file: String,
    /// Offset in the code after [`TEXT_OFFSET`].
    pub(super) start: u64,
    /// Line number for each [`LINE_BYTES`] of code.
    pub(super) lines: Vec<u32>,
}

impl Function {
    pub(super) fn size(&self) -> u64 {
        self.lines.len() as u64 * LINE_BYTES
    }
}

/// Encodes an image. `None` if the image exceeds a limit of the file formats.
pub(super) fn encode(functions: &[Function]) -> Option<Vec<u8>> {
    let size = functions.last().map_or(0, |last| last.start + last.size());
    let debug = debug_sections(functions, size)?;
    let end = TEXT_OFFSET + size;
    let text = SectionHeader {
        sh_type: elf::SHT_PROGBITS,
        sh_flags: elf::SHF_ALLOC | elf::SHF_EXECINSTR,
        sh_addr: TEXT_OFFSET,
        sh_offset: TEXT_OFFSET,
        sh_size: size,
        sh_addralign: 1,
        ..SectionHeader::default()
    };
    let debug_header = SectionHeader { sh_type: elf::SHT_PROGBITS, sh_addralign: 1, ..SectionHeader::default() };
    let debug = debug.iter().map(|(name, data)| Section { name, header: debug_header.clone(), data });
    let names: Vec<Vec<u8>> = functions.iter().map(symbol).collect();
    let symbols = functions.iter().zip(&names).map(|(function, name)| {
        let address = TEXT_OFFSET + function.start;
        Symbol { name, address, size: function.size() }
    });
    let e_machine = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    let file = ElfFile {
        endian: Endianness::Little,
        header: FileHeader { e_type: elf::ET_DYN, e_machine, ..FileHeader::default() },
        program_headers: vec![ProgramHeader {
            p_type: elf::PT_LOAD,
            p_flags: elf::PF_R | elf::PF_X,
            p_offset: 0,
            p_vaddr: 0,
            p_paddr: 0,
            p_filesz: end,
            p_memsz: end,
            p_align: TEXT_OFFSET,
        }],
        sections: std::iter::once(Section { name: ".text", header: text, data: &[] }).chain(debug).collect(),
        symbols: symbols.collect(),
    };
    file.encode().ok()
}

/// Returns the symbol name, in the format of CPython's perf trampolines (`py::name:file`).
fn symbol(function: &Function) -> Vec<u8> {
    printable(&format!("py::{}:{}", function.name, function.file))
}

/// Replaces control characters, because a NUL would end the name and a newline would break perf's output lines.
fn printable(text: &str) -> Vec<u8> {
    text.bytes().map(|byte| if byte < b' ' { b'?' } else { byte }).collect()
}

fn debug_sections(functions: &[Function], size: u64) -> Option<Vec<(&'static str, Vec<u8>)>> {
    let encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
    let line_string = |text: &str| LineString::String(printable(text));
    let mut lines =
        LineProgram::new(encoding, LineEncoding::default(), line_string(""), None, line_string("python"), None);
    let directory = lines.default_directory();
    for function in functions {
        // The DWARF writer rejects an empty file name.
        let file = if function.file.is_empty() { "?" } else { &function.file };
        let file = lines.add_file(line_string(file), directory, None);
        lines.begin_sequence(Some(Address::Constant(TEXT_OFFSET + function.start)));
        for (index, &line) in (0..).zip(&function.lines) {
            let row = lines.row();
            (row.address_offset, row.file, row.line) = (index * LINE_BYTES, file, u64::from(line));
            lines.generate_row();
        }
        lines.end_sequence(function.size());
    }
    let mut unit = Unit::new(encoding, lines);
    let root = unit.root();
    let root = unit.get_mut(root);
    root.set(gimli::DW_AT_name, AttributeValue::String(b"python".to_vec()));
    root.set(gimli::DW_AT_low_pc, AttributeValue::Address(Address::Constant(TEXT_OFFSET)));
    root.set(gimli::DW_AT_high_pc, AttributeValue::Udata(size));
    let mut dwarf = Dwarf::new();
    dwarf.units.add(unit);
    let mut sections = Sections::new(EndianVec::new(LittleEndian));
    dwarf.write(&mut sections).ok()?;
    let mut encoded = Vec::new();
    let collect_section = |id: SectionId, section: &EndianVec<LittleEndian>| {
        if !section.slice().is_empty() {
            encoded.push((id.name(), section.slice().to_vec()));
        }
        Ok::<(), gimli::write::Error>(())
    };
    sections.for_each(collect_section).ok()?;
    Some(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::read::elf::ElfFile64;
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

    #[test]
    fn an_address_resolves_to_its_function_and_line() {
        let function = |name: &str, file: &str, start, lines: &[u32]| Function {
            name: name.to_owned(),
            file: file.to_owned(),
            start,
            lines: lines.to_vec(),
        };
        let functions = [
            function("C.outer", "/tmp/a b.py", 0, &[10, 12, 11]),
            function("<lambda>", "<string>", 12, &[1]),
            function("é\n", "", 16, &[7, 8]),
        ];
        let bytes = encode(&functions).unwrap();
        let file = ElfFile64::<Endianness>::parse(bytes.as_slice()).unwrap();
        let names: Vec<_> =
            file.symbols().map(|symbol| (symbol.name().unwrap(), symbol.address(), symbol.size())).collect();
        let (first, last) = ("py::C.outer:/tmp/a b.py", "py::é?:");
        assert_eq!(names, [(first, 4096, 12), ("py::<lambda>:<string>", 4108, 4), (last, 4112, 8)]);
        let load = |id: SectionId| {
            let section = file.section_by_name(id.name()).and_then(|section| section.data().ok()).unwrap_or_default();
            Ok::<_, ()>(gimli::EndianSlice::new(section, LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(load).unwrap();
        let mut units = dwarf.units();
        let unit = dwarf.unit(units.next().unwrap().unwrap()).unwrap();
        let mut rows = unit.line_program.clone().unwrap().rows();
        let mut rows_read = Vec::new();
        while let Some((header, row)) = rows.next_row().unwrap() {
            let file = row.file(header).unwrap().path_name();
            let file = dwarf.attr_string(&unit, file).unwrap().to_string().unwrap().to_owned();
            if !row.end_sequence() {
                rows_read.push((row.address(), row.line().unwrap().get(), file));
            }
        }
        let expected = [(4096, 10, "/tmp/a b.py"), (4100, 12, "/tmp/a b.py"), (4104, 11, "/tmp/a b.py")];
        let expected = expected.into_iter().chain([(4108, 1, "<string>"), (4112, 7, "?"), (4116, 8, "?")]);
        assert!(rows_read.iter().map(|(address, line, file)| (*address, *line, file.as_str())).eq(expected));
    }
}
