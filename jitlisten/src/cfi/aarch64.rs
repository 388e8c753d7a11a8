//! AArch64: only functions with a frame pointer, read word by word.
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
//! A compiler that keeps a frame pointer keeps `x29` for nothing else between the two, so the body needs no following.
//! Source: Arm Architecture Reference Manual, C6.2 (encodings); AAPCS64, 6.4.6.

use super::rows::{self, Cfa, SavedRegister, UnwindRow};
use crate::Offset;

/// DWARF numbers (AADWARF64, 4.1).
pub(super) const SP: u16 = 31;
pub(super) const X29: u16 = 29;
pub(super) const X30: u16 = 30;

/// The instructions that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// `sp += n`: `add`/`sub sp, sp, #n`, and the write-back of a store or load at `sp`.
    MoveSp(i64),
    /// `stp x29, x30, [sp, #at]`; `moved` is what a pre-index adds to `sp` first.
    SaveFrame {
        at: i64,
        moved: i64,
    },
    /// `ldp x29, x30, [sp, #at]`; `moved` is what a post-index adds to `sp` then.
    RestoreFrame {
        at: i64,
        moved: i64,
    },
    /// `add x29, sp, #n`, `mov x29, sp`
    SetFrame(i64),
    /// `mov sp, x29`, `sub sp, x29, #n`: `sp = x29 + n`
    SpFromFrame(i64),
    /// `paciasp`, `pacibsp`
    Sign,
    /// `ret`, `b`, `br`: the end of a path.
    Leave,
    /// Conditional branches and calls.
    Branch,
    /// Anything else that writes `sp`.
    UnknownSp,
    Other,
}

fn decode(word: u32) -> Word {
    let (rd, rn) = (word & 31, word >> 5 & 31);
    let pair = |scale: i64| (i64::from(word << 10 >> 25 << 25) << 32 >> 57) * scale;
    let frame = rd == 29 && rn == 31 && word >> 10 & 31 == 30;
    match word >> 22 {
        // add, sub (immediate), 64-bit, not shifted or by 12
        code @ (0x244 | 0x245 | 0x344 | 0x345) => {
            let size = i64::from(word >> 10 & 0xfff) << if code & 1 == 1 { 12 } else { 0 };
            let size = if code & 0x100 == 0 { size } else { -size };
            match (rd, rn) {
                (31, 31) => Word::MoveSp(size),
                (29, 31) => Word::SetFrame(size),
                (31, 29) => Word::SpFromFrame(size),
                _ => Word::Other,
            }
        }
        // stp, ldp: pre-index, offset, post-index; the frame record, then any other registers
        0x2a6 if frame => Word::SaveFrame { at: 0, moved: pair(8) },
        0x2a4 if frame => Word::SaveFrame { at: pair(8), moved: 0 },
        0x2a3 if frame => Word::RestoreFrame { at: 0, moved: pair(8) },
        0x2a5 if frame => Word::RestoreFrame { at: pair(8), moved: 0 },
        _ if rn == 31 && word & 0x3a80_0000 == 0x2880_0000 => Word::MoveSp(pair(pair_scale(word))),
        // str, ldr of any register, pre- and post-index: imm9
        _ if rn == 31 && word & 0x3b20_0400 == 0x3800_0400 => {
            Word::MoveSp(i64::from(word << 11 >> 23 << 23) << 32 >> 55)
        }
        _ if matches!(word, 0xd503_233f | 0xd503_237f) => Word::Sign,
        _ if word & 0xffff_fc1f == 0xd65f_0000 || word & 0xffff_fc1f == 0xd61f_0000 => Word::Leave,
        _ if word >> 26 == 5 => Word::Leave,
        // b.cond; cbz, cbnz; tbz, tbnz; bl; blr
        _ if word >> 24 == 0x54 || matches!(word >> 25 & 0x3f, 0x1a | 0x1b) => Word::Branch,
        _ if word >> 26 == 0x25 || word & 0xffff_fc1f == 0xd63f_0000 => Word::Branch,
        // add, sub (extended register); and, orr, eor (immediate)
        _ if rd == 31 && matches!(word >> 21, 0x459 | 0x659) => Word::UnknownSp,
        _ if rd == 31 && matches!(word >> 23, 0x124 | 0x164 | 0x1a4) => Word::UnknownSp,
        // addvl, addpl: by the length of a scalable vector
        _ if rd == 31 && word & 0xffa0_f800 == 0x0420_5000 => Word::UnknownSp,
        _ => Word::Other,
    }
}

/// The unit of a pair's offset: general registers of 32 and 64 bits, vector registers of 32, 64 and 128.
fn pair_scale(word: u32) -> i64 {
    let vector = word >> 26 & 1 == 1;
    match (word >> 30, vector) {
        (2, true) => 16,
        (1, true) | (2, false) => 8,
        _ => 4,
    }
}

fn words(code: &[u8]) -> impl Iterator<Item = (u64, Word)> + '_ {
    let words = code.chunks_exact(4).map(|word| decode(u32::from_le_bytes(word.try_into().unwrap_or_default())));
    words.enumerate().map(|(index, word)| (index as u64 * 4, word))
}

/// Where the prologue ends (the offset behind the instruction that sets `x29`), and `CFA - x29`.
fn prologue(code: &[u8]) -> Option<(u64, i64)> {
    let (mut depth, mut slot) = (0_i64, None);
    for (offset, word) in words(code).take(24) {
        match word {
            Word::SaveFrame { at, moved } => {
                depth -= moved;
                slot = Some(depth - at);
            }
            Word::MoveSp(by) => depth -= by,
            Word::SetFrame(at) => return (slot == Some(depth - at)).then_some((offset + 4, depth - at)),
            // A branch before the frame is made: a path without one (shrink wrapping).
            Word::Leave | Word::Branch | Word::UnknownSp => return None,
            Word::RestoreFrame { .. } | Word::SpFromFrame(_) => return None,
            // A signed return address needs `DW_CFA_AARCH64_negate_ra_state`, for which a row has no place.
            Word::Sign | Word::Other => {}
        }
    }
    None
}

pub(super) fn keeps_frame_pointer(code: &[u8]) -> bool {
    prologue(code).is_some()
}

/// What is known before an instruction: the CFA, and where `x29` and `x30` are (`CFA - address`).
#[derive(Clone, Copy)]
struct Known {
    cfa: Cfa,
    slot: Option<i64>,
}

/// See [`synthesise`](super::synthesise).
pub(super) fn synthesise(code: &[u8]) -> Option<Vec<UnwindRow>> {
    let (body_at, frame) = prologue(code)?;
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
