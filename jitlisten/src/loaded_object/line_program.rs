//! Interpreter for the line number programs of `.debug_line` (DWARF 5, 6.2; DWARF 4, 6.2).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use gimli::{AttributeValue, ColumnType, Dwarf, EndianSlice, LittleEndian, SectionId, Unit};

use super::budget::Budget;
use super::row::LineRow;
use crate::{Address, AddressRange, Error};

type Bytes<'data> = EndianSlice<'data, LittleEndian>;
type Header<'data> = gimli::LineProgramHeader<Bytes<'data>>;

/// Maximum length of a source path (`PATH_MAX`). A longer path cannot name a file.
const MAX_PATH_BYTES: usize = 4096;

/// Rows of one contiguous piece of code, sorted by address. Only the last row ends the sequence.
pub(super) struct Sequence {
    pub(super) range: AddressRange,
    pub(super) rows: Vec<LineRow>,
}

/// Returns the file names and all sequences. `section` returns the relocated bytes of a section, empty if there is
/// none.
pub(super) fn parse<'data>(
    object_size: usize,
    section: impl Fn(&str) -> &'data [u8],
) -> Result<(Vec<Box<str>>, Vec<Sequence>), Error> {
    let dwarf = Dwarf::load(|id: SectionId| Ok::<_, Error>(EndianSlice::new(section(id.name()), LittleEndian)))?;
    let mut files = Files { numbers: BTreeMap::new(), budget: Budget::new(object_size, 8) };
    let mut sequences = Vec::new();
    let mut seen_programs = BTreeSet::new();
    // Several units may share a line program. The budget rejects objects with too many such units, because re-reading
    // the program would take very long.
    let mut headers = Budget::new(object_size, 64);
    let mut programs = Budget::new(section(SectionId::DebugLine.name()).len(), 1);
    let mut units = dwarf.units();
    while let Some(unit) = units.next()? {
        let unit = dwarf.unit(unit)?;
        let Some(program) = unit.line_program.clone() else { continue };
        headers.spend(program.header().header_length() as u64)?;
        if seen_programs.insert(program.header().offset().0) {
            programs.spend(program.header().unit_length() as u64)?;
            run(&dwarf, &unit, program, &mut files, &mut sequences)?;
        }
    }
    Ok((files.into_list(), sequences))
}

/// Runs one line number program.
fn run<'data>(
    dwarf: &Dwarf<Bytes<'data>>,
    unit: &Unit<Bytes<'data>>,
    program: gimli::IncompleteLineProgram<Bytes<'data>>,
    files: &mut Files,
    sequences: &mut Vec<Sequence>,
) -> Result<(), Error> {
    let mut file_numbers: BTreeMap<u64, u32> = BTreeMap::new();
    let mut sequence: Vec<LineRow> = Vec::new();
    let mut rows = program.rows();
    // Nearly every row has the same file as the row before.
    let mut last_file: Option<(u64, u32)> = None;
    while let Some((header, row)) = rows.next_row()? {
        let index = row.file_index();
        let cached_number = last_file.filter(|last_file| last_file.0 == index).map(|last_file| last_file.1);
        let file = match cached_number.or_else(|| file_numbers.get(&index).copied()) {
            Some(number) => number,
            None => {
                let number = files.number(&path(dwarf, unit, header, index)?)?;
                *file_numbers.entry(index).or_insert(number)
            }
        };
        last_file = Some((index, file));
        push(&mut sequence, line_row(row, file));
        if row.end_sequence() {
            sequences.extend(build_sequence(std::mem::take(&mut sequence)));
        }
    }
    Ok(())
}

fn line_row(row: &gimli::LineRow, file: u32) -> LineRow {
    let column = match row.column() {
        ColumnType::LeftEdge => 0,
        ColumnType::Column(column) => u32::try_from(column.get()).unwrap_or(0),
    };
    LineRow {
        address: Address(row.address()),
        file,
        line: row.line().and_then(|line| u32::try_from(line.get()).ok()).unwrap_or(0),
        column,
        end_sequence: row.end_sequence(),
    }
}

/// Appends a row. It replaces an earlier row at the same address, which covers no instruction.
fn push(sequence: &mut Vec<LineRow>, row: LineRow) {
    if sequence.last().is_some_and(|last| last.address == row.address) {
        sequence.pop();
    }
    sequence.push(row);
}

/// Builds a sequence from `rows`; `None` if it is empty, dead (starts at 0), runs backwards or exceeds the address
/// space.
fn build_sequence(rows: Vec<LineRow>) -> Option<Sequence> {
    let (start, end) = (rows.first()?.address, rows.last()?.address);
    let is_invalid = start == Address(0) || !rows.is_sorted_by_key(|row| row.address);
    let range = AddressRange::new(start, end.0.checked_sub(start.0)?)?;
    (!is_invalid && !range.is_empty()).then_some(Sequence { range, rows })
}

/// Full path of file `index` of a line program.
fn path<'data>(
    dwarf: &Dwarf<Bytes<'data>>,
    unit: &Unit<Bytes<'data>>,
    header: &Header<'data>,
    index: u64,
) -> Result<String, Error> {
    let Some(file) = header.file(index) else { return Ok(String::new()) };
    let text = |value: AttributeValue<Bytes<'data>>| -> Result<String, Error> {
        let bytes = dwarf.attr_string(unit, value)?.slice();
        Ok(String::from_utf8_lossy(bytes.get(..MAX_PATH_BYTES).unwrap_or(bytes)).into_owned())
    };
    let compilation_directory =
        unit.comp_dir.map(|bytes| text(AttributeValue::String(bytes))).transpose()?.unwrap_or_default();
    let directory = file.directory(header).map(text).transpose()?.unwrap_or_default();
    let directory = join(&compilation_directory, &directory);
    Ok(join(&directory, &text(file.path_name())?).into_owned())
}

/// Joins `path` to `directory`, unless the path is absolute or a pseudo file name in angle brackets.
fn join<'a>(directory: &str, path: &'a str) -> Cow<'a, str> {
    if directory.is_empty() || path.starts_with('/') || path.starts_with('<') {
        return Cow::Borrowed(path);
    }
    Cow::Owned(format!("{}/{}", directory.trim_end_matches('/'), path.trim_start_matches("./")))
}

/// Numbered list of file paths without duplicates.
struct Files {
    numbers: BTreeMap<Box<str>, u32>,
    budget: Budget,
}

impl Files {
    fn number(&mut self, path: &str) -> Result<u32, Error> {
        if let Some(number) = self.numbers.get(path) {
            return Ok(*number);
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(self.budget.name(path.as_bytes())?, number);
        Ok(number)
    }

    fn into_list(self) -> Vec<Box<str>> {
        let mut list: Vec<_> = self.numbers.into_iter().collect();
        list.sort_by_key(|(_, number)| *number);
        list.into_iter().map(|(name, _)| name).collect()
    }
}
