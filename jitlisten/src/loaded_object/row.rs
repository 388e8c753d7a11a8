//! One row of a line table.

use crate::Address;

/// One row of a line table: the code from `address` on comes from `line` of `file`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineRow {
    /// Absolute address of the first instruction of the row.
    pub address: Address,
    /// Index for [`LineRows::file`](crate::LineRows::file).
    pub file: u32,
    /// Line, from 1; 0 where the compiler could not say.
    pub line: u32,
    /// Column, from 1; 0 for the left edge or unknown.
    pub column: u32,
    /// Whether this row only ends a sequence (`DW_LNE_end_sequence`): `address` is the first byte *after* it.
    pub end_sequence: bool,
}
