//! How one instruction changes the known state of the stack.

use iced_x86::{Code, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};

use super::RSP;
use crate::cfi::rows::{Cfa, SavedRegister};

/// The callee-saved registers (x86-64 psABI, 3.2.1), with their DWARF numbers; sorted by these.
const CALLEE_SAVED: [(Register, u16); 6] = [
    (Register::RBX, 3),
    (Register::RBP, 6),
    (Register::R12, 12),
    (Register::R13, 13),
    (Register::R14, 14),
    (Register::R15, 15),
];
/// Where `rbp` is in that list.
const RBP: usize = 1;

/// The state before an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cfi) struct State {
    /// `CFA - rsp`.
    depth: Option<i64>,
    /// `CFA - rbp`, while `rbp` is the frame pointer.
    frame: Option<i64>,
    /// For each callee-saved register, `CFA - address` of where it is kept.
    saved: [Option<i64>; CALLEE_SAVED.len()],
}

impl State {
    /// At the first instruction: the return address is on the stack, nothing else.
    pub(super) fn at_entry() -> Self {
        State { depth: Some(8), frame: None, saved: [None; CALLEE_SAVED.len()] }
    }

    /// Whether the stack is as the caller left it, so that the function may return or jump to another.
    pub(super) fn is_like_entry(&self) -> bool {
        self.depth == Some(8) && self.frame.is_none() && self.saved == [None; CALLEE_SAVED.len()]
    }

    pub(super) fn cfa(&self) -> Option<Cfa> {
        let from_frame = self.frame.map(|offset| Cfa { register: 6, offset });
        from_frame.or(self.depth.map(|offset| Cfa { register: RSP, offset }))
    }

    /// Whether `CFA = register + offset` is true.
    #[cfg(test)]
    pub(in crate::cfi) fn agrees(&self, cfa: Cfa) -> bool {
        cfa.register == RSP && self.depth == Some(cfa.offset) || cfa.register == 6 && self.frame == Some(cfa.offset)
    }

    pub(super) fn saved(&self) -> Vec<SavedRegister> {
        let registers = CALLEE_SAVED.iter().zip(self.saved);
        registers.filter_map(|((_, register), at)| Some(SavedRegister { register: *register, offset: -at? })).collect()
    }

    /// What holds on both of two paths. With a frame pointer the stack pointer need not be known.
    pub(super) fn join(&self, other: &State) -> Option<State> {
        if (self.frame, self.saved) != (other.frame, other.saved) {
            return None;
        }
        let depth = self.depth.filter(|depth| other.depth == Some(*depth));
        let joined = State { depth, ..self.clone() };
        joined.cfa().is_some().then_some(joined)
    }

    /// The state behind `instruction`, which does not jump; `None` where that is not enough to unwind.
    pub(super) fn after(&self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Option<State> {
        let mut next = self.clone();
        match instruction.code() {
            Code::Push_r64 => next.push(instruction.op0_register())?,
            Code::Pop_r64 => next.pop(instruction.op0_register())?,
            Code::Leaveq => {
                next.depth = self.frame;
                next.pop(Register::RBP)?;
            }
            _ if is_move(instruction, Register::RBP, Register::RSP) => {
                next.clobber(RBP)?;
                next.frame = self.depth;
            }
            _ if is_move(instruction, Register::RSP, Register::RBP) => {
                next.depth = self.frame;
            }
            _ => next.other(instruction, info)?,
        }
        next.cfa().is_some().then_some(next)
    }

    fn push(&mut self, register: Register) -> Option<()> {
        self.depth = self.depth.map(|depth| depth.saturating_add(8));
        // The first push of a register that still is the caller's is where it is saved.
        if let Some(slot) = place(register).and_then(|place| self.saved.get_mut(place)) {
            *slot = Some(slot.or(self.depth)?);
        }
        (register != Register::RSP).then_some(())
    }

    fn pop(&mut self, register: Register) -> Option<()> {
        let from = self.depth?;
        self.depth = Some(from.checked_sub(8)?);
        if register == Register::RSP {
            return None;
        }
        let Some(place) = place(register) else { return Some(()) };
        if place == RBP {
            self.frame = None;
        }
        let slot = self.saved.get_mut(place)?;
        match *slot {
            // Back in itself.
            Some(at) if at == from => *slot = None,
            Some(_) => {}
            None => return None,
        }
        Some(())
    }

    /// A callee-saved register gets another value: only where it has been saved.
    fn clobber(&mut self, place: usize) -> Option<()> {
        if place == RBP {
            self.frame = None;
        }
        self.saved.get(place).copied().flatten().map(|_| ())
    }

    fn other(&mut self, instruction: &Instruction, info: &mut InstructionInfoFactory) -> Option<()> {
        let depth = self.depth_after(instruction);
        for used in info.info(instruction).used_registers() {
            let written = !matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead);
            let register = used.register().full_register();
            if !written || instruction.is_call_near() || instruction.is_call_near_indirect() {
                continue;
            }
            if register == Register::RSP {
                self.depth = depth;
            } else if let Some(place) = place(register) {
                self.clobber(place)?;
            }
        }
        // Overwriting the saved values themselves is undefined behaviour in every language LLVM compiles.
        Some(())
    }

    /// `CFA - rsp` behind an instruction that writes `rsp`.
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

fn place(register: Register) -> Option<usize> {
    CALLEE_SAVED.iter().position(|(saved, _)| *saved == register)
}

/// `mov to, from`
pub(super) fn is_move(instruction: &Instruction, to: Register, from: Register) -> bool {
    let is_mov = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64);
    let registers = instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
    is_mov && registers && instruction.op0_register() == to && instruction.op1_register() == from
}
