//! Walks a stack, from the registers of one moment to the outermost frame.
//!
//! ```text
//!   address --CodeMap--> FrameTable --> Entry --> Row --> caller's registers --> address ...
//! ```
//! The crate `jitlisten-unwinder` parses and evaluates entries.
//!
//! Made for a signal handler: nothing here allocates, takes a lock or follows an unchecked pointer; frames,
//! instructions and operations are bounded. The handler with a walk takes less than 3 KiB of stack on x86_64 (not
//! measured on AArch64, which has twice the registers). [`Memory`] refuses to read unmapped memory. Rules are those of
//! `.eh_frame`, with everything that compilers, linkers and C libraries write: expressions that read memory (realigned
//! frames), signal frames, every general register.
//!
//! A walk is [`Outcome::Complete`] only if an entry marks the outermost frame, as those of `_start` and of a thread's
//! start do. The lack of an entry is not enough.

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

pub use frame_table::FrameTable;
pub use machine::{FRAME, PROGRAM, REGISTERS, STACK};
pub use rule_cache::RuleCache;

use jitlisten_unwinder::Rule;
use machine::{RETURN, code_address};

type Row = jitlisten_unwinder::Row<REGISTERS>;

/// The callee-saved registers, and the caller's address.
const KEPT: u64 = 1 << STACK | 1 << PROGRAM | machine::KEPT;
/// What a trampoline of x86_64 does after its call: `add rsp, 8; ret`. In the upper bytes of a word.
const TRAMPOLINE_END: u64 = u64::from_le_bytes([0x48, 0x83, 0xc4, 0x08, 0xc3, 0, 0, 0]) << 24;
/// A frame larger than this is not believed where only a frame pointer tells.
const LARGEST_FRAME: u64 = 1 << 20;

/// Register values, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    values: [u64; REGISTERS],
    known: u64,
}

impl Registers {
    /// All of them.
    pub fn new(values: [u64; REGISTERS]) -> Self {
        Registers { values, known: (1 << REGISTERS) - 1 }
    }

    /// None but where the stack is, and the program.
    pub fn of(stack: u64, program: u64) -> Self {
        let mut registers = Registers { values: [0; REGISTERS], known: 0 };
        registers.set(STACK, Some(stack));
        registers.set(PROGRAM, Some(program));
        registers
    }

    /// Where the stack is.
    pub fn stack_pointer(&self) -> u64 {
        self.at(STACK)
    }

    pub(crate) fn get(&self, register: u64) -> Option<u64> {
        let register = usize::try_from(register).ok()?;
        self.values.get(register).copied().filter(|_| self.known & 1 << register != 0)
    }

    fn at(&self, register: usize) -> u64 {
        self.values.get(register).copied().unwrap_or(0)
    }

    /// What it is now is not known; what it was is still what [`Registers::at`] returns.
    fn forget(&mut self, register: usize) {
        self.known &= !(1 << register);
    }

    fn set(&mut self, register: usize, value: Option<u64>) {
        if let Some(slot) = self.values.get_mut(register) {
            *slot = value.unwrap_or(0);
            self.known = self.known & !(1 << register) | u64::from(value.is_some()) << register;
        }
    }
}

/// Memory that may not be there.
pub trait Memory {
    /// The word at `address`, if it can be read.
    fn read(&mut self, address: u64) -> Option<u64>;

    /// The walk has crossed a signal handler's frame; the program was there with this stack pointer, perhaps of another
    /// stack.
    fn change_stack(&mut self, _stack_pointer: u64) {}
}

/// The description of the code at an address.
#[derive(Clone, Copy, Debug)]
pub enum Code<'a> {
    /// Its unwind table.
    Table(&'a FrameTable),
    /// CPython's perf trampolines without a frame pointer: `sub rsp, 8; call rcx; add rsp, 8; ret`.
    Trampoline,
    /// Code that has no table.
    Bare,
}

/// Says what code is at an address.
pub trait CodeMap {
    /// `None` where no code is known.
    fn find(&self, address: u64) -> Option<Code<'_>>;

    /// A walk has come to an address that no code is known at.
    fn report_unknown_code(&self) {}

    /// Whether the kernel has put `address` there for a signal handler to return to. Only where tables do not say so.
    fn is_signal_return(&self, _address: u64) -> bool {
        false
    }
}

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// At the outermost frame.
    Complete,
    /// There are more frames than were asked for.
    Truncated,
    /// At code that nothing is known of.
    UnknownCode,
    /// At rules that could not be followed.
    Broken,
}

