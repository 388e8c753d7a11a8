//! Values of a loop with branches: counts and sums on some of its paths.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::machine::graph::NaturalLoop;
use crate::machine::{Class, Flow, Instruction, Memory, Operation, Registers};

/// Maximum number of blocks of a loop whose counters are counted: the analysis may take a pass for each block.
pub(super) const MAX_COUNTING_BLOCKS: usize = 64;

/// Counts integers that some paths of an iteration increment, in a loop that carries no floating-point values.
pub(super) fn count_branched_counts(
    instructions: &[Instruction],
    natural_loop: &NaturalLoop,
    carried: Registers,
) -> u32 {
    // A counter that decides a branch is that of the loop.
    let decides =
        |index: usize| instructions.get(index + 1).is_some_and(|next| matches!(next.step.flow, Flow::Branch(_)));
    let is_count = |register: &u8| {
        let uses = |index: &usize| (instructions[*index].read | instructions[*index].written).contains(*register);
        let mut all = natural_loop.instructions().filter(uses);
        all.all(|index| instructions[index].advance == Some((*register, 1)) && !decides(index))
    };
    let counts = carried.and(!Registers::VECTORS).numbers().filter(is_count).count() as u32;
    if carried.intersects(Registers::VECTORS) { 0 } else { counts }
}

/// Counts floating-point values that some paths of an iteration add to. Returns 0 if others are carried, too.
pub(super) fn count_branched_sums(body: &[&Instruction], carried: Registers) -> u32 {
    let is_sum = |register: u8| {
        let mut uses = body.iter().filter(|instruction| (instruction.read | instruction.written).contains(register));
        uses.all(|instruction| match instruction.operation {
            Operation::Add(operands) => {
                let own = operands.into_iter().filter(|operand| *operand == Some(register)).count();
                own == 1 && instruction.class == Class::Scalar && instruction.written.contains(register)
            }
            _ => false,
        })
    };
    let vectors = carried.and(Registers::VECTORS);
    if vectors.numbers().all(is_sum) { vectors.numbers().count() as u32 } else { 0 }
}

/// Returns true if the loop only reads memory, and the loaded values decide neither addresses nor later iterations.
pub(super) fn only_reads_in_order(body: &[&Instruction], carried: Registers) -> bool {
    let mut accesses = body.iter().filter_map(|instruction| instruction.memory).peekable();
    // Registers that may hold a loaded value or one computed from it, at any place in the loop.
    let mut loaded = Registers::default();
    loop {
        let is_loaded =
            |instruction: &&&Instruction| instruction.memory.is_some() || instruction.read.intersects(loaded);
        let all = body.iter().filter(is_loaded).fold(loaded, |all, instruction| all | instruction.written);
        if all == loaded {
            break;
        }
        loaded = all;
    }
    let is_plain = |memory: Memory| !memory.is_store && !memory.is_stack && !memory.address.intersects(loaded);
    accesses.peek().is_some() && !carried.intersects(loaded) && accesses.all(is_plain)
}

/// Returns the registers that are live at the header of the loop, without regard to the code after it.
pub(super) fn carried_registers(instructions: &[Instruction], natural_loop: &NaturalLoop) -> Registers {
    let blocks = &natural_loop.own_blocks;
    let by_start: FxHashMap<u64, usize> =
        blocks.iter().enumerate().map(|(block, range)| (instructions[range.start].step.address, block)).collect();
    let successors = |range: &Range<usize>| {
        let step = instructions[range.end - 1].step;
        let targets = match step.flow {
            Flow::Next => [Some(step.end), None],
            Flow::Jump(target) => [target, None],
            Flow::Branch(target) => [target, Some(step.end)],
            // The table is not read: any block may be next.
            Flow::Switch => return (0..blocks.len()).collect(),
            Flow::Leave => [None; 2],
        };
        targets.into_iter().flatten().filter_map(|target| by_start.get(&target).copied()).collect::<Vec<_>>()
    };
    let successors: Vec<Vec<usize>> = blocks.iter().map(successors).collect();
    let mut live = vec![Registers::default(); blocks.len()];
    loop {
        let before = live.clone();
        for (block, range) in blocks.iter().enumerate().rev() {
            let after = successors[block].iter().fold(Registers::default(), |all, next| all | live[*next]);
            let body = instructions[range.clone()].iter().rev();
            live[block] = body.fold(after, |live, instruction| live.and(!instruction.written) | instruction.read);
        }
        if live == before {
            break;
        }
    }
    by_start.get(&instructions[natural_loop.header].step.address).map_or(Registers::default(), |header| live[*header])
}
