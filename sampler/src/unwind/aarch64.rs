//! AArch64: registers in DWARF's order (DWARF for the Arm 64-bit Architecture, 4.1), and what differs from x86_64.
//!
//! | | x86_64 | AArch64 |
//! | --- | --- | --- |
//! | return address | in the frame, below the CFA | in `x30`, which a function that calls others saves |
//! | signals | an entry marked `S` | the kernel's frame, by its return address: the vDSO's entry omits the PC |
//! | addresses | as they are | may be signed in the upper bits |

#![forbid(unsafe_code)]

use jitlisten_unwinder::Machine;

use super::{Memory, Registers, Step};

pub(crate) const MACHINE: Machine = Machine::Aarch64;
/// `x0` to `x30`, `sp` and the program counter.
pub const REGISTERS: usize = 33;
/// `x29`
pub const FRAME: usize = MACHINE.frame_pointer();
/// `sp`
pub const STACK: usize = MACHINE.stack_pointer();
/// The program counter.
pub const PROGRAM: usize = 32;
/// `x30`, what an entry calls the return address.
pub(crate) const RETURN: usize = MACHINE.return_address();
/// `x19` to `x30`. No function restores the last, but it holds the return address.
pub(crate) const SAVED: [usize; 12] = [19, 20, 21, 22, 23, 24, 25, 26, 27, 28, FRAME, RETURN];
/// `x19` to `x29`
pub(crate) const KEPT: u64 = 0x7ff << 19;
pub(crate) const HAS_TRAMPOLINE: bool = false;
pub(crate) const FRAME_RECORD_IS_LOWEST: bool = true;
/// From the stack pointer to `x0` in the kernel's frame of a signal (`struct rt_sigframe` and `struct sigcontext`); the
/// others, `sp` and the program counter follow.
const SIGNAL_REGISTERS: u64 = 312;
/// Its size.
const SIGNAL_FRAME: u64 = 4688;

/// The address in a return address.
pub(crate) const fn code_address(value: u64) -> u64 {
    MACHINE.code_address(value)
}

/// Moves from a signal handler's return to where the program was.
pub(crate) fn interrupted(registers: &mut Registers, memory: &mut impl Memory) -> Step {
    let values = match registers.get(STACK as u64) {
        Some(frame) => in_signal_frame(frame, memory),
        None => by_record(registers, memory),
    };
    let Some(values) = values else { return Step::Broken };
    *registers = Registers::new(values);
    Step::Caller { was_signal_frame: true }
}

fn in_signal_frame(frame: u64, memory: &mut impl Memory) -> Option<[u64; REGISTERS]> {
    let mut values = [0; REGISTERS];
    let mut place = frame.wrapping_add(SIGNAL_REGISTERS);
    for value in &mut values {
        (*value, place) = (memory.read(place)?, place.wrapping_add(8));
    }
    Some(values)
}

/// Of a stack that was followed by frame pointers: the kernel puts a record with the program's `x29` and `x30` above
/// its own frame, right above it where no vector registers make that larger. Both must be the same.
fn by_record(registers: &Registers, memory: &mut impl Memory) -> Option<[u64; REGISTERS]> {
    let record = registers.get(FRAME as u64)?;
    let values = in_signal_frame(record.wrapping_sub(SIGNAL_FRAME), memory)?;
    let saved = [memory.read(record)?, memory.read(record.wrapping_add(8))?];
    (saved == [values[FRAME], values[RETURN]]).then_some(values)
}