enum Step {
    Caller { was_signal_frame: bool },
    Outermost,
    UnknownCode,
    Broken,
}

/// Walks from `registers` on and hands every address, and where the stack is there, to `frame`, the innermost first,
/// until that says no.
pub fn walk(
    mut registers: Registers,
    code: &impl CodeMap,
    memory: &mut impl Memory,
    cache: &mut RuleCache,
    mut frame: impl FnMut(u64, u64) -> bool,
) -> Outcome {
    // The innermost address is where the program is, and so is that below a signal handler. All others are where a call
    // returns to, which may be behind the end of the function that called.
    let mut is_exact = true;
    loop {
        let before = registers.at(STACK);
        if !frame(registers.at(PROGRAM), before) {
            return Outcome::Truncated;
        }
        match step(&mut registers, is_exact, code, memory, cache) {
            Step::Outermost => return Outcome::Complete,
            Step::UnknownCode => return Outcome::UnknownCode,
            Step::Broken => return Outcome::Broken,
            Step::Caller { was_signal_frame } => {
                // The stack of a caller is further up, but for a function without a frame where a call puts nothing
                // there; only a signal may have come to another one.
                let next = registers.at(STACK);
                let is_frameless = RETURN != PROGRAM && is_exact && next == before;
                if !was_signal_frame && next <= before && !is_frameless {
                    return Outcome::Broken;
                }
                if was_signal_frame {
                    memory.change_stack(registers.at(STACK));
                }
                is_exact = was_signal_frame;
            }
        }
    }
}

fn step(
    registers: &mut Registers,
    is_exact: bool,
    code: &impl CodeMap,
    memory: &mut impl Memory,
    cache: &mut RuleCache,
) -> Step {
    if code.is_signal_return(registers.at(PROGRAM)) {
        return machine::interrupted(registers, memory);
    }
    match by_table(registers, is_exact, code, memory, cache) {
        Step::Broken if registers.get(STACK as u64).is_none() => by_frame_pointer(registers, code, memory),
        step => step,
    }
}

fn by_table(
    registers: &mut Registers,
    is_exact: bool,
    code: &impl CodeMap,
    memory: &mut impl Memory,
    cache: &mut RuleCache,
) -> Step {
    let address = registers.at(PROGRAM).wrapping_sub(u64::from(!is_exact));
    if let Some(rule) = cache.get(address) {
        return rule.apply(registers, memory);
    }
    match code.find(address) {
        Some(Code::Table(table)) => match table.find(address) {
            Some(entry) => {
                let Some(row) = Row::find(&entry, address, machine::MACHINE) else { return Step::Broken };
                let is_signal_frame = entry.common.is_signal_frame;
                if entry.common.return_address != RETURN as u64 {
                    return Step::Broken;
                }
                if !is_signal_frame {
                    cache.put(address, &row);
                }
                follow(&row, entry.section, is_signal_frame, registers, memory)
            }
            None if is_exact && RETURN == PROGRAM => match by_top_of_stack(registers, code, memory) {
                Step::Broken => by_frame_pointer(registers, code, memory),
                step => step,
            },
            None => by_frame_pointer(registers, code, memory),
        },
        Some(Code::Trampoline) if !is_exact && machine::HAS_TRAMPOLINE => {
            let stack = registers.at(STACK);
            caller(registers, memory, stack.wrapping_add(16), None)
        }
        Some(Code::Trampoline | Code::Bare) => by_frame_pointer(registers, code, memory),
        None => {
            code.report_unknown_code();
            // One that was made a moment ago.
            if !is_exact
                && machine::HAS_TRAMPOLINE
                && memory.read(registers.at(PROGRAM)).is_some_and(|code| code << 24 == TRAMPOLINE_END)
            {
                let stack = registers.at(STACK);
                return caller(registers, memory, stack.wrapping_add(16), None);
            }
            match by_frame_pointer(registers, code, memory) {
                Step::Broken => Step::UnknownCode,
                step => step,
            }
        }
    }
}

