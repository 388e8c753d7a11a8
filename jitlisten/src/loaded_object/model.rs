//! The interface of an object for the rest of the crate.

use super::budget::Budget;
use super::elf::{Elf, aligned_copy};
use super::parts::{Function, Machine, TextRange};
use super::{functions, text};
use crate::{AddressRange, Error};

/// An object: functions, text ranges and where the live `.eh_frame` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedObject {
    machine: Machine,
    text: Vec<TextRange>,
    functions: Vec<Function>,
    eh_frame: Option<AddressRange>,
    has_lines: bool,
}

impl LoadedObject {
    /// Parses a debug object: an ELF file in memory whose loaded sections carry their load address in `sh_addr`.
    ///
    /// An object with no symbol table has text but no functions; one of which nothing was loaded has neither.
    ///
    /// # Errors
    /// When the bytes are not a 64-bit little-endian ELF file for a machine we know, or contradict themselves.
    pub fn parse(debug_object: &[u8]) -> Result<Self, Error> {
        if let Some(copy) = aligned_copy(debug_object) {
            return Self::parse_aligned(&copy);
        }
        Self::parse_aligned(debug_object)
    }

    fn parse_aligned(debug_object: &[u8]) -> Result<Self, Error> {
        let elf = Elf::parse(debug_object)?;
        // Names of a string table may share their ends, so their sum may exceed the file; not by much.
        let mut names = Budget::new(debug_object.len(), 4);
        let text = text::parse(&elf, &mut names)?;
        let functions = functions::parse(&elf, &text, &mut names)?;
        let eh_frame = elf.loaded_section(b".eh_frame").map(|section| text::range_of(&elf, section)).transpose()?;
        let text = text.into_iter().map(|text| text.shown).collect();
        Ok(LoadedObject { machine: elf.machine, text, functions, eh_frame, has_lines: elf.has_lines() })
    }

    /// The machine the code is for.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Whether the same functions are at the same places in both.
    pub(crate) fn has_code_of(&self, other: &LoadedObject) -> bool {
        self.machine == other.machine && self.text == other.text && self.functions == other.functions
    }

    /// The loaded executable sections, sorted by address, none empty, none overlapping.
    pub fn text(&self) -> &[TextRange] {
        &self.text
    }

    /// The text range that `address` is in.
    pub(crate) fn text_at(&self, address: crate::Address) -> Option<&TextRange> {
        let after = self.text().partition_point(|text| text.range.start() <= address);
        self.text()[..after].last().filter(|text| address < text.range.end())
    }

    /// The functions, sorted by address, none empty, none overlapping, each inside one text range.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Where the live (relocated, once *finalized*) `.eh_frame` is, if the object has one.
    ///
    /// The range is the section's own. RuntimeDyld puts the terminating zero word *behind* it, in memory only; the
    /// section as the compiler wrote it has none.
    pub fn eh_frame(&self) -> Option<AddressRange> {
        self.eh_frame
    }

    /// Whether it brings a line table, for [`LineRows`](crate::LineRows).
    pub(crate) fn has_lines(&self) -> bool {
        self.has_lines
    }
}
