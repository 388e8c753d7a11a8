//! Row of a line table.

use crate::Address;

/// Row of a line table: the code from `address` on comes from `line` of `file`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineRow {
    /// Absolute address of the first instruction of the row.
    pub address: Address,
    /// File index, for [`LineRows::file`](crate::LineRows::file).
    pub file: u32,
    /// Line number from 1; 0 if the compiler assigned no line.
    pub line: u32,
    /// Column from 1; 0 for the left edge, or if unknown.
    pub column: u32,
    /// True if this row only ends a sequence (`DW_LNE_end_sequence`); `address` is then the first byte *after* it.
    pub end_sequence: bool,
}
