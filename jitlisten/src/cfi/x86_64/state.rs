//! Effect of an instruction on the known stack layout.

use iced_x86::{Code, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};

use super::RSP;
use crate::cfi::rows::{Cfa, SavedRegister};

/// Callee-saved registers (x86-64 psABI, 3.2.1) and their DWARF numbers, sorted by number.
const CALLEE_SAVED: [(Register, u16); 6] = [
    (Register::RBX, 3),
    (Register::RBP, 6),
    (Register::R12, 12),
    (Register::R13, 13),
    (Register::R14, 14),
    (Register::R15, 15),
];
/// Index of `rbp` in [`CALLEE_SAVED`].
const RBP_INDEX: usize = 1;

/// Known stack layout before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cfi) struct State {
    /// Value of `CFA - rsp`, if known.
    depth: Option<i64>,
    /// Value of `CFA - rbp`, while `rbp` is the frame pointer.
    frame: Option<i64>,
    /// Value of `CFA - address` of the stack slot of each callee-saved register that has been saved.
    saved: [Option<i64>; CALLEE_SAVED.len()],
}

impl State {
    /// State at the first instruction: only the return address is on the stack.
    pub(super) fn at_entry() -> Self {
        State { depth: Some(8), frame: None, saved: [None; CALLEE_SAVED.len()] }
    }

    /// Returns true if the stack is as at entry, so that the function may return or make a tail call.
    pub(super) fn is_like_entry(&self) -> bool {
        self.depth == Some(8) && self.frame.is_none() && self.saved == [None; CALLEE_SAVED.len()]
    }

    pub(super) fn cfa(&self) -> Option<Cfa> {
        let from_frame = self.frame.map(|offset| Cfa { register: 6, offset });
        from_frame.or(self.depth.map(|offset| Cfa { register: RSP, offset }))
    }

    /// Returns true if the rule `CFA = register + offset` holds.
    #[cfg(test)]
    pub(in crate::cfi) fn agrees(&self, cfa: Cfa) -> bool {
        cfa.register == RSP && self.depth == Some(cfa.offset) || cfa.register == 6 && self.frame == Some(cfa.offset)
    }

    pub(super) fn saved(&self) -> Vec<SavedRegister> {
        let registers = CALLEE_SAVED.iter().zip(self.saved);
        registers
            .filter_map(|((_, register), slot)| Some(SavedRegister { register: *register, offset: -slot? }))
            .collect()
    }

    /// Merges the states of two paths; `None` if they contradict each other. With a frame pointer, the stack pointer
    /// may be unknown.
    pub(super) fn join(&self, other: &State) -> Option<State> {
        if (self.frame, self.saved) != (other.frame, other.saved) {
            return None;
        }
        let depth = self.depth.filter(|depth| other.depth == Some(*depth));
        let joined = State { depth, ..self.clone() };
        joined.cfa().is_some().then_some(joined)
    }

    /// State after `instruction`, which must not be a jump; `None` if the stack can no longer be unwound.
    pub(super) fn after_instruction(
        &self,
        instruction: &Instruction,
        info: &mut InstructionInfoFactory,
    ) -> Option<State> {
        let mut next = self.clone();
        match instruction.code() {
            Code::Push_r64 => next.push(instruction.op0_register())?,
            Code::Pop_r64 => next.pop(instruction.op0_register())?,
            Code::Leaveq => {
                next.depth = self.frame;
                next.pop(Register::RBP)?;
            }
            _ if is_move(instruction, Register::RBP, Register::RSP) => {
                next.clobber(RBP_INDEX)?;
                next.frame = self.depth;
            }
            _ if is_move(instruction, Register::RSP, Register::RBP) => {
                next.depth = self.frame;
            }
            _ => next.apply_other(instruction, info)?,
        }
        next.cfa().is_some().then_some(next)
    }

    fn push(&mut self, register: Register) -> Option<()> {
        self.depth = self.depth.map(|depth| depth.saturating_add(8));
        // The first push of a register that still has the caller's value saves it.
        if let Some(slot) = callee_saved_index(register).and_then(|index| self.saved.get_mut(index)) {
            *slot = Some(slot.or(self.depth)?);
        }
        (register != Register::RSP).then_some(())
    }

    fn pop(&mut self, register: Register) -> Option<()> {
        let stack_top = self.depth?;
        self.depth = Some(stack_top.checked_sub(8)?);
        if register == Register::RSP {
            return None;
        }
        let Some(index) = callee_saved_index(register) else { return Some(()) };
        if index == RBP_INDEX {
            self.frame = None;
        }
        let slot = self.saved.get_mut(index)?;
        match *slot {
            // The register has the caller's value again.
            Some(at) if at == stack_top => *slot = None,
            Some(_) => {}
            None => return None,
        }
        Some(())
    }

    /// Records that a callee-saved register is overwritten; `None` if its value has not been saved before.
    fn clobber(&mut self, index: usize) -> Option<()> {
        if index == RBP_INDEX {
            self.frame = None;
        }
        self.saved.get(index).copied().flatten().map(|_| ())
    }

    fn apply_other(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Option<()> {
        let depth = self.depth_after(instruction);
        for usage in info.info(instruction).used_registers() {
            let is_written = !matches!(usage.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead);
            let register = usage.register().full_register();
            if !is_written || instruction.is_call_near() || instruction.is_call_near_indirect() {
                continue;
            }
            if register == Register::RSP {
                self.depth = depth;
            } else if let Some(index) = callee_saved_index(register) {
                self.clobber(index)?;
            }
        }
        // Stores to the save slots need no check: they are undefined behaviour in every language that LLVM compiles.
        Some(())
    }

    /// `CFA - rsp` after an instruction that writes `rsp`; `None` if unknown.
    fn depth_after(&self, instruction: &Instruction) -> Option<i64> {
        let constant = || instruction.immediate(1) as i64;
        match instruction.code() {
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 => self.depth?.checked_add(constant()),
            Code::Add_rm64_imm8 | Code::Add_rm64_imm32 => self.depth?.checked_sub(constant()),
            Code::Lea_r64_m if instruction.memory_index() == Register::None => {
                let base = match instruction.memory_base() {
                    Register::RSP => self.depth,
                    Register::RBP => self.frame,
                    _ => None,
                };
                base?.checked_sub(instruction.memory_displacement64() as i64)
            }
            _ if instruction.is_stack_instruction() => {
                self.depth?.checked_sub(i64::from(instruction.stack_pointer_increment()))
            }
            _ => None,
        }
    }
}

fn callee_saved_index(register: Register) -> Option<usize> {
    CALLEE_SAVED.iter().position(|(saved, _)| *saved == register)
}

pub(super) fn is_move(instruction: &Instruction, to: Register, from: Register) -> bool {
    let is_mov = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64);
    let registers = instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
    is_mov && registers && instruction.op0_register() == to && instruction.op1_register() == from
}
