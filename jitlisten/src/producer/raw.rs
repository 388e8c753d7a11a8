//! Encoder for code from a JIT without ELF objects. It turns addresses, names and lines into an ELF object, so that the
//! rest of the crate handles one format.
//!
//! ```text
//!   .text  .text ..   SHT_NOBITS, sh_addr of the functions        adjacent functions share a section
//!   .eh_frame         SHT_NOBITS, sh_addr of the JIT's own table
//!   .debug_*          DWARF 4 with relocations, if there are lines  (raw_lines.rs)
//!   .symtab           one STT_FUNC per function
//! ```

use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};

use super::raw_lines::{self, Target};
pub use super::reported_code::{Code, Function, Line};
use super::{Placed, set_section_addresses};
use crate::{Address, AddressRange, Error, Machine};

/// Maximum size of a function. A longer one is an error in the report.
const MAX_FUNCTION_BYTES: u64 = u32::MAX as u64;
/// Maximum number of text sections. More need an ELF extension that few readers support.
const MAX_PIECES: usize = 0x8000;

/// Encodes the code as a relocatable ELF object with load addresses, for
/// [`LoadedCode::from_object`](super::LoadedCode::from_object).
///
/// ```
/// use jitlisten::producer::raw::{self, Code, Function, Line};
/// use jitlisten::{Address, AddressRange, LineRows, LoadedObject, Machine};
///
/// let start = Address(0x7000_0000_1000);
/// let functions = [Function::new(AddressRange::new(start, 0x40).ok_or("no such range")?, b"filter")];
/// let lines = [Line::new(start, b"/srv/query.sql", 3)];
/// let object = raw::encode(&Code::new(Machine::HERE, &functions).lines(&lines))?;
///
/// assert_eq!(&*LoadedObject::parse(&object)?.functions()[0].linkage_name, "filter");
/// assert_eq!(LineRows::parse(&object)?.find(start), Some(("/srv/query.sql", 3)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::NoFunction`], [`Error::FunctionSize`], [`Error::TooManyPieces`], and errors of the ELF and DWARF writers.
pub fn encode(code: &Code<'_>) -> Result<Vec<u8>, Error> {
    let functions = sort_functions(code.functions)?;
    let pieces = pieces(&functions)?;
    let mut object = Object::new(BinaryFormat::Elf, architecture(code.machine), Endianness::Little);
    let sections: Vec<SectionId> =
        pieces.iter().map(|&piece| add_nobits_section(&mut object, b".text", piece, true)).collect();
    let mut placed: Vec<Placed<'_>> =
        pieces.iter().map(|piece| Placed { name: b".text", address: piece.start() }).collect();
    if let Some(range) = code.eh_frame.filter(|range| !range.is_empty()) {
        add_nobits_section(&mut object, b".eh_frame", range, false);
        placed.push(Placed { name: b".eh_frame", address: range.start() });
    }
    for function in &functions {
        let piece = piece_index(&pieces, function.range.start());
        object.add_symbol(function_symbol(function, pieces[piece].start(), sections[piece]));
    }
    let lines = raw_lines::sections(code.lines, &functions, &|address| {
        let piece = piece_index(&pieces, address);
        (piece, address.0 - pieces[piece].start().0)
    })?;
    add_debug(&mut object, code.machine, &sections, lines)?;
    let mut bytes = object.write()?;
    set_section_addresses(&mut bytes, &placed)?;
    Ok(bytes)
}

/// Describes mistakes in the code that do not prevent its use: functions that overlap without one containing the other,
/// and line table rows outside all functions.
pub(super) fn find_mistakes(code: &Code<'_>) -> Vec<String> {
    let mut functions = code.functions.to_vec();
    functions.sort_by_key(|function| (function.range.start(), std::cmp::Reverse(function.range.size())));
    let mut mistakes = Vec::new();
    // Function that ends last among those seen.
    let mut last: Option<Function<'_>> = None;
    let mut outermost: Vec<AddressRange> = Vec::new();
    for function in functions {
        let end = last.map_or(Address(0), |last| last.range.end());
        if let Some(last) = last
            && function.range.start() < end
            && function.range.end() > end
            && mistakes.is_empty()
        {
            let [name, other] = [function.name, last.name].map(String::from_utf8_lossy);
            mistakes.push(format!("functions {other} and {name} overlap"));
        }
        if function.range.end() > end {
            last = Some(function);
            outermost.push(function.range);
        }
    }
    // A row at the end of a function marks the end of its lines.
    let is_outside = |address: Address| {
        let next = outermost.partition_point(|range| range.start() <= address);
        outermost[..next].last().is_none_or(|range| address > range.end())
    };
    let outside: Vec<Address> = code.lines.iter().map(|line| line.address).filter(|&row| is_outside(row)).collect();
    if let Some(first) = outside.first() {
        let (count, rows) = (outside.len(), code.lines.len());
        mistakes.push(format!("{count} of {rows} line table rows are outside all functions, first at {:#x}", first.0));
    }
    mistakes
}

