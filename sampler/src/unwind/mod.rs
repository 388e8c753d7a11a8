//! Walks stacks, from one set of registers to the outermost frame.
//!
//! ```text
//!   address --CodeMap--> FrameTable --> Entry --> Row --> caller's registers --> address ...
//! ```
//! The `jitlisten-unwinder` crate parses and evaluates entries.
//!
//! Designed for a signal handler: nothing here allocates, takes a lock or follows an unchecked pointer, and the number
//! of frames, instructions and operations is bounded. A handler that walks a stack takes less than 3 KiB of stack on
//! x86_64 (not measured on AArch64, which has twice the registers). [`Memory`] refuses to read unmapped memory. The
//! unwind rules are those of `.eh_frame`, with everything that compilers, linkers and C libraries emit: expressions
//! that read memory (realigned frames), signal frames, all general registers.
//!
//! A walk is [`Outcome::Complete`] only if an entry marks the outermost frame, as the entries of `_start` and of a
//! thread's start function do. A missing entry is not enough.

#![forbid(unsafe_code)]

#[cfg(target_arch = "aarch64")]
#[path = "aarch64.rs"]
mod machine;
#[cfg(not(target_arch = "aarch64"))]
#[path = "x86_64.rs"]
mod machine;

mod frame_table;
mod rule_cache;
#[cfg(test)]
mod tests;

pub use frame_table::{FrameTable, SectionBytes};
pub use machine::{FRAME, PROGRAM, REGISTERS, STACK};
pub use rule_cache::RuleCache;

use jitlisten_unwinder::Rule;
use machine::{RETURN_COLUMN, code_address};

type Row = jitlisten_unwinder::Row<REGISTERS>;

/// The registers that a call preserves: the callee-saved ones, the stack pointer and the program counter.
const PRESERVED_MASK: u64 = 1 << STACK | 1 << PROGRAM | machine::PRESERVED_MASK;
/// Instructions after the call in a trampoline of x86_64, `add rsp, 8; ret`, in the upper bytes of a word.
const TRAMPOLINE_END: u64 = u64::from_le_bytes([0x48, 0x83, 0xc4, 0x08, 0xc3, 0, 0, 0]) << 24;
/// Maximum size of a frame that is found only through a frame pointer; a larger frame is implausible.
const MAX_FRAME_BYTES: u64 = 1 << 20;

/// Register values, each known or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    values: [u64; REGISTERS],
    known_mask: u64,
}

impl Registers {
    /// Creates registers that are all known.
    pub fn new(values: [u64; REGISTERS]) -> Self {
        Registers { values, known_mask: (1 << REGISTERS) - 1 }
    }

    /// Creates registers with a known stack pointer and program counter, and no other known values.
    pub fn with_stack_and_program(stack: u64, program: u64) -> Self {
        let mut registers = Registers { values: [0; REGISTERS], known_mask: 0 };
        registers.set(STACK, Some(stack));
        registers.set(PROGRAM, Some(program));
        registers
    }

    /// Value of the stack pointer.
    pub fn stack_pointer(&self) -> u64 {
        self.last_value(STACK)
    }

    /// Value of a register, if it is known.
    pub(crate) fn get(&self, register: u64) -> Option<u64> {
        let register = usize::try_from(register).ok()?;
        self.values.get(register).copied().filter(|_| self.known_mask & 1 << register != 0)
    }

    /// Last value of a register, even if it is no longer known.
    fn last_value(&self, register: usize) -> u64 {
        self.values.get(register).copied().unwrap_or(0)
    }

    /// Marks a register as unknown. [`Registers::last_value`] still returns its last value.
    fn forget(&mut self, register: usize) {
        self.known_mask &= !(1 << register);
    }

    fn set(&mut self, register: usize, value: Option<u64>) {
        if let Some(slot) = self.values.get_mut(register) {
            *slot = value.unwrap_or(0);
            self.known_mask = self.known_mask & !(1 << register) | u64::from(value.is_some()) << register;
        }
    }
}

/// Memory that may be unmapped.
pub trait Memory {
    /// Reads the word at `address`, if it is readable.
    fn read(&mut self, address: u64) -> Option<u64>;

    /// Called when the walk has crossed a signal handler's frame. The interrupted code had this stack pointer, which
    /// may be on another stack.
    fn handle_stack_change(&mut self, _stack_pointer: u64) {}
}

/// The unwind information of the code at an address.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// Code with an unwind table.
    Table(&'a FrameTable),
    /// A perf trampoline of CPython without a frame pointer: `sub rsp, 8; call rcx; add rsp, 8; ret`.
    Trampoline,
    /// Code without a table.
    Bare,
}

/// Finds the code at an address.
pub trait CodeMap {
    /// Returns the code at `address`; `None` if it is unknown.
    fn find(&self, address: u64) -> Option<Code<'_>>;

    /// Called when a walk reaches an unknown address.
    fn report_unknown_code(&self) {}

