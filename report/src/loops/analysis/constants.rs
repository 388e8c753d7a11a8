//! Constant arguments of calls.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::machine::graph::NaturalLoop;
use crate::machine::{Class, FIRST_VECTOR, Flow, Instruction, Operation, Registers};

/// Counts calls whose second floating-point argument is a constant.
pub(super) fn count_constant_arguments(
    instructions: &[Instruction],
    natural_loop: &NaturalLoop,
    changed: Registers,
) -> u32 {
    const SECOND_ARGUMENT: u8 = FIRST_VECTOR + 1;
    let is_call = |index: &usize| instructions[*index].operation == Operation::Call;
    let calls: Vec<usize> = natural_loop.instructions().filter(is_call).collect();
    if calls.is_empty() {
        return 0;
    }
    let constants = Constants::new(instructions, natural_loop, changed);
    calls.into_iter().filter(|call| constants.holds(*call, SECOND_ARGUMENT, 0)).count() as u32
}

/// Search for constants in registers. It follows straight-line code backwards, and goes through the stack, where
/// compilers keep constants during calls. Where paths join, a register counts as variable.
struct Constants<'a> {
    instructions: &'a [Instruction],
    /// Targets of jumps and branches.
    targets: FxHashSet<u64>,
    stores: FxHashMap<Slot, Vec<usize>>,
    /// First instruction of an innermost loop, and the registers that the loop writes.
    innermost: Option<(usize, Registers)>,
}

/// Registers and constant of an address on the stack.
type Slot = ([Option<(u8, u32)>; 2], i64);

impl Constants<'_> {
    fn new<'a>(instructions: &'a [Instruction], natural_loop: &NaturalLoop, changed: Registers) -> Constants<'a> {
        let targets = instructions.iter().filter_map(|instruction| match instruction.step.flow {
            Flow::Jump(target) | Flow::Branch(target) => target,
            Flow::Next | Flow::Switch | Flow::Leave => None,
        });
        let mut stores: FxHashMap<Slot, Vec<usize>> = FxHashMap::default();
        // Code after a loop that no other loop contains does not lead back to it.
        let last = natural_loop.instructions().max().filter(|_| natural_loop.parent.is_none());
        let end = last.map_or(instructions.len(), |last| last + 1);
        for (index, instruction) in instructions[..end].iter().enumerate() {
            if let Some(memory) = instruction.memory.filter(|memory| memory.is_store && memory.is_stack) {
                stores.entry((memory.parts, memory.offset)).or_default().push(index);
            }
        }
        let first = natural_loop.own_blocks.first().filter(|_| natural_loop.is_innermost);
        let innermost = first.map(|block| (block.start, changed));
        Constants { instructions, targets: targets.collect(), stores, innermost }
    }

    /// Returns the instruction that set a register, if no other path leads to the given one.
    fn writer(&self, mut index: usize, register: u8) -> Option<usize> {
        loop {
            let is_unchanged = |(first, changed): (usize, Registers)| first == index && !changed.contains(register);
            let is_join = self.targets.contains(&self.instructions[index].step.address);
            if is_join && !self.innermost.is_some_and(is_unchanged) {
                return None;
            }
            index = index.checked_sub(1)?;
            let Instruction { step, operation, written, .. } = self.instructions[index];
            // A call may write any register.
            if operation == Operation::Call || !matches!(step.flow, Flow::Next | Flow::Branch(_)) {
                return None;
            }
            if written.contains(register) {
                return Some(index);
            }
        }
    }

    /// Returns true if a register holds a constant at an instruction.
    fn holds(&self, index: usize, register: u8, depth: u32) -> bool {
        const MAX_DEPTH: u32 = 4;
        const MAX_STORES: usize = 8;
        let Some(writer) = self.writer(index, register).filter(|_| depth < MAX_DEPTH) else { return false };
        let Instruction { operation, class, memory, read, .. } = self.instructions[writer];
        let hold_before =
            |index, registers: Registers| registers.numbers().all(|register| self.holds(index, register, depth + 1));
        match memory {
            // A constant in the instruction, or a copy.
            None => read == Registers::default() || operation == Operation::Move && hold_before(writer, read),
            // Arrays are read at more than one address, and therefore through an index or a register that changes.
            Some(_) if class != Class::Other || !matches!(operation, Operation::Move | Operation::Other) => false,
            Some(memory) if !memory.is_stack => hold_before(writer, memory.address),
            Some(slot) => self.stores.get(&(slot.parts, slot.offset)).is_some_and(|stores| {
                let is_constant = |index: &usize| {
                    let Instruction { read, .. } = self.instructions[*index];
                    hold_before(*index, read.and(!slot.address))
                };
                stores.len() <= MAX_STORES && stores.iter().all(is_constant)
            }),
        }
    }
}
