//! x86_64: registers in DWARF's order (x86-64 psABI, 3.6.2), and where a return address is.

#![forbid(unsafe_code)]

use jitlisten_unwinder::Machine;

use super::{Memory, Registers, Step};

pub(crate) const MACHINE: Machine = Machine::X86_64;
/// The general registers and the return address.
pub const REGISTERS: usize = 17;
/// `rbp`
pub const FRAME: usize = MACHINE.frame_pointer();
/// `rsp`
pub const STACK: usize = MACHINE.stack_pointer();
/// `rip`
pub const PROGRAM: usize = 16;
/// What an entry calls the return address.
pub(crate) const RETURN: usize = MACHINE.return_address();
/// `rbx`, `rbp`, `r12` to `r15`: a called function gives these back.
pub(crate) const SAVED: [usize; 6] = [3, FRAME, 12, 13, 14, 15];
/// These and no others.
pub(crate) const KEPT: u64 = 1 << 3 | 1 << FRAME | 0xf << 12;
/// CPython's perf trampolines have neither a frame pointer nor an entry, up to 3.13.
pub(crate) const HAS_TRAMPOLINE: bool = true;
/// Whether a frame's record of caller and return address lies below the rest of the frame.
pub(crate) const FRAME_RECORD_IS_LOWEST: bool = false;

/// The address in a return address.
pub(crate) const fn code_address(value: u64) -> u64 {
    MACHINE.code_address(value)
}

/// Tables lead from a signal handler to where the program was.
pub(crate) fn interrupted(_registers: &mut Registers, _memory: &mut impl Memory) -> Step {
    Step::Broken
}
