//! aarch64: the frame record `{ x29, x30 }`, in the two ways LLVM and GCC make it.
//!
//! ```text
//!   d503245f          bti c                        (optional)
//!   d503233f          paciasp                      (optional; the return address is signed from here on)
//!
//!   a9b.7bfd          stp x29, x30, [sp, -N]!      CFA = sp       ->  CFA = sp + N, x29 at CFA - N, x30 at CFA - N + 8
//!   910003fd          mov x29, sp                                 ->  CFA = x29 + N
//! or, for larger frames:
//!   d1....ff          sub sp, sp, F                               ->  CFA = sp + F
//!   a9..7bfd          stp x29, x30, [sp, M]                       ->  x29 at CFA - F + M, x30 behind it
//!   91....fd          add x29, sp, M                              ->  CFA = x29 + F - M
//! ```
//! Encodings: Arm Architecture Reference Manual, C6.2 (STP pre-index and signed offset, ADD and SUB immediate); register
//! numbers: "DWARF for the Arm 64-bit Architecture", table 4.1 (29 x29, 30 x30, 31 sp).

use super::{advance, uleb128};

/// The return address's column: x30.
pub(super) const RETURN: u64 = 30;

/// `DW_CFA_def_cfa sp, 0`.
pub(super) const AT_ENTRY: &[u8] = &[0x0c, 31, 0];

const BTI_C: u32 = 0xd503_245f;
const PACIASP: u32 = 0xd503_233f;
/// `DW_CFA_AARCH64_negate_ra_state`.
const NEGATE_RA_STATE: u8 = 0x2d;

/// The call frame instructions, or `None` where the function does not start so.
pub(super) fn rules(prologue: &[u8]) -> Option<Vec<u8>> {
    let words = prologue.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap_or_default()));
    let words: Vec<u32> = words.collect();
    let mut out = Vec::with_capacity(24);
    let (mut at, mut registered) = (0, 0);
    if words.first() == Some(&BTI_C) {
        at += 1;
    }
    if words.get(at) == Some(&PACIASP) {
        at += 1;
        advance(&mut out, at as u64);
        registered = at;
        out.push(NEGATE_RA_STATE);
    }
    let (frame, record, count) = frame_record(words.get(at..)?)?;
    if count == 3 {
        advance(&mut out, (at + 1 - registered) as u64);
        registered = at + 1;
        out.push(0x0e); // DW_CFA_def_cfa_offset
        uleb128(&mut out, frame);
    }
    advance(&mut out, (at + count - 1 - registered) as u64);
    if count == 2 {
        out.push(0x0e);
        uleb128(&mut out, frame);
    }
    let slots = (frame - record) / 8;
    out.push(0x80 | 29); // DW_CFA_offset, in units of -8
    uleb128(&mut out, slots);
    out.push(0x80 | 30);
    uleb128(&mut out, slots - 1);
    advance(&mut out, 1);
    out.extend([0x0c, 29]); // DW_CFA_def_cfa
    uleb128(&mut out, frame - record);
    Some(out)
}

/// (size of the frame so far, offset of the record in it, instructions it takes).
fn frame_record(words: &[u32]) -> Option<(u64, u64, usize)> {
    let [first, second, ..] = *words else { return None };
    // stp x29, x30, [sp, imm7 * 8]!  with a negative immediate, then mov x29, sp
    if first & 0xffc0_7fff == 0xa980_7bfd && second == 0x9100_03fd {
        let imm7 = (first >> 15) & 0x7f;
        let frame = 0x80u32.checked_sub(imm7).filter(|_| imm7 >= 0x40)? * 8;
        return Some((u64::from(frame), 0, 2));
    }
    let third = *words.get(2)?;
    let sub = first & 0xffc0_03ff == 0xd100_03ff;
    let stp = second & 0xffc0_7fff == 0xa900_7bfd;
    let add = third & 0xffc0_03ff == 0x9100_03fd;
    let (frame, record) = (u64::from((first >> 10) & 0xfff), u64::from((second >> 15) & 0x7f) * 8);
    let same = u64::from((third >> 10) & 0xfff) == record;
    (sub && stp && add && same && record + 16 <= frame).then_some((frame, record, 3))
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
    fn another_beginning_gets_no_rules() {
        assert_eq!(rules(&bytes(&[0xd101_03ff, 0xf900_07fe, 0xd65f_03c0])), None, "only x30 is saved");
        assert_eq!(rules(&[]), None);
    }
}
