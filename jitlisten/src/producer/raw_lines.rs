//! Encodes a JIT's line table as DWARF 4, which every reader supports: one unit, a `DW_TAG_subprogram` for each
//! function, and a line program with full paths. Addresses are relocations against text sections, as in compiler
//! output.

use gimli::write::{
    Address as WriteAddress, AttributeValue, DwarfUnit, EndianVec, FileId, LineProgram, LineString, Range, RangeList,
    RelocateWriter, RelocationTarget, Sections,
};
use gimli::{Encoding, Format, LineEncoding, LittleEndian, SectionId, constants as dw};

use super::reported_code::{Function, Line};
use crate::{Address, AddressRange, Error};

pub(super) struct DebugSection {
    pub(super) id: SectionId,
    pub(super) bytes: Vec<u8>,
    pub(super) relocations: Vec<Reference>,
}

/// A relocated field: start of the target plus `addend`.
#[derive(Clone, Copy)]
pub(super) struct Reference {
    pub(super) offset: u64,
    pub(super) size: u8,
    pub(super) target: Target,
    pub(super) addend: i64,
}

/// Section that a relocation refers to.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// Text section, by its index.
    Text(usize),
    Section(SectionId),
}

/// Maps an address to its text section and the offset there.
type Locate<'a> = &'a dyn Fn(Address) -> (usize, u64);

/// Encodes the line table as debug sections; empty if no function has a line. `functions` must be sorted by address.
pub(super) fn sections(
    lines: &[Line<'_>],
    functions: &[Function<'_>],
    locate: Locate<'_>,
) -> Result<Vec<DebugSection>, Error> {
    let mut rows: Vec<&Line<'_>> = lines.iter().collect();
    rows.sort_by_key(|row| row.address);
    let functions_with_rows: Vec<(Function<'_>, &[&Line<'_>])> = remove_overlaps(functions)
        .into_iter()
        .map(|function| (function, rows_in(&rows, function.range)))
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    if functions_with_rows.is_empty() {
        return Ok(Vec::new());
    }
    let encoding = Encoding { format: Format::Dwarf32, version: 4, address_size: 8 };
    let mut dwarf = DwarfUnit::new(encoding);
    dwarf.unit.line_program = program(encoding, &functions_with_rows, locate);
    add_entries(&mut dwarf, &functions_with_rows, locate);
    let mut sections = Sections::new(RelocationRecorder::default());
    dwarf.write(&mut sections)?;
    let mut debug_sections = Vec::new();
    sections.for_each(|id, section| {
        if !section.bytes.slice().is_empty() {
            let (bytes, relocations) = (section.bytes.slice().to_vec(), section.references.clone());
            debug_sections.push(DebugSection { id, bytes, relocations });
        }
        Ok::<_, Error>(())
    })?;
    Ok(debug_sections)
}

/// Returns the functions without overlaps: each ends before the next begins. If several have the same start, the first
/// is kept.
fn remove_overlaps<'a>(functions: &[Function<'a>]) -> Vec<Function<'a>> {
    let mut disjoint_functions: Vec<Function<'a>> = Vec::new();
    for &function in functions {
        let start = function.range.start();
        if let Some(last) = disjoint_functions.last_mut() {
            if last.range.start() == start {
                continue;
            }
            let size = last.range.end().min(start).0 - last.range.start().0;
            last.range = AddressRange::new(last.range.start(), size).unwrap_or(last.range);
        }
        disjoint_functions.push(function);
    }
    disjoint_functions
}

