//! Runs the line number programs of `.debug_line` (DWARF 5, 6.2; DWARF 4, 6.2).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use gimli::{AttributeValue, ColumnType, Dwarf, EndianSlice, LittleEndian, SectionId, Unit};

use super::budget::Budget;
use super::row::LineRow;
use crate::{Address, AddressRange, Error};

type Bytes<'data> = EndianSlice<'data, LittleEndian>;
type Header<'data> = gimli::LineProgramHeader<Bytes<'data>>;

/// `PATH_MAX`: a longer name is no file's.
const LONGEST_PATH: usize = 4096;

/// One piece of contiguous code. The rows are sorted by address; the last, and only it, ends the sequence.
pub(super) struct Sequence {
    pub(super) range: AddressRange,
    pub(super) rows: Vec<LineRow>,
}

/// All sequences, and the files they speak of. `section` gives the relocated bytes of a section, or none.
pub(super) fn parse<'data>(
    object_size: usize,
    section: impl Fn(&str) -> &'data [u8],
) -> Result<(Vec<Box<str>>, Vec<Sequence>), Error> {
    let dwarf = Dwarf::load(|id: SectionId| Ok::<_, Error>(EndianSlice::new(section(id.name()), LittleEndian)))?;
    let mut files = Files { numbers: BTreeMap::new(), budget: Budget::new(object_size, 8) };
    let mut sequences = Vec::new();
    let mut seen = BTreeSet::new();
    // Units may share a program, but a program read as often as there are units would take for ever.
    let mut headers = Budget::new(object_size, 64);
    let mut programs = Budget::new(section(SectionId::DebugLine.name()).len(), 1);
    let mut units = dwarf.units();
    while let Some(unit) = units.next()? {
        let unit = dwarf.unit(unit)?;
        let Some(program) = unit.line_program.clone() else { continue };
        headers.spend(program.header().header_length() as u64)?;
        if seen.insert(program.header().offset().0) {
            programs.spend(program.header().unit_length() as u64)?;
            run(&dwarf, &unit, program, &mut files, &mut sequences)?;
        }
    }
    Ok((files.into_list(), sequences))
}

/// Runs one program.
fn run<'data>(
    dwarf: &Dwarf<Bytes<'data>>,
    unit: &Unit<Bytes<'data>>,
    program: gimli::IncompleteLineProgram<Bytes<'data>>,
    files: &mut Files,
    sequences: &mut Vec<Sequence>,
) -> Result<(), Error> {
    let mut number_here: BTreeMap<u64, u32> = BTreeMap::new();
    let mut open: Vec<LineRow> = Vec::new();
    let mut rows = program.rows();
    // Nearly every row speaks of the file of the row before.
    let mut latest: Option<(u64, u32)> = None;
    while let Some((header, row)) = rows.next_row()? {
        let index = row.file_index();
        let known = latest.filter(|latest| latest.0 == index).map(|latest| latest.1);
        let file = match known.or_else(|| number_here.get(&index).copied()) {
            Some(number) => number,
            None => {
                let number = files.number(&path(dwarf, unit, header, index)?)?;
                *number_here.entry(index).or_insert(number)
            }
        };
        latest = Some((index, file));
        push(&mut open, line_row(row, file));
        if row.end_sequence() {
            sequences.extend(close(std::mem::take(&mut open)));
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

/// A later row at the same address replaces the earlier, which has no instruction.
fn push(open: &mut Vec<LineRow>, row: LineRow) {
    if open.last().is_some_and(|last| last.address == row.address) {
        open.pop();
    }
    open.push(row);
}

/// The sequence of `rows`, unless it is empty, dead (it starts at 0), runs backwards or leaves the address space.
fn close(rows: Vec<LineRow>) -> Option<Sequence> {
    let (start, end) = (rows.first()?.address, rows.last()?.address);
    let dead = start == Address(0) || !rows.is_sorted_by_key(|row| row.address);
    let range = AddressRange::new(start, end.0.checked_sub(start.0)?)?;
    (!dead && !range.is_empty()).then_some(Sequence { range, rows })
}

/// The full name of file `index` of a program.
fn path<'data>(
    dwarf: &Dwarf<Bytes<'data>>,
    unit: &Unit<Bytes<'data>>,
    header: &Header<'data>,
    index: u64,
) -> Result<String, Error> {
    let Some(file) = header.file(index) else { return Ok(String::new()) };
    let text = |value: AttributeValue<Bytes<'data>>| -> Result<String, Error> {
        let bytes = dwarf.attr_string(unit, value)?.slice();
        Ok(String::from_utf8_lossy(bytes.get(..LONGEST_PATH).unwrap_or(bytes)).into_owned())
    };
    let compiled_in = unit.comp_dir.map(|bytes| text(AttributeValue::String(bytes))).transpose()?.unwrap_or_default();
    let directory = file.directory(header).map(text).transpose()?.unwrap_or_default();
    let directory = join(&compiled_in, &directory);
    Ok(join(&directory, &text(file.path_name())?).into_owned())
}

/// `path` in `directory`, unless it says already where it is.
fn join<'a>(directory: &str, path: &'a str) -> Cow<'a, str> {
    if directory.is_empty() || path.starts_with('/') || path.starts_with('<') {
        return Cow::Borrowed(path);
    }
    Cow::Owned(format!("{}/{}", directory.trim_end_matches('/'), path.trim_start_matches("./")))
}

/// The files met so far; equal names are one file.
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
