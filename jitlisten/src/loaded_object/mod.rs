//! The noun: one object that LLVM has compiled and loaded, parsed once from its debug object.

#![forbid(unsafe_code)]

use crate::{Address, AddressRange, Error};

/// The processor an object was compiled for (`e_machine`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Machine {
    /// `EM_X86_64`
    X86_64,
    /// `EM_AARCH64`
    Aarch64,
}

/// One loaded executable section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRange {
    /// `.text`, `.text.hot`, `.ltext`, ...
    pub section: Box<str>,
    /// Where it is loaded.
    pub range: AddressRange,
}

/// One function of a loaded object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The symbol as it stands in the object (bytes that are not UTF-8 replaced).
    pub linkage_name: Box<str>,
    /// Where its code is.
    pub range: AddressRange,
}

/// What we heard: functions, text ranges and where the live `.eh_frame` is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedObject {
    machine: Machine,
    text: Vec<TextRange>,
    functions: Vec<Function>,
    eh_frame: Option<AddressRange>,
}

impl LoadedObject {
    /// Parses a debug object: an ELF file in memory whose loaded sections carry their load address in `sh_addr`.
    pub fn parse(_debug_object: &[u8]) -> Result<Self, Error> {
        Err(Error::OtherMachine(0))
    }

    /// The machine the code is for.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// The loaded executable sections, sorted by address, none empty, none overlapping.
    pub fn text(&self) -> &[TextRange] {
        &self.text
    }

    /// The functions, sorted by address, none empty, none overlapping, each inside one text range.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Where the live (relocated, once *finalized*) `.eh_frame` is, if the object has one.
    pub fn eh_frame(&self) -> Option<AddressRange> {
        self.eh_frame
    }
}

/// One row of a line table: the code from `address` on comes from `line` of `file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRow {
    /// Absolute address of the first instruction of the row.
    pub address: Address,
    /// Index for [`LineRows::file`].
    pub file: u32,
    /// Line, from 1; 0 where the compiler could not say.
    pub line: u32,
    /// Column, from 1; 0 for the left edge or unknown.
    pub column: u32,
    /// Whether this row only ends a sequence (`DW_LNE_end_sequence`): `address` is the first byte *after* it.
    pub end_sequence: bool,
}

/// The line rows of an object, sorted by address; empty where it has no debug information.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineRows {
    files: Vec<Box<str>>,
    rows: Vec<LineRow>,
}

impl LineRows {
    /// Reads `.debug_line` of a debug object, applying its relocations.
    pub fn parse(_debug_object: &[u8]) -> Result<Self, Error> {
        Ok(LineRows::default())
    }

    /// All rows, sorted by address.
    pub fn rows(&self) -> &[LineRow] {
        &self.rows
    }

    /// The full name of a file: absolute where the DWARF has a compilation directory.
    pub fn file(&self, index: u32) -> Option<&str> {
        self.files.get(index as usize).map(|name| &**name)
    }

    /// File and line of the code at `address`.
    pub fn find(&self, _address: Address) -> Option<(&str, u32)> {
        None
    }
}
