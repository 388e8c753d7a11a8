//! Synthesized unwind rules for functions that lack an FDE but keep a frame pointer.
//!
//! LLVM emits no FDE for a function that cannot throw, unless unwind tables were requested. If such code keeps a frame
//! pointer, its rules follow from the few instructions at the start of every such function:
//!
//! ```text
//!   x86_64   push rbp;  mov rbp, rsp               caller's frame: rbp at [rbp], return address at [rbp + 8]
//!   aarch64  stp x29, x30, [sp, -N]!;  mov x29, sp  caller's frame: x29 at [x29], return address at [x29 + 8]
//! ```
//!
//! A function that starts differently gets no rules: a wrong guess would make an unwinder follow a wild pointer,
//! whereas missing rules only end the stack trace.

#![forbid(unsafe_code)]

pub mod aarch64;
pub mod x86_64;

use jitlisten_unwinder::NewCommon;

/// Number of bytes at the start of a function that are inspected.
pub(crate) const MAX_PROLOGUE_BYTES: usize = 32;

/// Number of bytes at the end of a function that are inspected: `pop rbp; ret`.
pub(crate) const MAX_EPILOGUE_BYTES: usize = 2;

/// Architectures that rules can be synthesized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// Returns the target architecture, or `None` if it is unsupported.
    pub(crate) fn current() -> Option<Machine> {
        match () {
            () if cfg!(target_arch = "x86_64") => Some(Machine::X86_64),
            () if cfg!(all(target_arch = "aarch64", target_endian = "little")) => Some(Machine::Aarch64),
            () => None,
        }
    }

    /// Returns the CIE for the rules of [`Machine::rules`].
    pub(crate) fn cie(self) -> NewCommon<'static> {
        match self {
            Machine::X86_64 => NewCommon::plain(1, -8, x86_64::RETURN_COLUMN, x86_64::ENTRY_RULES),
            Machine::Aarch64 => NewCommon::plain(4, -8, aarch64::RETURN_COLUMN, aarch64::ENTRY_RULES),
        }
    }

    /// Returns the call frame instructions for a function of `length` bytes that starts with `prologue` and ends with
    /// `epilogue`, or `None` if it does not set up a frame pointer.
    pub(crate) fn rules(self, prologue: &[u8], epilogue: &[u8], length: u64) -> Option<Vec<u8>> {
        match self {
            Machine::X86_64 => x86_64::rules(prologue, epilogue, length),
            Machine::Aarch64 => aarch64::rules(prologue),
        }
    }
}

/// Appends `DW_CFA_advance_loc` in its shortest form.
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

/// Appends an unsigned LEB128 number.
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
        let encode = |units| {
            let mut out = Vec::new();
            advance(&mut out, units);
            out
        };
        assert_eq!(encode(3), [0x43]);
        assert_eq!(encode(0x40), [0x02, 0x40]);
        assert_eq!(encode(0x1234), [0x03, 0x34, 0x12]);
        assert_eq!(encode(0x12345), [0x04, 0x45, 0x23, 0x01, 0]);
    }
}
