//! What a producer without ELF objects reports: addresses, names, lines.

#![forbid(unsafe_code)]

use crate::{Address, AddressRange, Machine};

/// Where a function is, and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its code: not empty, at most 4 GiB.
    pub range: AddressRange,
    /// Its name, as a compiler would write it: mangled names are shown readable. Not empty.
    pub name: &'a [u8],
}

/// The code from `address` on, to the next row or to the end of its function, comes from `line` of `file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
