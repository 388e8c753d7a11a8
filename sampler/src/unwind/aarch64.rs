//! AArch64: registers by DWARF register number (DWARF for the Arm 64-bit Architecture, 4.1), and differences from
//! x86_64.
//!
//! | | x86_64 | AArch64 |
//! | --- | --- | --- |
//! | return address | in the frame, below the CFA | in `x30`, which a function that calls others saves |
//! | signals | an entry marked `S` | the kernel's frame, found by its return address: the vDSO's entry omits the PC |
//! | addresses | plain | may be signed in the upper bits |

#![forbid(unsafe_code)]

use jitlisten_unwinder::Machine;

use super::{Memory, Registers, Step};

pub(crate) const MACHINE: Machine = Machine::Aarch64;
/// Number of registers: `x0` to `x30`, `sp` and the program counter.
pub const REGISTERS: usize = 33;
/// Register number of the frame pointer, `x29`.
pub const FRAME: usize = MACHINE.frame_pointer();
/// Register number of the stack pointer, `sp`.
pub const STACK: usize = MACHINE.stack_pointer();
/// Register number of the program counter.
pub const PROGRAM: usize = 32;
pub(crate) const RETURN_COLUMN: usize = MACHINE.return_address();
/// Registers that a rule may save: `x19` to `x30`. Calls do not preserve `x30`, but it holds the return address.
pub(crate) const SAVED_REGISTERS: [usize; 12] = [19, 20, 21, 22, 23, 24, 25, 26, 27, 28, FRAME, RETURN_COLUMN];
/// Registers that a call preserves, as a mask: `x19` to `x29`.
pub(crate) const PRESERVED_MASK: u64 = 0x7ff << 19;
pub(crate) const HAS_TRAMPOLINE: bool = false;
/// True if the frame record (saved frame pointer and return address) is the lowest part of a frame.
pub(crate) const FRAME_RECORD_IS_LOWEST: bool = true;
/// Distance from the stack pointer to `x0` in the kernel's signal frame (`struct rt_sigframe` and `struct sigcontext`).
/// The other registers, `sp` and the program counter follow.
const SIGNAL_REGISTERS_OFFSET: u64 = 312;
/// Size of the kernel's signal frame.
const SIGNAL_FRAME_BYTES: u64 = 4688;

/// Strips the signature from a return address.
pub(crate) const fn code_address(value: u64) -> u64 {
    MACHINE.code_address(value)
}

/// Moves from the return address of a signal handler to the interrupted code.
pub(crate) fn unwind_signal_return(registers: &mut Registers, memory: &mut impl Memory) -> Step {
    let values = match registers.get(STACK as u64) {
        Some(frame) => read_signal_frame(frame, memory),
        None => read_registers_by_record(registers, memory),
    };
    let Some(values) = values else { return Step::Broken };
    *registers = Registers::new(values);
    Step::Caller { was_signal_frame: true }
}

/// Reads the interrupted registers from the kernel's signal frame.
fn read_signal_frame(frame: u64, memory: &mut impl Memory) -> Option<[u64; REGISTERS]> {
    let mut values = [0; REGISTERS];
    let mut address = frame.wrapping_add(SIGNAL_REGISTERS_OFFSET);
    for value in &mut values {
        (*value, address) = (memory.read(address)?, address.wrapping_add(8));
    }
    Some(values)
}

/// Reads the interrupted registers of a stack that was walked by frame pointers. The kernel stores a record of the
/// interrupted `x29` and `x30` right above its frame, or higher if vector registers enlarge the frame. Both values must
/// match the saved registers.
fn read_registers_by_record(registers: &Registers, memory: &mut impl Memory) -> Option<[u64; REGISTERS]> {
    let record = registers.get(FRAME as u64)?;
    let values = read_signal_frame(record.wrapping_sub(SIGNAL_FRAME_BYTES), memory)?;
    let saved = [memory.read(record)?, memory.read(record.wrapping_add(8))?];
    (saved == [values[FRAME], values[RETURN_COLUMN]]).then_some(values)
}