    /// True if `address` is the code that the kernel makes signal handlers return to. Only used where unwind tables do
    /// not mark the signal frame.
    fn is_signal_return(&self, _address: u64) -> bool {
        false
    }
}

/// Result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// The walk reached the outermost frame.
    Complete,
    /// The stack is deeper than requested.
    Truncated,
    /// The walk stopped at unknown code.
    UnknownCode,
    /// The walk stopped because the rules could not be followed.
    Broken,
}

/// Result of unwinding one frame.
enum Step {
    Caller { was_signal_frame: bool },
    Outermost,
    UnknownCode,
    Broken,
}

/// Walks the stack from `registers`. Passes each frame's address and stack pointer to `frame`, innermost first, until
/// it returns false.
pub fn walk(
    mut registers: Registers,
    code: &impl CodeMap,
    memory: &mut impl Memory,
    cache: &mut RuleCache,
    mut frame: impl FnMut(u64, u64) -> bool,
) -> Outcome {
    // The innermost address is exact, and so is that of code interrupted by a signal. All others are return addresses,
    // which may lie after the end of the calling function.
    let mut is_exact = true;
    loop {
        let stack_pointer = registers.last_value(STACK);
        if !frame(registers.last_value(PROGRAM), stack_pointer) {
            return Outcome::Truncated;
        }
        match unwind_frame(&mut registers, is_exact, code, memory, cache) {
            Step::Outermost => return Outcome::Complete,
            Step::UnknownCode => return Outcome::UnknownCode,
            Step::Broken => return Outcome::Broken,
            Step::Caller { was_signal_frame } => {
                // A caller's stack pointer must be higher, except for a frameless function on an architecture whose
                // calls push nothing, and for a signal handler on another stack.
                let caller_stack = registers.last_value(STACK);
                let is_frameless = RETURN_COLUMN != PROGRAM && is_exact && caller_stack == stack_pointer;
                if !was_signal_frame && caller_stack <= stack_pointer && !is_frameless {
                    return Outcome::Broken;
                }
                if was_signal_frame {
                    memory.handle_stack_change(registers.last_value(STACK));
                }
                is_exact = was_signal_frame;
            }
        }
    }
}

/// Unwinds one frame.
fn unwind_frame(
    registers: &mut Registers,
    is_exact: bool,
    code: &impl CodeMap,
    memory: &mut impl Memory,
    cache: &mut RuleCache,
) -> Step {
    if code.is_signal_return(registers.last_value(PROGRAM)) {
        return machine::unwind_signal_return(registers, memory);
    }
    match unwind_by_table(registers, is_exact, code, memory, cache) {
        Step::Broken if registers.get(STACK as u64).is_none() => unwind_by_frame_pointer(registers, code, memory),
        step => step,
    }
}

/// Unwinds one frame by its unwind table, or by the best fallback.
fn unwind_by_table(
    registers: &mut Registers,
    is_exact: bool,
    code: &impl CodeMap,
    memory: &mut impl Memory,
    cache: &mut RuleCache,
) -> Step {
    let address = registers.last_value(PROGRAM).wrapping_sub(u64::from(!is_exact));
    if let Some(rule) = cache.get(address) {
        return rule.apply(registers, memory);
    }
    match code.find(address) {
        Some(Code::Table(table)) => match table.find(address) {
            Some(entry) => {
                let Some(row) = Row::find(&entry, address, machine::MACHINE) else { return Step::Broken };
                let is_signal_frame = entry.common.is_signal_frame;
                if entry.common.return_address != RETURN_COLUMN as u64 {
                    return Step::Broken;
                }
                if !is_signal_frame {
                    cache.put(address, &row);
                }
                apply_row(&row, entry.section, is_signal_frame, registers, memory)
            }
            None if is_exact && RETURN_COLUMN == PROGRAM => match unwind_by_top_of_stack(registers, code, memory) {
                Step::Broken => unwind_by_frame_pointer(registers, code, memory),
                step => step,
            },
            None => unwind_by_frame_pointer(registers, code, memory),
        },
        Some(Code::Trampoline) if !is_exact && machine::HAS_TRAMPOLINE => {
            let stack = registers.last_value(STACK);
            move_to_caller(registers, memory, stack.wrapping_add(16), None)
        }
        Some(Code::Trampoline | Code::Bare) => unwind_by_frame_pointer(registers, code, memory),
        None => {
            code.report_unknown_code();
            // The code may be a trampoline that was only just created.
            if !is_exact
                && machine::HAS_TRAMPOLINE
                && memory.read(registers.last_value(PROGRAM)).is_some_and(|code| code << 24 == TRAMPOLINE_END)
            {
                let stack = registers.last_value(STACK);
                return move_to_caller(registers, memory, stack.wrapping_add(16), None);
            }
            match unwind_by_frame_pointer(registers, code, memory) {
                Step::Broken => Step::UnknownCode,
                step => step,
            }
        }
    }
}

