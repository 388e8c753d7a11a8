//! Unwind rules at an instruction, in DWARF terms.

use crate::Offset;

/// Rule for the canonical frame address: register plus constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cfa {
    /// DWARF number of the register.
    pub register: u16,
    /// Offset added to the register, in bytes.
    pub offset: i64,
}

/// Location of the caller's value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedRegister {
    /// DWARF number of the register.
    pub register: u16,
    /// Offset added to the CFA, in bytes; negative.
    pub offset: i64,
}

/// Unwind rules from one instruction on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindRow {
    /// Offset of the instruction from the start of the function.
    pub offset: Offset,
    /// Rule for the CFA.
    pub cfa: Cfa,
    /// Registers saved on the stack, sorted by number. On x86_64 the return address is always at CFA-8 and is not
    /// listed. On AArch64 it is in x30 unless x30 is listed.
    pub saved: Vec<SavedRegister>,
}

/// Appends a row, unless it has the same rules as the last one.
pub(super) fn push(rows: &mut Vec<UnwindRow>, row: UnwindRow) {
    if rows.last().is_none_or(|last| (last.cfa, &last.saved) != (row.cfa, &row.saved)) {
        rows.push(row);
    }
}
