//! Registers, by the numbers that DWARF has for them.

pub(crate) use jitlisten_unwinder::Machine;

use super::Copied;

/// So many registers have a place here: those of aarch64 are 0 to 31.
const COUNT: usize = 32;

/// Their rules.
pub(super) type Row = jitlisten_unwinder::Row<COUNT>;

/// DWARF's number of each `PERF_REG_X86_*`, in their order; the flags and segments have none.
const X86_64: [usize; 24] = {
    const NONE: usize = usize::MAX;
    [0, 3, 2, 1, 4, 5, 6, 7, 16, NONE, NONE, NONE, NONE, NONE, NONE, NONE, 8, 9, 10, 11, 12, 13, 14, 15]
};
/// `PERF_REG_ARM64_PC`
const ARM64_PC: usize = 32;

/// The state of a frame.
#[derive(Clone, Debug)]
pub(super) struct Registers {
    machine: Machine,
    /// By DWARF's number; none where it is not known any more.
    pub(super) values: [Option<u64>; COUNT],
    pub(super) pc: u64,
}

impl Registers {
    pub(super) fn new(machine: Machine, copied: &Copied<'_>) -> Option<Registers> {
        let mut registers = Registers { machine, values: [None; COUNT], pc: 0 };
        let numbers = (0..64).filter(|bit| copied.mask >> bit & 1 == 1);
        for (number, value) in numbers.zip(copied.registers.chunks_exact(8)) {
            let value = value.try_into().map(u64::from_le_bytes).ok()?;
            match machine {
                Machine::Aarch64 if number == ARM64_PC => registers.pc = value,
                Machine::Aarch64 => registers.set(number, value),
                Machine::X86_64 => registers.set(X86_64.get(number).copied().unwrap_or(usize::MAX), value),
            }
        }
        if machine == Machine::X86_64 {
            registers.pc = registers.values[registers.return_column()]?;
        }
        registers.values[registers.stack_column()]?;
        (registers.pc != 0).then_some(registers)
    }

    fn set(&mut self, number: usize, value: u64) {
        if let Some(place) = self.values.get_mut(number) {
            *place = Some(value);
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

    /// Whether a function has to leave this register as it was, so that without a rule it still is.
    pub(super) fn is_kept(&self, number: usize) -> bool {
        match self.machine {
            Machine::X86_64 => matches!(number, 3 | 6 | 12..=15),
            Machine::Aarch64 => matches!(number, 19..=30),
        }
    }

    pub(super) fn stack_pointer(&self) -> u64 {
        self.values[self.stack_column()].unwrap_or_default()
    }

    /// The address in a return address.
    pub(super) fn address(&self, value: u64) -> u64 {
        self.machine.code_address(value)
    }

    /// The caller by the frame pointer: it points to its own old value, with the return address above.
    pub(super) fn leave_by_frame_pointer(&mut self, read: &impl Fn(u64) -> Option<u64>) -> bool {
        let mut leave = || {
            let frame = self.values[self.frame_column()].filter(|frame| *frame >= self.stack_pointer())?;
            let (before, back) = (read(frame)?, read(frame.checked_add(8)?)?);
            self.go(self.address(back), frame.checked_add(16)?, before)
        };
        leave().is_some()
    }

    /// The caller of one of CPython's trampolines, of which a word is on the stack: with a frame pointer from 3.13 on,
    /// the old value of it. `in_interpreter`: whether a return address is one of the interpreter's.
    pub(super) fn leave_trampoline(
        &mut self,
        read: &impl Fn(u64) -> Option<u64>,
        in_interpreter: impl Fn(u64) -> bool,
    ) -> bool {
        if self.machine != Machine::X86_64 {
            return false;
        }
        let mut leave = || {
            let stack = self.stack_pointer();
            let back = read(stack.checked_add(8)?).filter(|back| in_interpreter(*back))?;
            let frame = self.values[self.frame_column()]?;
            let frame = if frame == stack { read(stack)? } else { frame };
            self.go(back, stack.checked_add(16)?, frame)
        };
        leave().is_some()
    }

    fn go(&mut self, pc: u64, stack: u64, frame: u64) -> Option<()> {
        if pc == 0 {
            return None;
        }
        let (stack_column, frame_column, return_column) =
            (self.stack_column(), self.frame_column(), self.return_column());
        for number in (0..COUNT).filter(|number| !self.is_kept(*number)).collect::<Vec<_>>() {
            self.values[number] = None;
        }
        self.values[stack_column] = Some(stack);
        self.values[frame_column] = Some(frame);
        self.values[return_column] = Some(pc);
        self.pc = pc;
        Some(())
    }
}