/// Moves to the caller, whose frame begins at `frame_address` and whose return address lies right below it.
fn caller(registers: &mut Registers, memory: &mut impl Memory, frame_address: u64, pointer: Option<u64>) -> Step {
    let Some(address) = memory.read(frame_address.wrapping_sub(8)) else { return Step::Broken };
    registers.known &= KEPT;
    if pointer.is_some() {
        registers.set(FRAME, pointer);
    }
    registers.set(STACK, Some(frame_address));
    registers.set(PROGRAM, Some(code_address(address)));
    Step::Caller { was_signal_frame: false }
}

/// A function that pushes nothing and has no table, as kernels of OpenBLAS written by hand: on top of the stack is
/// where it returns to, behind a call in code that has a table.
fn by_top_of_stack(registers: &mut Registers, code: &impl CodeMap, memory: &mut impl Memory) -> Step {
    let stack = registers.at(STACK);
    let Some(address) = memory.read(stack) else { return Step::Broken };
    let called_from = address.wrapping_sub(1);
    let has_table = matches!(code.find(called_from), Some(Code::Table(table)) if table.find(called_from).is_some());
    if !has_table || !memory.read(address.wrapping_sub(8)).is_some_and(|before| ends_with_a_call(before.to_le_bytes()))
    {
        return Step::Broken;
    }
    caller(registers, memory, stack.wrapping_add(8), None)
}

/// `call rel32`, or `FF /2` with as many bytes behind as its operand may have.
fn ends_with_a_call(code: [u8; 8]) -> bool {
    let is_indirect = |length: usize| code[8 - length] == 0xff && code[9 - length] >> 3 & 7 == 2;
    code[3] == 0xe8 || [2, 3, 4, 6, 7].into_iter().any(is_indirect)
}

/// `push rbp; mov rbp, rsp` or `stp x29, x30, [sp, #-N]!; mov x29, sp` has been done, if what the frame pointer points
/// to looks like it.
fn by_frame_pointer(registers: &mut Registers, code: &impl CodeMap, memory: &mut impl Memory) -> Step {
    let Some(frame) = registers.get(FRAME as u64) else { return Step::Broken };
    let distance = frame.wrapping_sub(registers.at(STACK));
    if frame & 7 != 0 || distance >= LARGEST_FRAME {
        return Step::Broken;
    }
    let (saved, address) = (memory.read(frame), memory.read(frame.wrapping_add(8)));
    let (Some(saved), Some(address)) = (saved, address) else { return Step::Broken };
    let called_from = code_address(address);
    if code.find(called_from.wrapping_sub(1)).is_none() && !code.is_signal_return(called_from) {
        return Step::Broken;
    }
    let step = caller(registers, memory, frame.wrapping_add(16), Some(saved));
    if machine::FRAME_RECORD_IS_LOWEST {
        // The rest of the frame is above it: the caller's stack begins there or further up.
        registers.forget(STACK);
    }
    step
}

/// Moves to the caller as the row says.
fn follow(
    row: &Row,
    section: &[u8],
    is_signal_frame: bool,
    registers: &mut Registers,
    memory: &mut impl Memory,
) -> Step {
    if row.rules.get(RETURN) == Some(&Rule::Undefined) {
        return Step::Outermost;
    }
    let known = |register: u64| registers.get(register);
    let mut read = |address: u64| memory.read(address);
    let Some(frame_address) = row.frame_address(section, &known, &mut read) else { return Step::Broken };
    let mut next = *registers;
    if !is_signal_frame {
        next.known &= KEPT;
    }
    next.set(STACK, Some(frame_address));
    for (register, rule) in row.rules.iter().enumerate() {
        let own = match rule {
            // It was not saved, so it is still where the call has put it.
            Rule::Same if register == RETURN && RETURN != PROGRAM => registers.get(RETURN as u64),
            Rule::Same if register == RETURN => None,
            Rule::Same => continue,
            _ => None,
        };
        let value = rule.value(section, frame_address, own, &known, &mut read);
        next.set(register, value);
    }
    let address = next.get(RETURN as u64).map(code_address);
    let (Some(address), Some(_)) = (address, next.get(STACK as u64)) else { return Step::Broken };
    // An address of zero is how a stack ends where no entry says so.
    if address == 0 {
        return Step::Outermost;
    }
    if !is_signal_frame {
        next.forget(RETURN);
    }
    next.set(PROGRAM, Some(address));
    *registers = next;
    Step::Caller { was_signal_frame: is_signal_frame }
}
