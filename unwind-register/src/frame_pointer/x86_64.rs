//! x86_64 prologues (`push rbp; mov rbp, rsp`), and epilogues (`pop rbp; ret`) at the very end of a function. If LLVM
//! has scheduled other instructions in between, the function gets no rules, because that would require the decoder in
//! jitlisten's `cfi` module.
//!
//! ```text
//!   f3 0f 1e fa   endbr64 (where -fcf-protection asked for it)
//!   55            push rbp        CFA = rsp + 8   ->  CFA = rsp + 16, rbp at CFA - 16
//!   48 89 e5      mov rbp, rsp                    ->  CFA = rbp + 16
//!   ...
//!   5d            pop rbp
//!   c3            ret                             ->  CFA = rsp + 8, rbp is the caller's again
//! ```
//! Register numbers: System V ABI, AMD64 supplement, figure 3.36 (6 rbp, 7 rsp, 16 return address). A `ret` in the
//! middle of a function is not handled. Finding it requires a disassembler, and a sample that hits this one instruction
//! only misses one frame.

use super::{advance, uleb128};

/// DWARF column of the return address.
pub(super) const RETURN_COLUMN: u8 = 16;

/// `DW_CFA_def_cfa rsp, 8; DW_CFA_offset ra, 1` (in units of -8).
pub(super) const ENTRY_RULES: &[u8] = &[0x0c, 7, 8, 0x80 | 16, 1];

const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
const PUSH_RBP: &[u8] = &[0x55];
const MOV_RBP_RSP: [&[u8]; 2] = [&[0x48, 0x89, 0xe5], &[0x48, 0x8b, 0xec]];
const RET: u8 = 0xc3;
const POP_RBP: u8 = 0x5d;
const LEAVE: u8 = 0xc9;

/// Returns the offset of `push rbp` if the function starts with `[endbr64] push rbp; mov rbp, rsp`, in either encoding
/// of the `mov`.
pub fn frame_pointer_set_up(code: &[u8]) -> Option<usize> {
    let from_push = code.strip_prefix(ENDBR64).unwrap_or(code);
    let after_push = from_push.strip_prefix(PUSH_RBP)?;
    MOV_RBP_RSP.iter().any(|encoding| after_push.starts_with(encoding)).then_some(code.len() - from_push.len())
}

/// Returns the call frame instructions, or `None` if the function does not start with such a prologue.
pub(super) fn rules(prologue: &[u8], epilogue: &[u8], length: u64) -> Option<Vec<u8>> {
    let before_push = frame_pointer_set_up(prologue)? as u64;
    let mut out = Vec::with_capacity(20);
    advance(&mut out, before_push + 1);
    out.push(0x0e); // DW_CFA_def_cfa_offset
    uleb128(&mut out, 16);
    out.extend([0x80 | 6, 2]); // DW_CFA_offset rbp, 2 (CFA - 16)
    advance(&mut out, 3);
    out.extend([0x0d, 6]); // DW_CFA_def_cfa_register rbp
    let after_prologue = before_push + 4;
    if matches!(epilogue, [POP_RBP | LEAVE, RET]) && length > after_prologue + 1 {
        advance(&mut out, length - 1 - after_prologue);
        out.extend([0x0c, 7, 8, 0xc0 | 6]); // DW_CFA_def_cfa rsp, 8; DW_CFA_restore rbp
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_function() {
        let code = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3];
        let rules = rules(&code, &code[6..], 8).expect("it has the prologue");
        assert_eq!(rules, [0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x43, 0x0c, 7, 8, 0xc6]);
    }

    #[test]
    fn endbr64_moves_everything_by_four_bytes() {
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x8b, 0xec, 0x0f, 0x0b];
        assert_eq!(rules(&code, &code[8..], 10), Some(vec![0x45, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6]));
    }

    #[test]
    fn another_beginning_gets_no_rules() {
        assert_eq!(rules(&[0x48, 0x83, 0xec, 0x08, 0x55], &[], 5), None, "sub rsp, 8 first");
        assert_eq!(rules(&[0x55, 0x53], &[], 2), None, "rbp is pushed, but not set");
        assert_eq!(rules(&[], &[], 0), None);
    }
}
