//! The unwind rules at an instruction, in DWARF's terms.

use crate::Offset;

/// The canonical frame address: a register and a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfa {
    /// DWARF number of the register.
    pub register: u16,
    /// Added to it, in bytes.
    pub offset: i64,
}

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedRegister {
    /// DWARF number of the register.
    pub register: u16,
    /// Added to the CFA, in bytes; negative.
    pub offset: i64,
}

/// The rules from one instruction on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindRow {
    /// From the start of the function.
    pub offset: Offset,
    /// How to find the CFA.
    pub cfa: Cfa,
    /// The registers that are not in themselves, sorted by number. On x86_64 the return address is at CFA-8 always and
    /// is not named; on AArch64 it is in x30 unless x30 is named.
    pub saved: Vec<SavedRegister>,
}

/// Appends a row unless it says what the last one says.
pub(super) fn push(rows: &mut Vec<UnwindRow>, row: UnwindRow) {
    if rows.last().is_none_or(|last| (last.cfa, &last.saved) != (row.cfa, &row.saved)) {
        rows.push(row);
    }
}