fn rows_in<'r, 'a>(rows: &'r [&'a Line<'a>], range: AddressRange) -> &'r [&'a Line<'a>] {
    let [first, end] = [range.start(), range.end()].map(|limit| rows.partition_point(|row| row.address < limit));
    rows.get(first..end).unwrap_or_default()
}

fn relocatable_address(address: Address, locate: Locate<'_>) -> WriteAddress {
    let (symbol, offset) = locate(address);
    WriteAddress::Symbol { symbol, addend: offset as i64 }
}

fn has_file(row: &Line<'_>) -> bool {
    !row.file.is_empty() && !row.file.contains(&0)
}

/// Line program, with one sequence for each function.
fn program(
    encoding: Encoding,
    functions_with_rows: &[(Function<'_>, &[&Line<'_>])],
    locate: Locate<'_>,
) -> LineProgram {
    let text = |bytes: &[u8]| LineString::String(bytes.to_vec());
    let mut program = LineProgram::new(encoding, LineEncoding::default(), text(b"/"), None, text(b"jit"), None);
    let directory = program.default_directory();
    for (function, rows) in functions_with_rows {
        // A sequence starts at its first row; the code before it gets no row.
        let Some(start) = rows.first().map(|row| row.address) else { continue };
        program.begin_sequence(Some(relocatable_address(start, locate)));
        for row in *rows {
            let has_line = has_file(row);
            let file: Option<FileId> = has_line.then(|| program.add_file(text(row.file), directory, None));
            let output_row = program.row();
            output_row.address_offset = row.address.0 - start.0;
            output_row.file = file.unwrap_or(output_row.file);
            output_row.line = if has_line { row.line.into() } else { 0 };
            output_row.column = row.column.into();
            program.generate_row();
        }
        program.end_sequence(function.range.end().0 - start.0);
    }
    program
}

fn add_entries(dwarf: &mut DwarfUnit, functions_with_rows: &[(Function<'_>, &[&Line<'_>])], locate: Locate<'_>) {
    let name = functions_with_rows
        .iter()
        .flat_map(|(_, rows)| rows.iter())
        .find(|row| has_file(row))
        .map_or(&b"jit"[..], |row| row.file);
    let ranges = functions_with_rows.iter().map(|(function, _)| Range::StartLength {
        begin: relocatable_address(function.range.start(), locate),
        length: function.range.size(),
    });
    let ranges = dwarf.unit.ranges.add(RangeList(ranges.collect()));
    let unit = dwarf.unit.root();
    let root = dwarf.unit.get_mut(unit);
    root.set(dw::DW_AT_producer, AttributeValue::String(b"jitlisten".to_vec()));
    root.set(dw::DW_AT_language, AttributeValue::Language(dw::DW_LANG_C99));
    root.set(dw::DW_AT_name, AttributeValue::String(name.to_vec()));
    root.set(dw::DW_AT_comp_dir, AttributeValue::String(b"/".to_vec()));
    root.set(dw::DW_AT_low_pc, AttributeValue::Address(WriteAddress::Constant(0)));
    root.set(dw::DW_AT_ranges, AttributeValue::RangeListRef(ranges));
    for (function, _) in functions_with_rows {
        let entry = dwarf.unit.add(unit, dw::DW_TAG_subprogram);
        let entry = dwarf.unit.get_mut(entry);
        entry.set(dw::DW_AT_name, AttributeValue::String(function.name.to_vec()));
        entry.set(dw::DW_AT_low_pc, AttributeValue::Address(relocatable_address(function.range.start(), locate)));
        entry.set(dw::DW_AT_high_pc, AttributeValue::Udata(function.range.size()));
        entry.set(dw::DW_AT_external, AttributeValue::Flag(true));
    }
}

/// Writer that records the fields to relocate.
#[derive(Clone)]
struct RelocationRecorder {
    bytes: EndianVec<LittleEndian>,
    references: Vec<Reference>,
}

impl Default for RelocationRecorder {
    fn default() -> Self {
        RelocationRecorder { bytes: EndianVec::new(LittleEndian), references: Vec::new() }
    }
}

impl RelocateWriter for RelocationRecorder {
    type Writer = EndianVec<LittleEndian>;

    fn writer(&self) -> &Self::Writer {
        &self.bytes
    }

    fn writer_mut(&mut self) -> &mut Self::Writer {
        &mut self.bytes
    }

    fn relocate(&mut self, relocation: gimli::write::Relocation) {
        let target = match relocation.target {
            RelocationTarget::Symbol(piece) => Target::Text(piece),
            RelocationTarget::Section(id) => Target::Section(id),
        };
        let (offset, size, addend) = (relocation.offset as u64, relocation.size, relocation.addend);
        self.references.push(Reference { offset, size, target, addend });
    }
}
