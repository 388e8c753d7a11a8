//! Exits of a loop, and the paths through it.

use std::ops::Range;

use crate::machine::graph::NaturalLoop;
use crate::machine::{Flow, Instruction, Registers};

/// Returns true if the code at a loop exit returns 1, the status of a Numba function that raises an exception.
pub(super) fn raises_exception(instructions: &[Instruction], mut index: usize) -> bool {
    const MAX_EXIT_INSTRUCTIONS: usize = 64;
    let mut status = None;
    for _ in 0..MAX_EXIT_INSTRUCTIONS {
        let Some(instruction) = instructions.get(index) else { return false };
        status = instruction.status.unwrap_or(status);
        index = match instruction.step.flow {
            Flow::Next => index + 1,
            Flow::Jump(Some(target)) => {
                match instructions.binary_search_by_key(&target, |instruction| instruction.step.address) {
                    Ok(target) => target,
                    Err(_) => return false,
                }
            }
            Flow::Leave => return status == Some(1),
            Flow::Jump(None) | Flow::Switch | Flow::Branch(_) => return false,
        };
    }
    false
}

/// Counts exits decided by an integer comparison whose operands were not loaded in the same block.
pub(super) fn count_counted_exits(natural_loop: &NaturalLoop, instructions: &[Instruction]) -> u32 {
    let is_counted = |range: &Range<usize>| {
        let mut loaded = Registers::default();
        let mut counted = false;
        for instruction in &instructions[range.clone()] {
            let is_from_memory = instruction.memory.is_some() || instruction.read.intersects(loaded);
            if instruction.sets_flags {
                counted = !is_from_memory && !instruction.has_vectors();
            }
            loaded = loaded.and(!instruction.written);
            if is_from_memory {
                loaded |= instruction.loaded();
            }
        }
        counted
    };
    let leaves = |range: &&Range<usize>| {
        let Some(last) = range.end.checked_sub(1).map(|index| instructions[index].step) else { return false };
        let is_inside =
            |address: u64| natural_loop.instructions().any(|index| instructions[index].step.address == address);
        match last.flow {
            Flow::Branch(target) => !(target.is_some_and(is_inside) && is_inside(last.end)),
            _ => false,
        }
    };
    natural_loop.own_blocks.iter().filter(leaves).filter(|range| is_counted(range)).count() as u32
}

/// Returns true if every iteration passes the same blocks, in the order of their addresses. Blocks that only branch, as
/// for the second half of a comparison, may be skipped.
pub(super) fn has_single_path(instructions: &[Instruction], natural_loop: &NaturalLoop) -> bool {
    let start = |block: &Range<usize>| instructions[block.start].step.address;
    let only_branches = |block: &Range<usize>| {
        let mut body = instructions[block.clone()].iter();
        body.all(|instruction| instruction.written == Registers::default() && instruction.memory.is_none())
    };
    let is_inside = |address: &u64| natural_loop.own_blocks.iter().any(|block| start(block) == *address);
    let blocks: Vec<&Range<usize>> = natural_loop.own_blocks.iter().filter(|block| !only_branches(block)).collect();
    let is_skipped = |address: &u64| is_inside(address) && !blocks.iter().any(|block| start(block) == *address);
    let leads_to = |block: &Range<usize>, next: u64| {
        let Some(step) = block.end.checked_sub(1).map(|last| instructions[last].step) else { return false };
        let targets = match step.flow {
            Flow::Next => [Some(step.end), None],
            Flow::Jump(target) => [target, None],
            Flow::Branch(target) => [target, Some(step.end)],
            Flow::Switch | Flow::Leave => return false,
        };
        let inside: Vec<u64> = targets.into_iter().flatten().filter(is_inside).collect();
        !inside.is_empty() && inside.iter().all(|target| *target == next || is_skipped(target))
    };
    let nexts = blocks.iter().skip(1).chain(blocks.first());
    blocks.iter().zip(nexts).all(|(block, next)| leads_to(block, start(next)))
}
