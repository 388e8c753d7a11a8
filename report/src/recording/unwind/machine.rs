//! Registers, indexed by DWARF register number.

pub(crate) use jitlisten_unwinder::Machine;

use super::StackCopy;

/// Number of stored registers. The DWARF register numbers of aarch64 are 0 to 31.
const REGISTER_COUNT: usize = 32;

/// Unwind rules of all registers at an address.
pub(super) type Row = jitlisten_unwinder::Row<REGISTER_COUNT>;

/// DWARF register number of each `PERF_REG_X86_*`. `NONE` for flags and segment registers.
const PERF_TO_DWARF_X86_64: [usize; 24] = {
    const NONE: usize = usize::MAX;
    [0, 3, 2, 1, 4, 5, 6, 7, 16, NONE, NONE, NONE, NONE, NONE, NONE, NONE, 8, 9, 10, 11, 12, 13, 14, 15]
};
/// Value of `PERF_REG_ARM64_PC`.
const ARM64_PC: usize = 32;

#[derive(Clone, Debug)]
pub(super) struct Registers {
    machine: Machine,
    /// Values by DWARF register number; `None` if unknown in this frame.
    pub(super) values: [Option<u64>; REGISTER_COUNT],
    pub(super) pc: u64,
}

impl Registers {
    pub(super) fn new(machine: Machine, stack_copy: &StackCopy<'_>) -> Option<Registers> {
        let mut registers = Registers { machine, values: [None; REGISTER_COUNT], pc: 0 };
        let numbers = (0..64).filter(|bit| stack_copy.mask >> bit & 1 == 1);
        for (number, value) in numbers.zip(stack_copy.registers.chunks_exact(8)) {
            let value = value.try_into().map(u64::from_le_bytes).ok()?;
            match machine {
                Machine::Aarch64 if number == ARM64_PC => registers.pc = value,
                Machine::Aarch64 => registers.set(number, value),
                Machine::X86_64 => {
                    registers.set(PERF_TO_DWARF_X86_64.get(number).copied().unwrap_or(usize::MAX), value)
                }
            }
        }
        if machine == Machine::X86_64 {
            registers.pc = registers.values[registers.return_column()]?;
        }
        registers.values[registers.stack_column()]?;
        (registers.pc != 0).then_some(registers)
    }

    fn set(&mut self, number: usize, value: u64) {
        if let Some(slot) = self.values.get_mut(number) {
            *slot = Some(value);
        }
    }

    pub(super) fn get(&self, number: u16) -> Option<u64> {
        self.values.get(usize::from(number)).copied().flatten()
    }

    pub(super) fn stack_column(&self) -> usize {
        self.machine.stack_pointer()
    }

    fn frame_column(&self) -> usize {
        self.machine.frame_pointer()
    }

    fn return_column(&self) -> usize {
        self.machine.return_address()
    }

    /// Returns true for a callee-saved register. Without a rule, such a register keeps its value.
    pub(super) fn is_callee_saved(&self, number: usize) -> bool {
        match self.machine {
            Machine::X86_64 => matches!(number, 3 | 6 | 12..=15),
            Machine::Aarch64 => matches!(number, 19..=30),
        }
    }

    pub(super) fn stack_pointer(&self) -> u64 {
        self.values[self.stack_column()].unwrap_or_default()
    }

    /// Strips the pointer authentication code, if any, from a return address.
    pub(super) fn code_address(&self, value: u64) -> u64 {
        self.machine.code_address(value)
    }

    /// Steps to the caller by the frame pointer, which points to the caller's saved frame pointer, below the return
    /// address.
    pub(super) fn step_by_frame_pointer(&mut self, read: &impl Fn(u64) -> Option<u64>) -> bool {
        let mut step = || {
            let frame = self.values[self.frame_column()].filter(|frame| *frame >= self.stack_pointer())?;
            let (caller_frame, return_address) = (read(frame)?, read(frame.checked_add(8)?)?);
            self.set_caller(self.code_address(return_address), frame.checked_add(16)?, caller_frame)
        };
        step().is_some()
    }

    /// Steps to the caller of a CPython perf trampoline, which has one word on the stack. From 3.13 on, that word is
    /// the caller's frame pointer. `in_interpreter` returns true for return addresses in the interpreter.
    pub(super) fn step_over_trampoline(
        &mut self,
        read: &impl Fn(u64) -> Option<u64>,
        in_interpreter: impl Fn(u64) -> bool,
    ) -> bool {
        if self.machine != Machine::X86_64 {
            return false;
        }
        let mut step = || {
            let stack = self.stack_pointer();
            let return_address =
                read(stack.checked_add(8)?).filter(|return_address| in_interpreter(*return_address))?;
            let frame = self.values[self.frame_column()]?;
            let frame = if frame == stack { read(stack)? } else { frame };
            self.set_caller(return_address, stack.checked_add(16)?, frame)
        };
        step().is_some()
    }

    fn set_caller(&mut self, pc: u64, stack: u64, frame: u64) -> Option<()> {
        if pc == 0 {
            return None;
        }
        let (stack_column, frame_column, return_column) =
            (self.stack_column(), self.frame_column(), self.return_column());
        for number in (0..REGISTER_COUNT).filter(|number| !self.is_callee_saved(*number)).collect::<Vec<_>>() {
            self.values[number] = None;
        }
        self.values[stack_column] = Some(stack);
        self.values[frame_column] = Some(frame);
        self.values[return_column] = Some(pc);
        self.pc = pc;
        Some(())
    }
}