fn architecture(machine: Machine) -> Architecture {
    match machine {
        Machine::X86_64 => Architecture::X86_64,
        Machine::Aarch64 => Architecture::Aarch64,
    }
}

/// Functions sorted by address, longer ones first; fails if one is unnamed or has an impossible size.
fn sort_functions<'a>(functions: &[Function<'a>]) -> Result<Vec<Function<'a>>, Error> {
    let mut sorted = functions.to_vec();
    for function in &sorted {
        let size = function.range.size();
        if size == 0 || size > MAX_FUNCTION_BYTES || function.range.start() == Address(0) {
            return Err(Error::FunctionSize { start: function.range.start().0, size });
        }
    }
    if sorted.is_empty() || sorted.iter().any(|function| function.name.is_empty() || function.name.contains(&0)) {
        return Err(Error::NoFunction);
    }
    sorted.sort_by_key(|function| (function.range.start(), std::cmp::Reverse(function.range.size())));
    Ok(sorted)
}

/// Contiguous ranges of functions. The gaps between them may belong to other code.
fn pieces(functions: &[Function<'_>]) -> Result<Vec<AddressRange>, Error> {
    let mut pieces: Vec<AddressRange> = Vec::new();
    for range in functions.iter().map(|function| function.range) {
        match pieces.last_mut() {
            Some(last) if range.start() <= last.end() => {
                let size = last.end().max(range.end()).0 - last.start().0;
                *last = AddressRange::new(last.start(), size).unwrap_or(*last);
            }
            _ => pieces.push(range),
        }
    }
    if pieces.len() > MAX_PIECES {
        return Err(Error::TooManyPieces(pieces.len()));
    }
    Ok(pieces)
}

fn piece_index(pieces: &[AddressRange], address: Address) -> usize {
    pieces.partition_point(|piece| piece.start() <= address).saturating_sub(1)
}

/// Adds a section whose bytes exist in memory only.
fn add_nobits_section(object: &mut Object<'_>, name: &[u8], range: AddressRange, is_executable: bool) -> SectionId {
    let id = object.add_section(Vec::new(), name.to_vec(), SectionKind::UninitializedData);
    object.append_section_bss(id, range.size(), 1);
    let flag = if is_executable { elf::SHF_EXECINSTR.0 } else { 0 };
    let sh_flags = elf::SectionFlags(elf::SHF_ALLOC.0 | flag);
    object.section_mut(id).flags = SectionFlags::Elf { sh_type: elf::SHT_NOBITS, sh_flags };
    id
}

fn function_symbol(function: &Function<'_>, base: Address, section: SectionId) -> Symbol {
    Symbol {
        name: function.name.to_vec(),
        value: function.range.start().0 - base.0,
        size: function.range.size(),
        kind: SymbolKind::Text,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    }
}

/// Adds the `.debug_*` sections and their relocations.
fn add_debug(
    object: &mut Object<'_>,
    machine: Machine,
    text: &[SectionId],
    debug: Vec<raw_lines::DebugSection>,
) -> Result<(), Error> {
    let mut ids = Vec::new();
    for section in &debug {
        let id = object.add_section(Vec::new(), section.id.name().into(), SectionKind::Debug);
        object.append_section_data(id, &section.bytes, 1);
        ids.push(id);
    }
    for (section, &id) in debug.iter().zip(&ids) {
        for relocation in &section.relocations {
            let target = match relocation.target {
                Target::Text(piece) => text.get(piece).copied(),
                Target::Section(name) => debug.iter().position(|other| other.id == name).map(|index| ids[index]),
            };
            // The target is always found, because every section that a relocation refers to is written.
            let Some(target) = target else { continue };
            let symbol: SymbolId = object.section_symbol(target);
            let flags = RelocationFlags::Elf { r_type: absolute_relocation(machine, relocation.size) };
            let (offset, addend) = (relocation.offset, relocation.addend);
            object.add_relocation(id, Relocation { offset, symbol, addend, flags })?;
        }
    }
    Ok(())
}

fn absolute_relocation(machine: Machine, size: u8) -> elf::RelocationType {
    match (machine, size) {
        (Machine::X86_64, 8) => elf::R_X86_64_64,
        (Machine::X86_64, _) => elf::R_X86_64_32,
        (Machine::Aarch64, 8) => elf::R_AARCH64_ABS64,
        (Machine::Aarch64, _) => elf::R_AARCH64_ABS32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LineRows, LoadedObject};

    fn range(start: u64, size: u64) -> AddressRange {
        AddressRange::new(Address(start), size).unwrap()
    }

    fn function(start: u64, size: u64, name: &str) -> Function<'_> {
        Function { range: range(start, size), name: name.as_bytes() }
    }

    fn line(address: u64, file: &str, line: u32) -> Line<'_> {
        Line { address: Address(address), file: file.as_bytes(), line, column: 7 }
    }

    #[test]
    fn mistakes_are_found() {
        let find = |functions: &[Function<'_>], lines: &[Line<'_>]| {
            find_mistakes(&Code { machine: Machine::X86_64, functions, lines, eh_frame: None })
        };
        let alpha = function(0x1000, 0x40, "alpha");
        let nested =
            [alpha, function(0x1000, 0x40, "alias"), function(0x1010, 0x30, "inner"), function(0x1040, 8, "beta")];
        assert!(find(&nested, &[line(0x1000, "/a", 1), line(0x1048, "", 0)]).is_empty());
        let overlapping = [function(0x1020, 0x40, "beta"), alpha, function(0x1028, 8, "inner")];
        assert_eq!(find(&overlapping, &[]), ["functions alpha and beta overlap"]);
        let lines = [line(0x1000, "/a", 1), line(0x1049, "/a", 2), line(0xfff, "/a", 3)];
        assert_eq!(find(&nested, &lines), ["2 of 3 line table rows are outside all functions, first at 0x1049"]);
    }

    #[test]
    fn what_goes_in_comes_out() {
        let functions = [
            function(0x7000_0000_1020, 0x20, "beta"),
            function(0x7000_0000_1000, 0x20, "alpha"),
            function(0x7000_0000_2000, 0x10, "gamma"),
            function(0x7000_0000_2000, 0x10, "another_name_of_gamma"),
        ];
        let lines = [
            line(0x7000_0000_1000, "/src/a.lang", 1),
            line(0x7000_0000_1010, "/src/a.lang", 100_000),
            line(0x7000_0000_1020, "/src/b.lang", 3),
            line(0x7000_0000_2004, "/src/a.lang", 5),
            line(0x7000_0000_2008, "", 6),
            line(0x9000_0000_0000, "/src/nowhere", 5),
        ];
        let eh_frame = Some(range(0x5000, 0x80));
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let bytes = encode(&Code { machine, functions: &functions, lines: &lines, eh_frame }).unwrap();
            let object = LoadedObject::parse(&bytes).unwrap();
            assert_eq!(object.machine(), machine);
            let names: Vec<_> = object.functions().iter().map(|f| (&*f.linkage_name, f.range)).collect();
            assert_eq!(
                names,
                [
                    ("alpha", range(0x7000_0000_1000, 0x20)),
                    ("beta", range(0x7000_0000_1020, 0x20)),
                    ("gamma", range(0x7000_0000_2000, 0x10))
                ]
            );
            assert_eq!(object.functions()[2].aliases, ["another_name_of_gamma".into()]);
            assert_eq!(object.text().len(), 2);
            assert_eq!(object.eh_frame(), eh_frame);
            let rows = LineRows::parse(&bytes).unwrap();
            let line_at = |address| rows.find(Address(address));
            assert_eq!(line_at(0x7000_0000_1000), Some(("/src/a.lang", 1)));
            assert_eq!(line_at(0x7000_0000_101f), Some(("/src/a.lang", 100_000)));
            assert_eq!(line_at(0x7000_0000_1030), Some(("/src/b.lang", 3)));
            assert_eq!((line_at(0x7000_0000_2000), line_at(0x7000_0000_2008)), (None, None));
            assert_eq!(line_at(0x7000_0000_2005), Some(("/src/a.lang", 5)));
            assert_eq!(rows.rows()[0].column, 7);
        }
    }

    #[test]
    fn impossible_values_are_rejected() {
        let encode_error = |functions: &[Function<'_>]| {
            let code = Code { machine: Machine::X86_64, functions, lines: &[], eh_frame: None };
            encode(&code).unwrap_err()
        };
        assert!(matches!(encode_error(&[]), Error::NoFunction));
        assert!(matches!(encode_error(&[function(0x1000, 1, "")]), Error::NoFunction));
        assert!(matches!(encode_error(&[function(0x1000, 0, "f")]), Error::FunctionSize { .. }));
        assert!(matches!(encode_error(&[function(0, 1, "f")]), Error::FunctionSize { .. }));
        assert!(matches!(encode_error(&[function(0x1000, 1 << 40, "f")]), Error::FunctionSize { .. }));
        let many_functions: Vec<_> = (1..=MAX_PIECES as u64 + 1).map(|n| function(n * 16, 1, "f")).collect();
        assert!(matches!(encode_error(&many_functions), Error::TooManyPieces(_)));
    }

    #[test]
    fn long_functions_and_far_lines_are_no_trouble() {
        let functions = [function(0x1000, u32::MAX as u64, "long")];
        let lines = [line(0x1000, "/f", u32::MAX), line(0xf000_0000, "/f", 1), line(0xf000_0001, "/g", u32::MAX)];
        let code = Code { machine: Machine::X86_64, functions: &functions, lines: &lines, eh_frame: None };
        let rows = LineRows::parse(&encode(&code).unwrap()).unwrap();
        assert_eq!(rows.find(Address(0xf000_0000)), Some(("/f", 1)));
        assert_eq!(rows.find(Address(0xf000_0002)), Some(("/g", u32::MAX)));
    }
}
