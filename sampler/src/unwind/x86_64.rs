//! x86_64: registers by DWARF register number (x86-64 psABI, 3.6.2), and the location of the return address.

#![forbid(unsafe_code)]

use jitlisten_unwinder::Machine;

use super::{Memory, Registers, Step};

pub(crate) const MACHINE: Machine = Machine::X86_64;
/// Number of registers: the general ones and the return address.
pub const REGISTERS: usize = 17;
/// Register number of the frame pointer, `rbp`.
pub const FRAME: usize = MACHINE.frame_pointer();
/// Register number of the stack pointer, `rsp`.
pub const STACK: usize = MACHINE.stack_pointer();
/// Register number of the program counter, `rip`.
pub const PROGRAM: usize = 16;
pub(crate) const RETURN_COLUMN: usize = MACHINE.return_address();
/// Registers that a call preserves: `rbx`, `rbp`, `r12` to `r15`.
pub(crate) const SAVED_REGISTERS: [usize; 6] = [3, FRAME, 12, 13, 14, 15];
/// Mask of the registers that a call preserves.
pub(crate) const PRESERVED_MASK: u64 = 1 << 3 | 1 << FRAME | 0xf << 12;
/// True if perf trampolines may occur: up to CPython 3.13, they have neither a frame pointer nor an unwind entry.
pub(crate) const HAS_TRAMPOLINE: bool = true;
/// True if the frame record (saved frame pointer and return address) is the lowest part of a frame.
pub(crate) const FRAME_RECORD_IS_LOWEST: bool = false;

pub(crate) const fn code_address(value: u64) -> u64 {
    MACHINE.code_address(value)
}

/// Never called: on x86_64, unwind tables lead from a signal handler to the interrupted code.
pub(crate) fn unwind_signal_return(_registers: &mut Registers, _memory: &mut impl Memory) -> Step {
    Step::Broken
}
