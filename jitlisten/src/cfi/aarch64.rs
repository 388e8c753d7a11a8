//! Unwind rules for AArch64 functions with a frame pointer; other functions are not supported. Decoding and prologue
//! analysis are in `unwind-register`.
//!
//! ```text
//!   stp x29, x30, [sp, #-48]!      CFA = sp+0       | sub sp, sp, #48; stp x29, x30, [sp, #32]
//!   mov x29, sp                    CFA = sp+48      | add x29, sp, #32
//!   ...                            CFA = x29+48     | CFA = x29+16
//!   ldp x29, x30, [sp], #48        CFA = x29+48     | ldp x29, x30, [sp, #32]; add sp, sp, #48
//!   ret                            CFA = sp+0
//! ```
//! Only `x29` and `x30` get rules; rules for other registers would require the compiler's own unwind entries.
//!
//! A compiler that keeps a frame pointer uses `x29` for nothing else between prologue and epilogue, so the body need
//! not be analysed. Sources: Arm Architecture Reference Manual, C6.2 (encodings); AAPCS64, 6.4.6.

use unwind_register::aarch64::{Instruction, Prologue, instructions, prologue};

use super::rows::{self, Cfa, SavedRegister, UnwindRow};
use crate::Offset;

/// DWARF register numbers (AADWARF64, 4.1).
pub(super) const SP: u16 = 31;
pub(super) const X29: u16 = 29;
pub(super) const X30: u16 = 30;

pub(super) fn keeps_frame_pointer(code: &[u8]) -> bool {
    prologue(code).is_some()
}

/// Unwind state before an instruction: the CFA, and `CFA - address` of the saved `x29` and `x30`.
#[derive(Clone, Copy)]
struct State {
    cfa: Cfa,
    slot: Option<i64>,
}

/// Derives the unwind rows; see [`synthesise`](super::synthesise).
pub(super) fn synthesise(code: &[u8]) -> Option<Vec<UnwindRow>> {
    let Prologue { end: body_start, frame } = prologue(code)?;
    if instructions(code).any(|(_, instruction)| instruction == Instruction::Sign) {
        return None;
    }
    let body = State { cfa: Cfa { register: X29, offset: frame }, slot: Some(frame) };
    let mut state = State { cfa: Cfa { register: SP, offset: 0 }, slot: None };
    let mut rows = Vec::new();
    for (offset, instruction) in instructions(code) {
        rows::push(&mut rows, state.row(offset));
        state = match instruction {
            _ if offset + 4 == body_start => body,
            Instruction::Leave => body,
            Instruction::RestoreFrame { offset: frame_offset, sp_change } => {
                // The register pair is at sp + frame_offset, which is CFA - slot.
                let offset = frame_offset.checked_add(state.slot?)?.checked_sub(sp_change)?;
                State { cfa: Cfa { register: SP, offset }, slot: None }
            }
            Instruction::UnknownSp | Instruction::SpFromFrame(_) if state.cfa.register == SP => return None,
            _ => state.advance(instruction),
        };
    }
    Some(rows)
}

impl State {
    fn advance(mut self, instruction: Instruction) -> Self {
        if self.cfa.register != SP {
            return self;
        }
        match instruction {
            Instruction::MoveSp(amount) => self.cfa.offset -= amount,
            Instruction::SaveFrame { offset, sp_change } => {
                self.cfa.offset -= sp_change;
                self.slot = Some(self.cfa.offset - offset);
            }
            _ => {}
        }
        self
    }

    fn row(self, offset: u64) -> UnwindRow {
        let saved = self.slot.map_or(Vec::new(), |slot| {
            let pair = [(X29, -slot), (X30, 8 - slot)];
            pair.map(|(register, offset)| SavedRegister { register, offset }).to_vec()
        });
        UnwindRow { offset: Offset(offset), cfa: self.cfa, saved }
    }
}
