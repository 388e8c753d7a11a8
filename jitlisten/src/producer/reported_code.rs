//! The report of a producer without ELF objects: addresses, names, lines.

#![forbid(unsafe_code)]

use crate::{Address, AddressRange, Machine};

/// Where a function is, and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function<'a> {
    /// Its code: not empty, at most 4 GiB.
    pub range: AddressRange,
    /// Its name, as a compiler would write it: mangled names are shown readable. Not empty.
    pub name: &'a [u8],
}

/// The code from `address` on, to the next row or to the end of its function, comes from `line` of `file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line<'a> {
    /// The first byte. Rows outside all functions are left out.
    pub address: Address,
    /// The full path; empty where it is not known.
    pub file: &'a [u8],
    /// From 1; 0 where it is not known.
    pub line: u32,
    /// From 1; 0 where it is not known.
    pub column: u32,
}

/// A piece of code that comes and goes as one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Code<'a> {
    /// The machine it is for.
    pub machine: Machine,
    /// At least one; in any order.
    pub functions: &'a [Function<'a>],
    /// In any order. Of two at one address the later counts.
    pub lines: &'a [Line<'a>],
    /// Where its `.eh_frame` is in memory. It is read there, at *finalized* and later, and must stay until *freeing*.
    pub eh_frame: Option<AddressRange>,
}

impl<'a> Function<'a> {
    /// The function called `name`.
    pub fn new(range: AddressRange, name: &'a [u8]) -> Function<'a> {
        Function { range, name }
    }
}

impl<'a> Line<'a> {
    /// A row without a column.
    pub fn new(address: Address, file: &'a [u8], line: u32) -> Line<'a> {
        Line { address, file, line, column: 0 }
    }

    /// The same with a column.
    #[must_use]
    pub fn column(self, column: u32) -> Line<'a> {
        Line { column, ..self }
    }
}

impl<'a> Code<'a> {
    /// Functions without lines and without an unwind table.
    pub fn new(machine: Machine, functions: &'a [Function<'a>]) -> Code<'a> {
        Code { machine, functions, lines: &[], eh_frame: None }
    }

    /// The same with lines.
    #[must_use]
    pub fn lines(self, lines: &'a [Line<'a>]) -> Code<'a> {
        Code { lines, ..self }
    }

    /// The same with the unwind table that is in memory there.
    #[must_use]
    pub fn eh_frame(self, eh_frame: AddressRange) -> Code<'a> {
        Code { eh_frame: Some(eh_frame), ..self }
    }
}
