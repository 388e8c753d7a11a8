//! AArch64: only functions with a frame pointer, read word by word; `unwind-register` knows the words and the prologue.
//!
//! ```text
//!   stp x29, x30, [sp, #-48]!      CFA = sp+0       | sub sp, sp, #48; stp x29, x30, [sp, #32]
//!   mov x29, sp                    CFA = sp+48      | add x29, sp, #32
//!   ...                            CFA = x29+48     | CFA = x29+16
//!   ldp x29, x30, [sp], #48        CFA = x29+48     | ldp x29, x30, [sp, #32]; add sp, sp, #48
//!   ret                            CFA = sp+0
//! ```
//! Only `x29` and `x30` get rules: for the other registers the compiler's own entries are needed.
//!
//! A compiler that keeps a frame pointer uses `x29` for nothing else between prologue and epilogue, so the body need
//! not be followed. Source: Arm Architecture Reference Manual, C6.2 (encodings); AAPCS64, 6.4.6.

use unwind_register::aarch64::{Prologue, Word, prologue, words};

use super::rows::{self, Cfa, SavedRegister, UnwindRow};
use crate::Offset;

/// DWARF numbers (AADWARF64, 4.1).
pub(super) const SP: u16 = 31;
pub(super) const X29: u16 = 29;
pub(super) const X30: u16 = 30;

pub(super) fn keeps_frame_pointer(code: &[u8]) -> bool {
    prologue(code).is_some()
}

/// The state before an instruction: the CFA, and where `x29` and `x30` are (`CFA - address`).
#[derive(Clone, Copy)]
struct Known {
    cfa: Cfa,
    slot: Option<i64>,
}

/// See [`synthesise`](super::synthesise).
pub(super) fn synthesise(code: &[u8]) -> Option<Vec<UnwindRow>> {
    let Prologue { end: body_at, frame } = prologue(code)?;
    if words(code).any(|(_, word)| word == Word::Sign) {
        return None;
    }
    let body = Known { cfa: Cfa { register: X29, offset: frame }, slot: Some(frame) };
    let mut known = Known { cfa: Cfa { register: SP, offset: 0 }, slot: None };
    let mut rows = Vec::new();
    for (offset, word) in words(code) {
        rows::push(&mut rows, known.row(offset));
        known = match word {
            _ if offset + 4 == body_at => body,
            Word::Leave => body,
            Word::RestoreFrame { at, moved } => {
                // The pair lay at sp + at, which is CFA - slot.
                let offset = at.checked_add(known.slot?)?.checked_sub(moved)?;
                Known { cfa: Cfa { register: SP, offset }, slot: None }
            }
            Word::UnknownSp | Word::SpFromFrame(_) if known.cfa.register == SP => return None,
            _ => known.after(word),
        };
    }
    Some(rows)
}

impl Known {
    fn after(mut self, word: Word) -> Self {
        if self.cfa.register != SP {
            return self;
        }
        match word {
            Word::MoveSp(by) => self.cfa.offset -= by,
            Word::SaveFrame { at, moved } => {
                self.cfa.offset -= moved;
                self.slot = Some(self.cfa.offset - at);
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
