//! Source file and line of the code at an address.

use super::budget::Budget;
use super::elf::{Elf, aligned_copy};
use super::line_program::{self, Sequence};
use super::relocate::relocated_where;
use super::row::LineRow;
use super::text;
use crate::{Address, AddressRange, Error};

/// Returns true for the names of line table sections and of the sections that line tables refer to. The other DWARF
/// sections need not be relocated.
fn is_for_lines(name: &[u8]) -> bool {
    let line_table = [&b".debug_line"[..], b".debug_line_str", b".debug_str"];
    let units = [&b".debug_info"[..], b".debug_abbrev", b".debug_str_offsets", b".debug_addr"];
    line_table.contains(&name) || units.contains(&name)
}

/// Line table of an object: rows sorted by address; empty if the object lacks debug information.
///
/// Rows form *sequences* (DWARF 5, 6.2.5), one for each contiguous piece of code, each closed by a row with
/// [`end_sequence`](LineRow::end_sequence). Within a sequence, no two rows have the same address. Sequences do not
/// overlap.
///
/// ```
/// use jitlisten::{LineRows, LoadedObject};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/lli-14-mcjit-dwarf4.o");
/// # let debug_object = std::fs::read(path)?;
/// let object = LoadedObject::parse(&debug_object)?;
/// let rows = LineRows::parse(&debug_object)?;
/// let function = object.functions().iter().find(|function| &*function.linkage_name == "main").ok_or("no main")?;
/// assert_eq!(rows.find(function.range.start()), Some(("/src/chain/chain.c", 12)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineRows {
    files: Vec<Box<str>>,
    rows: Vec<LineRow>,
}

impl LineRows {
    /// Parses `.debug_line` of a debug object, after applying its relocations.
    ///
    /// Sequences of code that was not loaded (address 0) are omitted.
    ///
    /// # Errors
    /// If the object or its DWARF is malformed. An object without DWARF is not an error.
    pub fn parse(debug_object: &[u8]) -> Result<Self, Error> {
        match aligned_copy(debug_object) {
            Some(copy) => Self::parse_aligned(&copy),
            None => Self::parse_aligned(debug_object),
        }
    }

    fn parse_aligned(debug_object: &[u8]) -> Result<Self, Error> {
        let elf = Elf::parse(debug_object)?;
        if !elf.has_lines() {
            return Ok(LineRows::default());
        }
        let sections = relocated_where(debug_object, is_for_lines)?;
        let find_section = |name: &str| sections.iter().find(|(known, _)| **known == *name).map(|(_, bytes)| &**bytes);
        let (files, sequences) =
            line_program::parse(debug_object.len(), |name| find_section(name).unwrap_or_default())?;
        let text = text::parse(&elf, &mut Budget::new(debug_object.len(), 4))?;
        let text: Vec<AddressRange> = text.into_iter().map(|text| text.text_range.range).collect();
        Ok(LineRows { files, rows: merge(sequences, &text) })
    }

    /// All rows, sorted by address.
    pub fn rows(&self) -> &[LineRow] {
        &self.rows
    }

    /// Full path of a file: absolute if the DWARF has a compilation directory.
    ///
    /// Python's names for code without a file (`<stdin>`, `<ipython-input-1-...>`) are returned unchanged.
    pub fn file(&self, index: u32) -> Option<&str> {
        self.files.get(index as usize).map(|name| &**name)
    }

    /// File and line of the code at `address`; `None` outside all sequences, and for line 0 (unknown).
    pub fn find(&self, address: Address) -> Option<(&str, u32)> {
        let next_index = self.rows.partition_point(|row| row.address <= address);
        let row = self.rows.get(next_index.checked_sub(1)?)?;
        (!row.end_sequence && row.line != 0).then_some((self.file(row.file)?, row.line))
    }
}

/// Merges the sequences of loaded code; `text` must be sorted. If two sequences overlap, the first is kept.
fn merge(mut sequences: Vec<Sequence>, text: &[AddressRange]) -> Vec<LineRow> {
    let is_loaded = |range: AddressRange| {
        let next_index = text.partition_point(|text| text.start() <= range.start());
        text[..next_index].last().is_some_and(|text| text.covers(range))
    };
    sequences.retain(|sequence| is_loaded(sequence.range));
    sequences.sort_by_key(|sequence| sequence.range.start());
    let mut rows: Vec<LineRow> = Vec::new();
    for sequence in sequences {
        if rows.last().is_none_or(|last| last.address <= sequence.range.start()) {
            rows.extend(sequence.rows);
        }
    }
    rows
}
