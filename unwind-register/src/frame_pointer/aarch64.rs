//! aarch64 prologues that set up the frame record `{ x29, x30 }`, as emitted by LLVM and GCC. The `cfi` module of
//! jitlisten uses this decoder, too.
//!
//! ```text
//!   d503245f          bti c                        (optional)
//!   d503233f          paciasp                      (optional; the return address is signed from here on)
//!
//!   a9b.7bfd          stp x29, x30, [sp, -N]!      CFA = sp       ->  CFA = sp + N, x29 at CFA - N, x30 at CFA - N + 8
//!   910003fd          mov x29, sp                                 ->  CFA = x29 + N
//! or, for larger frames:
//!   d1....ff          sub sp, sp, F                               ->  CFA = sp + F
//!   a9..7bfd          stp x29, x30, [sp, M]                       ->  x29 at CFA - F + M, x30 right after it
//!   91....fd          add x29, sp, M                              ->  CFA = x29 + F - M
//! ```
//! Encodings: Arm Architecture Reference Manual, C6.2 (STP pre-index and signed offset, ADD and SUB immediate);
//! register numbers: "DWARF for the Arm 64-bit Architecture", table 4.1 (29 x29, 30 x30, 31 sp).

use super::{advance, uleb128};

/// DWARF column of the return address: x30.
pub(super) const RETURN_COLUMN: u8 = 30;

/// `DW_CFA_def_cfa sp, 0`.
pub(super) const ENTRY_RULES: &[u8] = &[0x0c, 31, 0];

/// `DW_CFA_AARCH64_negate_ra_state`.
const NEGATE_RA_STATE: u8 = 0x2d;
const DW_CFA_DEF_CFA: u8 = 0x0c;
const DW_CFA_DEF_CFA_OFFSET: u8 = 0x0e;
const DW_CFA_OFFSET: u8 = 0x80;

/// Returns the call frame instructions, or `None` if the function does not start with such a prologue.
pub(super) fn rules(code: &[u8]) -> Option<Vec<u8>> {
    let Prologue { end, frame } = prologue(code)?;
    let mut out = Vec::with_capacity(24);
    let (mut covered_instructions, mut depth) = (0, 0_i64);
    for (offset, instruction) in instructions(code).take_while(|(offset, _)| *offset < end) {
        let mut rule = Vec::new();
        match instruction {
            Instruction::Sign => rule.push(NEGATE_RA_STATE),
            Instruction::MoveSp(delta) | Instruction::SaveFrame { sp_change: delta, .. } if delta != 0 => {
                depth = depth.checked_sub(delta)?;
                rule.push(DW_CFA_DEF_CFA_OFFSET);
                uleb128(&mut rule, u64::try_from(depth).ok()?);
            }
            _ => {}
        }
        match instruction {
            Instruction::SaveFrame { offset: frame_offset, .. } => {
                // The operand of DW_CFA_offset is in units of -8 bytes.
                let slots = u64::try_from(depth.checked_sub(frame_offset)?).ok().filter(|slot| slot % 8 == 0)? / 8;
                rule.push(DW_CFA_OFFSET | 29);
                uleb128(&mut rule, slots);
                rule.push(DW_CFA_OFFSET | 30);
                uleb128(&mut rule, slots.checked_sub(1)?);
            }
            Instruction::SetFrame(_) => {
                rule.extend([DW_CFA_DEF_CFA, 29]);
                uleb128(&mut rule, u64::try_from(frame).ok()?);
            }
            _ => {}
        }
        if !rule.is_empty() {
            advance(&mut out, offset / 4 + 1 - covered_instructions);
            covered_instructions = offset / 4 + 1;
            out.extend(rule);
        }
    }
    Some(out)
}

