//! Code reported by a producer without ELF objects: addresses, names and lines.

use crate::{Address, AddressRange, Machine};

/// Address range and name of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function<'a> {
    /// Code range; not empty, at most 4 GiB.
    pub range: AddressRange,
    /// Name as the compiler writes it; not empty. Sinks demangle mangled names.
    pub name: &'a [u8],
}

/// Row of a line table: the code from `address` to the next row, or to the end of its function, belongs to `line` of
/// `file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line<'a> {
    /// Address of the first byte. Rows outside all functions are ignored.
    pub address: Address,
    /// Full path; empty if unknown.
    pub file: &'a [u8],
    /// Line number from 1; 0 if unknown.
    pub line: u32,
    /// Column from 1; 0 if unknown.
    pub column: u32,
}

/// Unit of code that is reported and freed as a whole.
///
/// ```
/// use jitlisten::producer::raw::{Code, Function, Line};
/// use jitlisten::{Address, AddressRange, Machine};
///
/// let start = Address(0x7000_0000_1000);
/// let functions = [Function::new(AddressRange::new(start, 0x40).ok_or("no such range")?, b"filter")];
/// let lines = [Line::new(start, b"/srv/query.sql", 3).column(7)];
/// let code = Code::new(Machine::HERE, &functions).lines(&lines);
/// assert_eq!(code.functions.len(), 1);
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Code<'a> {
    /// Machine that the code was compiled for.
    pub machine: Machine,
    /// Functions of the code, in any order; at least one.
    pub functions: &'a [Function<'a>],
    /// Line table, in any order. If two rows have the same address, the later one counts.
    pub lines: &'a [Line<'a>],
    /// Address range of the `.eh_frame` in memory. It is read in place, at *finalized* and later, and must stay mapped
    /// until *freeing*.
    pub eh_frame: Option<AddressRange>,
}

impl<'a> Function<'a> {
    /// Creates a function.
    pub fn new(range: AddressRange, name: &'a [u8]) -> Function<'a> {
        Function { range, name }
    }
}

impl<'a> Line<'a> {
    /// Creates a row without a column.
    pub fn new(address: Address, file: &'a [u8], line: u32) -> Line<'a> {
        Line { address, file, line, column: 0 }
    }

    /// Sets the column.
    #[must_use]
    pub fn column(self, column: u32) -> Line<'a> {
        Line { column, ..self }
    }
}

impl<'a> Code<'a> {
    /// Creates code without lines and without an unwind table.
    pub fn new(machine: Machine, functions: &'a [Function<'a>]) -> Code<'a> {
        Code { machine, functions, lines: &[], eh_frame: None }
    }

    /// Sets the line table.
    #[must_use]
    pub fn lines(self, lines: &'a [Line<'a>]) -> Code<'a> {
        Code { lines, ..self }
    }

    /// Sets the address range of the unwind table.
    #[must_use]
    pub fn eh_frame(self, eh_frame: AddressRange) -> Code<'a> {
        Code { eh_frame: Some(eh_frame), ..self }
    }
}
