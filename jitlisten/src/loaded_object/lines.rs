//! Source lines: the file and line of the code at an address.

use super::budget::Budget;
use super::elf::{Elf, aligned_copy};
use super::line_program::{self, Sequence};
use super::relocate::relocated_where;
use super::row::LineRow;
use super::text;
use crate::{Address, AddressRange, Error};

/// Whether a section is a line table, or something one refers to. The rest of the DWARF need not be relocated.
fn is_for_lines(name: &[u8]) -> bool {
    let line_table = [&b".debug_line"[..], b".debug_line_str", b".debug_str"];
    let units = [&b".debug_info"[..], b".debug_abbrev", b".debug_str_offsets", b".debug_addr"];
    line_table.contains(&name) || units.contains(&name)
}

/// The line rows of an object, sorted by address; empty where it has no debug information.
///
/// Rows come in *sequences* (DWARF 5, 6.2.5): one for each piece of contiguous code, closed by a row with
/// [`end_sequence`](LineRow::end_sequence). In a sequence no two rows have one address, and sequences do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineRows {
    files: Vec<Box<str>>,
    rows: Vec<LineRow>,
}

impl LineRows {
    /// Reads `.debug_line` of a debug object, applying its relocations.
    ///
    /// Sequences for code that was not loaded (an address of 0, or nothing added to it) are left out.
    ///
    /// # Errors
    /// When the object or its DWARF cannot be read. An object without DWARF is not an error.
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
        let find = |name: &str| sections.iter().find(|(known, _)| **known == *name).map(|(_, bytes)| &**bytes);
        let (files, sequences) = line_program::parse(debug_object.len(), |name| find(name).unwrap_or_default())?;
        let text = text::parse(&elf, &mut Budget::new(debug_object.len(), 4))?;
        let text: Vec<AddressRange> = text.into_iter().map(|text| text.shown.range).collect();
        Ok(LineRows { files, rows: merge(sequences, &text) })
    }

    /// All rows, sorted by address.
    pub fn rows(&self) -> &[LineRow] {
        &self.rows
    }

    /// The full name of a file: absolute where the DWARF has a compilation directory.
    ///
    /// Python's names for code without a file (`<stdin>`, `<ipython-input-1-...>`) stay unchanged.
    pub fn file(&self, index: u32) -> Option<&str> {
        self.files.get(index as usize).map(|name| &**name)
    }

    /// File and line of the code at `address`; `None` outside every sequence and where the line is 0 (unknown).
    pub fn find(&self, address: Address) -> Option<(&str, u32)> {
        let after = self.rows.partition_point(|row| row.address <= address);
        let row = self.rows.get(after.checked_sub(1)?)?;
        (!row.end_sequence && row.line != 0).then_some((self.file(row.file)?, row.line))
    }
}

/// The sequences of live code, one after the other; `text` is sorted. Where two claim the same code, the first has it.
fn merge(mut sequences: Vec<Sequence>, text: &[AddressRange]) -> Vec<LineRow> {
    let covers = |range: AddressRange| {
        let after = text.partition_point(|text| text.start() <= range.start());
        text[..after].last().is_some_and(|text| text.covers(range))
    };
    sequences.retain(|sequence| covers(sequence.range));
    sequences.sort_by_key(|sequence| sequence.range.start());
    let mut rows: Vec<LineRow> = Vec::new();
    for sequence in sequences {
        if rows.last().is_none_or(|last| last.address <= sequence.range.start()) {
            rows.extend(sequence.rows);
        }
    }
    rows
}