/// Classes of instructions that matter for prologues and epilogues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// `sp += n`: `add`/`sub sp, sp, #n`, and the write-back of a store or load at `sp`.
    MoveSp(i64),
    /// `stp x29, x30, [sp, #offset]`; a pre-index first adds `sp_change` to `sp`.
    SaveFrame {
        /// Offset from `sp` in bytes.
        offset: i64,
        /// Change of `sp` in bytes.
        sp_change: i64,
    },
    /// `ldp x29, x30, [sp, #offset]`; a post-index then adds `sp_change` to `sp`.
    RestoreFrame {
        /// Offset from `sp` in bytes.
        offset: i64,
        /// Change of `sp` in bytes.
        sp_change: i64,
    },
    /// `add x29, sp, #n`, `mov x29, sp`
    SetFrame(i64),
    /// `mov sp, x29`, `sub sp, x29, #n`: `sp = x29 + n`
    SpFromFrame(i64),
    /// `paciasp`, `pacibsp`
    Sign,
    /// `ret`, `b`, `br`: the end of a control-flow path.
    Leave,
    /// Conditional branches and calls.
    Branch,
    /// Any other instruction that writes `sp`.
    UnknownSp,
    /// All other instructions.
    Other,
}

fn decode(word: u32) -> Instruction {
    let (rd, rn) = (word & 31, word >> 5 & 31);
    let pair = |scale: i64| (i64::from(word << 10 >> 25 << 25) << 32 >> 57) * scale;
    let frame = rd == 29 && rn == 31 && word >> 10 & 31 == 30;
    match word >> 22 {
        // add, sub (immediate), 64-bit, with or without a shift by 12
        code @ (0x244 | 0x245 | 0x344 | 0x345) => {
            let size = i64::from(word >> 10 & 0xfff) << if code & 1 == 1 { 12 } else { 0 };
            let size = if code & 0x100 == 0 { size } else { -size };
            match (rd, rn) {
                (31, 31) => Instruction::MoveSp(size),
                (29, 31) => Instruction::SetFrame(size),
                (31, 29) => Instruction::SpFromFrame(size),
                _ => Instruction::Other,
            }
        }
        // stp, ldp: pre-index, offset, post-index; the frame record, then any other registers
        0x2a6 if frame => Instruction::SaveFrame { offset: 0, sp_change: pair(8) },
        0x2a4 if frame => Instruction::SaveFrame { offset: pair(8), sp_change: 0 },
        0x2a3 if frame => Instruction::RestoreFrame { offset: 0, sp_change: pair(8) },
        0x2a5 if frame => Instruction::RestoreFrame { offset: pair(8), sp_change: 0 },
        _ if rn == 31 && word & 0x3a80_0000 == 0x2880_0000 => Instruction::MoveSp(pair(pair_scale(word))),
        // str, ldr of any register, pre- and post-index: imm9
        _ if rn == 31 && word & 0x3b20_0400 == 0x3800_0400 => {
            Instruction::MoveSp(i64::from(word << 11 >> 23 << 23) << 32 >> 55)
        }
        _ if matches!(word, 0xd503_233f | 0xd503_237f) => Instruction::Sign,
        _ if word & 0xffff_fc1f == 0xd65f_0000 || word & 0xffff_fc1f == 0xd61f_0000 => Instruction::Leave,
        _ if word >> 26 == 5 => Instruction::Leave,
        // b.cond; cbz, cbnz; tbz, tbnz; bl; blr
        _ if word >> 24 == 0x54 || matches!(word >> 25 & 0x3f, 0x1a | 0x1b) => Instruction::Branch,
        _ if word >> 26 == 0x25 || word & 0xffff_fc1f == 0xd63f_0000 => Instruction::Branch,
        // add, sub (extended register); and, orr, eor (immediate)
        _ if rd == 31 && matches!(word >> 21, 0x459 | 0x659) => Instruction::UnknownSp,
        _ if rd == 31 && matches!(word >> 23, 0x124 | 0x164 | 0x1a4) => Instruction::UnknownSp,
        // addvl, addpl: multiples of the scalable vector length
        _ if rd == 31 && word & 0xffa0_f800 == 0x0420_5000 => Instruction::UnknownSp,
        _ => Instruction::Other,
    }
}

