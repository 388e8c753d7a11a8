//! Rules for functions that have none, but keep a frame pointer.
//!
//! LLVM writes no FDE for a function it believes not to throw, unless it was asked for unwind tables. If such code
//! keeps a frame pointer, the rules can be had from the few instructions every such function starts with:
//!
//! ```text
//!   x86_64   push rbp;  mov rbp, rsp               caller's frame: rbp at [rbp], return address at [rbp + 8]
//!   aarch64  stp x29, x30, [sp, -N]!;  mov x29, sp  caller's frame: x29 at [x29], return address at [x29 + 8]
//! ```
//!
//! The instructions are compared with the bytes that are there. A function that starts in another way gets no rules: a
//! wrong guess would make an unwinder follow a wild pointer, and a missing rule only ends the stack.

#![forbid(unsafe_code)]

pub mod aarch64;
pub mod x86_64;

use crate::cfi::Cie;

/// How many bytes of a function's beginning the rules are read from.
pub(crate) const PROLOGUE: usize = 32;

/// How many bytes of a function's end: `pop rbp; ret`.
pub(crate) const EPILOGUE: usize = 2;

/// The machine this process runs on, as far as frame pointers are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// The machine this was compiled for.
    pub(crate) fn here() -> Option<Machine> {
        match () {
            () if cfg!(target_arch = "x86_64") => Some(Machine::X86_64),
            () if cfg!(all(target_arch = "aarch64", target_endian = "little")) => Some(Machine::Aarch64),
            () => None,
        }
    }

    /// The CIE the rules of [`Machine::rules`] refer to.
    pub(crate) fn cie(self) -> Cie<'static> {
        match self {
            Machine::X86_64 => Cie::made(1, -8, x86_64::RETURN, x86_64::AT_ENTRY),
            Machine::Aarch64 => Cie::made(4, -8, aarch64::RETURN, aarch64::AT_ENTRY),
        }
    }

    /// The call frame instructions for a function of `length` bytes that starts with `prologue` and ends with
    /// `epilogue`.
    pub(crate) fn rules(self, prologue: &[u8], epilogue: &[u8], length: u64) -> Option<Vec<u8>> {
        match self {
            Machine::X86_64 => x86_64::rules(prologue, epilogue, length),
            Machine::Aarch64 => aarch64::rules(prologue),
        }
    }
}

/// `DW_CFA_advance_loc`, in the smallest form.
fn advance(out: &mut Vec<u8>, units: u64) {
    match units {
        0 => {}
        1..0x40 => out.push(0x40 | units as u8),
        0x40..0x100 => out.extend([0x02, units as u8]),
        0x100..0x1_0000 => out.extend([0x03, units as u8, (units >> 8) as u8]),
        _ => {
            out.push(0x04);
            out.extend((units as u32).to_le_bytes());
        }
    }
}

/// An unsigned LEB128 number.
fn uleb128(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advance_takes_the_smallest_form() {
        let form = |units| {
            let mut out = Vec::new();
            advance(&mut out, units);
            out
        };
        assert_eq!(form(3), [0x43]);
        assert_eq!(form(0x40), [0x02, 0x40]);
        assert_eq!(form(0x1234), [0x03, 0x34, 0x12]);
        assert_eq!(form(0x12345), [0x04, 0x45, 0x23, 0x01, 0]);
    }
}