/// Moves to the caller, whose frame ends at `frame_address` and whose return address lies right below it.
fn move_to_caller(
    registers: &mut Registers,
    memory: &mut impl Memory,
    frame_address: u64,
    pointer: Option<u64>,
) -> Step {
    let Some(return_address) = memory.read(frame_address.wrapping_sub(8)) else { return Step::Broken };
    registers.known_mask &= PRESERVED_MASK;
    if pointer.is_some() {
        registers.set(FRAME, pointer);
    }
    registers.set(STACK, Some(frame_address));
    registers.set(PROGRAM, Some(code_address(return_address)));
    Step::Caller { was_signal_frame: false }
}

/// Unwinds a function that pushes nothing and lacks a table, such as OpenBLAS's handwritten kernels. The word on top of
/// the stack is its return address, if it follows a call in code that has a table.
fn unwind_by_top_of_stack(registers: &mut Registers, code: &impl CodeMap, memory: &mut impl Memory) -> Step {
    let stack = registers.last_value(STACK);
    let Some(return_address) = memory.read(stack) else { return Step::Broken };
    let call_address = return_address.wrapping_sub(1);
    let has_table = matches!(code.find(call_address), Some(Code::Table(table)) if table.find(call_address).is_some());
    if !has_table
        || !memory.read(return_address.wrapping_sub(8)).is_some_and(|bytes| ends_with_call(bytes.to_le_bytes()))
    {
        return Step::Broken;
    }
    move_to_caller(registers, memory, stack.wrapping_add(8), None)
}

/// True for code that ends with `call rel32`, or with an indirect call (`FF /2`) of any length.
fn ends_with_call(bytes: [u8; 8]) -> bool {
    let is_indirect = |length: usize| bytes[8 - length] == 0xff && bytes[9 - length] >> 3 & 7 == 2;
    bytes[3] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(is_indirect)
}

/// Unwinds by the frame pointer, if the memory it points to looks like a frame record: `push rbp; mov rbp, rsp` or `stp
/// x29, x30, [sp, #-N]!; mov x29, sp` has run.
fn unwind_by_frame_pointer(registers: &mut Registers, code: &impl CodeMap, memory: &mut impl Memory) -> Step {
    let Some(frame) = registers.get(FRAME as u64) else { return Step::Broken };
    let distance = frame.wrapping_sub(registers.last_value(STACK));
    if frame & 7 != 0 || distance >= MAX_FRAME_BYTES {
        return Step::Broken;
    }
    let (saved, return_address) = (memory.read(frame), memory.read(frame.wrapping_add(8)));
    let (Some(saved), Some(return_address)) = (saved, return_address) else { return Step::Broken };
    let return_target = code_address(return_address);
    if code.find(return_target.wrapping_sub(1)).is_none() && !code.is_signal_return(return_target) {
        return Step::Broken;
    }
    let step = move_to_caller(registers, memory, frame.wrapping_add(16), Some(saved));
    if machine::FRAME_RECORD_IS_LOWEST {
        // The rest of the frame lies above the record, so the caller's stack pointer is unknown.
        registers.forget(STACK);
    }
    step
}

/// Moves to the caller by the rules of a row.
fn apply_row(
    row: &Row,
    section: &[u8],
    is_signal_frame: bool,
    registers: &mut Registers,
    memory: &mut impl Memory,
) -> Step {
    if row.rules.get(RETURN_COLUMN) == Some(&Rule::Undefined) {
        return Step::Outermost;
    }
    let read_register = |register: u64| registers.get(register);
    let mut read = |address: u64| memory.read(address);
    let Some(frame_address) = row.frame_address(section, &read_register, &mut read) else { return Step::Broken };
    let mut next = *registers;
    if !is_signal_frame {
        next.known_mask &= PRESERVED_MASK;
    }
    next.set(STACK, Some(frame_address));
    for (register, rule) in row.rules.iter().enumerate() {
        let own_value = match rule {
            // A return address that was not saved is still in its register.
            Rule::Same if register == RETURN_COLUMN && RETURN_COLUMN != PROGRAM => registers.get(RETURN_COLUMN as u64),
            Rule::Same if register == RETURN_COLUMN => None,
            Rule::Same => continue,
            _ => None,
        };
        let value = rule.value(section, frame_address, own_value, &read_register, &mut read);
        next.set(register, value);
    }
    let address = next.get(RETURN_COLUMN as u64).map(code_address);
    let (Some(address), Some(_)) = (address, next.get(STACK as u64)) else { return Step::Broken };
    // A zero return address ends a stack whose outermost frame is not marked by an entry.
    if address == 0 {
        return Step::Outermost;
    }
    if !is_signal_frame {
        next.forget(RETURN_COLUMN);
    }
    next.set(PROGRAM, Some(address));
    *registers = next;
    Step::Caller { was_signal_frame: is_signal_frame }
}
