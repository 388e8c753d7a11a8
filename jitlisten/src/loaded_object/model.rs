//! The parsed object, as seen by the rest of the crate.

use super::budget::Budget;
use super::elf::{Elf, aligned_copy};
use super::parts::{Function, Machine, TextRange};
use super::{functions, text};
use crate::{AddressRange, Error};

/// A parsed object: its functions, text ranges, and the address of its `.eh_frame`.
///
/// ```
/// use jitlisten::LoadedObject;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/lli-14-mcjit-dwarf4.o");
/// # let debug_object = std::fs::read(path)?;
/// let object = LoadedObject::parse(&debug_object)?;
/// for function in object.functions() {
///     println!("{} {}", function.range, function.linkage_name);
/// }
/// assert!(object.eh_frame().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedObject {
    machine: Machine,
    text: Vec<TextRange>,
    functions: Vec<Function>,
    eh_frame: Option<AddressRange>,
    has_lines: bool,
}

impl LoadedObject {
    /// Parses a debug object: an ELF file in memory whose loaded sections have their load address in `sh_addr`.
    ///
    /// An object without a symbol table has text but no functions. An object without loaded sections has neither.
    ///
    /// # Errors
    /// If the bytes are not a 64-bit little-endian ELF file for a supported machine, or are inconsistent.
    pub fn parse(debug_object: &[u8]) -> Result<Self, Error> {
        if let Some(copy) = aligned_copy(debug_object) {
            return Self::parse_aligned(&copy);
        }
        Self::parse_aligned(debug_object)
    }

    fn parse_aligned(debug_object: &[u8]) -> Result<Self, Error> {
        let elf = Elf::parse(debug_object)?;
        // Names in a string table may share suffixes, so their total may exceed the file size, but only slightly.
        let mut name_budget = Budget::new(debug_object.len(), 4);
        let text = text::parse(&elf, &mut name_budget)?;
        let functions = functions::parse(&elf, &text, &mut name_budget)?;
        let eh_frame = elf.loaded_section(b".eh_frame").map(|section| text::range_of(&elf, section)).transpose()?;
        let text = text.into_iter().map(|text| text.text_range).collect();
        Ok(LoadedObject { machine: elf.machine, text, functions, eh_frame, has_lines: elf.has_lines() })
    }

    /// Machine that the code was compiled for.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Returns true if both objects have the same functions at the same addresses.
    pub(crate) fn has_code_of(&self, other: &LoadedObject) -> bool {
        self.machine == other.machine && self.text == other.text && self.functions == other.functions
    }

    /// The loaded executable sections: sorted by address, non-empty, non-overlapping.
    pub fn text(&self) -> &[TextRange] {
        &self.text
    }

    pub(crate) fn text_at(&self, address: crate::Address) -> Option<&TextRange> {
        let next_index = self.text().partition_point(|text| text.range.start() <= address);
        self.text()[..next_index].last().filter(|text| address < text.range.end())
    }

    /// The functions: sorted by address, non-empty, non-overlapping, each inside one text range.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Address range of the `.eh_frame` in memory (relocated once *finalized*), if the object has one.
    ///
    /// The range covers only the section. RuntimeDyld writes a terminating zero word *after* it, in memory only; the
    /// section as compiled ends without it.
    pub fn eh_frame(&self) -> Option<AddressRange> {
        self.eh_frame
    }

    /// Removes the `.eh_frame`, so that no sink reads it.
    pub(crate) fn remove_eh_frame(&mut self) {
        self.eh_frame = None;
    }

    /// Returns true if the object has a line table, for [`LineRows`](crate::LineRows).
    pub(crate) fn has_lines(&self) -> bool {
        self.has_lines
    }
}