/// Unit of a register pair's offset: 32- and 64-bit general registers; 32-, 64- and 128-bit vector registers.
fn pair_scale(word: u32) -> i64 {
    let vector = word >> 26 & 1 == 1;
    match (word >> 30, vector) {
        (2, true) => 16,
        (1, true) | (2, false) => 8,
        _ => 4,
    }
}

/// Decodes instructions; yields each with its offset.
pub fn instructions(code: &[u8]) -> impl Iterator<Item = (u64, Instruction)> + '_ {
    let words = code.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap_or_default()));
    words.enumerate().map(|(index, word)| (index as u64 * 4, decode(word)))
}

/// A prologue that sets up the frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prologue {
    /// Offset after the instruction that sets `x29`.
    pub end: u64,
    /// `CFA - x29` after that instruction.
    pub frame: i64,
}

/// Decodes the start of a function. Returns `None` if it does not set up a frame pointer first.
pub fn prologue(code: &[u8]) -> Option<Prologue> {
    let (mut depth, mut saved_at) = (0_i64, None);
    for (offset, instruction) in instructions(code).take(24) {
        match instruction {
            Instruction::SaveFrame { offset: frame_offset, sp_change } => {
                depth -= sp_change;
                saved_at = Some(depth - frame_offset);
            }
            Instruction::MoveSp(delta) => depth -= delta,
            Instruction::SetFrame(offset_from_sp) => {
                let frame = depth - offset_from_sp;
                return (saved_at == Some(frame)).then_some(Prologue { end: offset + 4, frame });
            }
            // A branch before the frame setup: one path has no frame (shrink wrapping).
            Instruction::Leave | Instruction::Branch | Instruction::UnknownSp => return None,
            Instruction::RestoreFrame { .. } | Instruction::SpFromFrame(_) => return None,
            Instruction::Sign | Instruction::Other => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn the_usual_function() {
        // stp x29, x30, [sp, #-16]!; mov x29, sp
        let rules = rules(&bytes(&[0xa9bf_7bfd, 0x9100_03fd, 0xd65f_03c0])).expect("it has the prologue");
        assert_eq!(rules, [0x41, 0x0e, 16, 0x80 | 29, 2, 0x80 | 30, 1, 0x41, 0x0c, 29, 16]);
    }

    #[test]
    fn a_large_frame_with_a_signed_return_address() {
        // paciasp; sub sp, sp, #64; stp x29, x30, [sp, #48]; add x29, sp, #48
        let rules = rules(&bytes(&[0xd503_233f, 0xd101_03ff, 0xa903_7bfd, 0x9100_c3fd])).expect("it has the prologue");
        let expected = [0x41, 0x2d, 0x41, 0x0e, 64, 0x41, 0x80 | 29, 2, 0x80 | 30, 1, 0x41, 0x0c, 29, 16];
        assert_eq!(rules, expected);
    }

    #[test]
    fn a_register_is_saved_in_front_of_the_frame_record() {
        // str d8, [sp, #-32]!; stp x29, x30, [sp, #16]; add x29, sp, #16
        let rules = rules(&bytes(&[0xfc1e_0fe8, 0xa901_7bfd, 0x9100_43fd])).expect("it has the prologue");
        assert_eq!(rules, [0x41, 0x0e, 32, 0x41, 0x80 | 29, 2, 0x80 | 30, 1, 0x41, 0x0c, 29, 16]);
    }

    #[test]
    fn another_beginning_gets_no_rules() {
        assert_eq!(rules(&bytes(&[0xd101_03ff, 0xf900_07fe, 0xd65f_03c0])), None, "only x30 is saved");
        assert_eq!(rules(&bytes(&[0xb400_0040, 0xa9bf_7bfd, 0x9100_03fd])), None, "a path without a frame");
        assert_eq!(rules(&[]), None);
    }
}
