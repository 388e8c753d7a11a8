//! Inference of a line for code at line 0, from the surrounding instructions of its basic block.
//!
//! LLVM drops the location of an instruction that it moves, merges or splits, for example of the calls in a vectorised
//! `np.sin`. If the nearest located instructions before and after it have the same line, the instruction gets that
//! line. If they are in different calls inlined at one line, it gets the line of these calls. At the start or end of a
//! block, a single neighbour decides.
//!
//! If a block has no line at all and is entered only from above, it gets the line shared by the nearest located
//! instructions before and after it, up to the point where other code joins. An example is the checks before a
//! vectorised loop. The same holds for a block of a single instruction. A block that is reached by jumps gets the line
//! shared by the ends of all blocks before it and the starts of all blocks after it. An example is a case of a `switch`
//! that only copies a value, as for `t[i]` with a tuple `t`.
//!
//! If the neighbours disagree and the instruction directly follows the first of them, it gets that line, because a
//! sample there usually waited for it.
//!
//! If the neighbours disagree, a neighbour in the same inlined call decides. If neither neighbour is in that call, the
//! line of the call itself is used. LLVM merges common code of the branches of an `if`, for example a store to `a[i]`
//! in each, into one block after the branches, at line 0. That block gets the last line of the branches if they agree,
//! otherwise the line of the fork, which is the `if`.

use std::collections::BTreeSet;
use std::ops::Range;

use super::source_frame::SourceFrame;
use crate::machine::graph::{Branches, Direction};
use crate::machine::{Flow, Step};

/// Maximum number of code bytes to decode per function; the rest is skipped.
const MAX_FUNCTION_BYTES: u64 = 256 << 10;
/// Maximum number of instructions to search, in each direction, for a neighbour that has a line.
const MAX_SEARCHED_INSTRUCTIONS: usize = 400;
const MAX_SEARCHED_BLOCKS: usize = 64;

/// Instructions of a function, and the starts of its basic blocks.
pub(super) struct Blocks {
    instructions: Vec<u64>,
    starts: BTreeSet<u64>,
    /// Starts of blocks that are branch targets, or that the preceding block does not fall through to.
    joins: BTreeSet<u64>,
    branches: Option<Branches>,
}

impl Blocks {
    pub(super) fn decoded_length(range: &Range<u64>) -> usize {
        (range.end - range.start).min(MAX_FUNCTION_BYTES) as usize
    }

    pub(super) fn new(function: &[Step]) -> Blocks {
        let mut starts: BTreeSet<u64> = function.first().map(|step| step.address).into_iter().collect();
        let mut joins = starts.clone();
        for step in function {
            if let Flow::Jump(Some(target)) | Flow::Branch(Some(target)) = step.flow {
                starts.insert(target);
                joins.insert(target);
            }
            match step.flow {
                Flow::Next => continue,
                Flow::Branch(_) => {}
                Flow::Jump(_) | Flow::Switch | Flow::Leave => drop(joins.insert(step.end)),
            }
            starts.insert(step.end);
        }
        let instructions = function.iter().map(|step| step.address).collect();
        Blocks { instructions, starts, joins, branches: Branches::new(function) }
    }

    /// Returns the inferred frames of an address, innermost first. `frames` looks up the frames of any address.
    pub(super) fn infer_frames(
        &self,
        address: u64,
        mut frames: impl FnMut(u64) -> Vec<SourceFrame>,
    ) -> Option<Vec<SourceFrame>> {
        let block = *self.starts.range(..=address).next_back()?..self.starts.range(address + 1..).next().copied()?;
        let next_index = self.instructions.partition_point(|start| *start <= address);
        let own_frames = frames(address);
        let mut located = |start: &u64| Some(frames(*start)).filter(|frames| has_line(frames));
        let is_in_block = |start: &&u64| block.contains(start);
        let preceding = self.instructions[..next_index]
            .iter()
            .rev()
            .take_while(is_in_block)
            .take(MAX_SEARCHED_INSTRUCTIONS)
            .find_map(&mut located);
        let following = self.instructions[next_index..]
            .iter()
            .take_while(is_in_block)
            .take(MAX_SEARCHED_INSTRUCTIONS)
            .find_map(&mut located);
        let inferred = match (preceding, following) {
            (Some(preceding), Some(following)) => {
                let shared = common_callers(&preceding, &following);
                // A line shared outside of the inlined call is less precise than a line in that call.
                let is_less_precise = shared.as_ref().is_none_or(|shared| shared.len() < own_frames.len());
                let directly_preceding = next_index.checked_sub(2).map(|index| self.instructions[index]);
                let directly_preceding = directly_preceding.filter(|start| block.contains(start));
                let adjacent = directly_preceding.and_then(|start| line_in_call(&own_frames, &located(&start)?));
                let in_same_call = is_less_precise.then(|| line_in_same_call(&own_frames, &preceding, &following));
                in_same_call.flatten().or(shared).or(adjacent)
            }
            (None, None) => {
                let shared_by_neighbours = self.surrounding_code(&block).and_then(|(preceding, following)| {
                    let preceding = preceding.iter().rev().take(MAX_SEARCHED_INSTRUCTIONS).find_map(&mut located)?;
                    common_callers(
                        &preceding,
                        &following.iter().take(MAX_SEARCHED_INSTRUCTIONS).find_map(&mut located)?,
                    )
                });
                shared_by_neighbours
                    .or_else(|| self.infer_from_neighbours(next_index.checked_sub(1)?, &mut located))
                    .or_else(|| self.infer_from_branches(next_index.checked_sub(1)?, &own_frames, located))
            }
            (preceding, following) => preceding.or(following),
        };
        inferred.or_else(|| own_frames.get(1..).filter(|call| has_line(call)).map(<[SourceFrame]>::to_vec))
    }

    /// Returns the line that the ends of all blocks before an instruction's block share with the starts of all blocks
    /// after it. The search continues beyond blocks without a line.
    fn infer_from_neighbours(
        &self,
        instruction: usize,
        mut located: impl FnMut(&u64) -> Option<Vec<SourceFrame>>,
    ) -> Option<Vec<SourceFrame>> {
        let branches = self.branches.as_ref()?;
        let block = branches.block_of(instruction)?;
        let mut shared: Option<Vec<SourceFrame>> = None;
        for direction in [Direction::Backward, Direction::Forward] {
            let mut seen = BTreeSet::from([block]);
            let mut pending = branches.neighbours(block, direction).to_vec();
            // A path that ends here may have come from any line.
            if pending.is_empty() {
                return None;
            }
            while let Some(next) = pending.pop() {
                // A loop without a line is not part of the code around it.
                if next == block {
                    return None;
                }
                if !seen.insert(next) {
                    continue;
                }
                let instructions = self.instructions[branches.instructions(next)].iter();
                let frames = match direction {
                    Direction::Backward => instructions.rev().take(MAX_SEARCHED_INSTRUCTIONS).find_map(&mut located),
                    Direction::Forward => instructions.take(MAX_SEARCHED_INSTRUCTIONS).find_map(&mut located),
                };
                match frames {
                    Some(frames) => {
                        let common = shared.map_or(Some(frames.clone()), |shared| common_callers(&shared, &frames));
                        shared = Some(common?);
                    }
                    None if seen.len() > MAX_SEARCHED_BLOCKS || branches.neighbours(next, direction).is_empty() => {
                        return None;
                    }
                    None => pending.extend(branches.neighbours(next, direction)),
                }
            }
        }
        shared
    }

    /// Returns the last line of the branches that join at an instruction's block if they agree, otherwise the line of
    /// their fork. Considers only lines in the same function or inlined call.
    fn infer_from_branches(
        &self,
        instruction: usize,
        own_frames: &[SourceFrame],
        mut located: impl FnMut(&u64) -> Option<Vec<SourceFrame>>,
    ) -> Option<Vec<SourceFrame>> {
        let (branches, fork) = self.branches.as_ref()?.join(instruction)?;
        let mut last_line = |block: Range<usize>| {
            let frames =
                self.instructions[block].iter().rev().take(MAX_SEARCHED_INSTRUCTIONS).find_map(&mut located)?;
            line_in_call(own_frames, &frames)
        };
        let last_lines: Option<Vec<_>> = branches.into_iter().map(&mut last_line).collect();
        let shared = last_lines.filter(|last_lines| last_lines.windows(2).all(|pair| pair[0] == pair[1]));
        shared.and_then(|last_lines| last_lines.into_iter().next()).or_else(|| last_line(fork))
    }

    /// Returns the instructions before and after a block, up to the points where other code joins. Returns `None` for
    /// loops, and for joins of more than one instruction.
    fn surrounding_code(&self, block: &Range<u64>) -> Option<(&[u64], &[u64])> {
        let index = |address: u64| self.instructions.partition_point(|start| *start < address);
        let (first, end) = (index(block.start), index(block.end));
        let start = match self.joins.range(..=block.start).next_back() {
            Some(join) if *join < block.start => index(*join),
            _ if end - first == 1 => first.checked_sub(1)?,
            _ => return None,
        };
        let limit = self.joins.range(block.end..).next().map_or(end, |join| index(*join) + 1);
        Some((&self.instructions[start..first], &self.instructions[end..limit.min(self.instructions.len())]))
    }
}

/// Returns true if the compiler named a line.
pub(super) fn has_line(frames: &[SourceFrame]) -> bool {
    frames.first().is_some_and(|frame| frame.line.is_some_and(|line| line != 0))
}

/// Returns true if the compiler assigned line 0.
pub(super) fn is_line_zero(frames: &[SourceFrame]) -> bool {
    frames.first().is_some_and(|frame| frame.file.is_some() && frame.line.is_none_or(|line| line == 0))
}

/// Returns the outermost frames that two stacks share.
fn common_callers(first: &[SourceFrame], second: &[SourceFrame]) -> Option<Vec<SourceFrame>> {
    let shared_count =
        first.iter().rev().zip(second.iter().rev()).take_while(|(first, second)| first == second).count();
    let shared = first[first.len() - shared_count..].to_vec();
    has_line(&shared).then_some(shared)
}

/// Returns the line of the neighbour that is in the same inlined call; `None` if both are, or neither is.
fn line_in_same_call(
    own_frames: &[SourceFrame],
    preceding: &[SourceFrame],
    following: &[SourceFrame],
) -> Option<Vec<SourceFrame>> {
    match (line_in_call(own_frames, preceding), line_in_call(own_frames, following)) {
        (Some(line), None) | (None, Some(line)) => Some(line),
        _ => None,
    }
}

/// Returns the line of an instruction in the same function or inlined call, directly or in one of its callees.
fn line_in_call(own_frames: &[SourceFrame], frames: &[SourceFrame]) -> Option<Vec<SourceFrame>> {
    let frames = frames.get(frames.len().checked_sub(own_frames.len())?..)?;
    (has_line(frames) && is_same_call(own_frames, frames)).then(|| frames.to_vec())
}

/// Returns true if the innermost frames belong to the same function or inlined call.
fn is_same_call(first: &[SourceFrame], second: &[SourceFrame]) -> bool {
    let name = |frames: &[SourceFrame]| frames.first().map(|frame| frame.linkage_name.clone());
    first.get(1..) == second.get(1..) && name(first) == name(second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    /// Machine code: three `nop`, `jne` to the second of them, two `nop`, `ret`.
    const CODE: [u8; 8] = [0x90, 0x90, 0x90, 0x75, 0xfc, 0x90, 0x90, 0xc3];

    fn frame(name: &str, line: u32) -> SourceFrame {
        SourceFrame { linkage_name: Some(name.to_owned()), file: Some("/prog.py".to_owned()), line: Some(line) }
    }

    fn line_of(address: u64, lines: &[(u64, Vec<SourceFrame>)]) -> Option<Vec<SourceFrame>> {
        line_in(&CODE, address, vec![frame("f", 0)], lines)
    }

    fn line_in(
        code: &[u8],
        address: u64,
        zero: Vec<SourceFrame>,
        lines: &[(u64, Vec<SourceFrame>)],
    ) -> Option<Vec<SourceFrame>> {
        let blocks = Blocks::new(&Machine::X86_64.steps(code, 0x100));
        blocks.infer_frames(address, |queried| {
            lines.iter().find(|(start, _)| *start == queried).map_or_else(|| zero.clone(), |(_, frames)| frames.clone())
        })
    }

    #[test]
    fn neighbours_on_one_line_determine_it() {
        let seven = vec![frame("f", 7)];
        assert_eq!(line_of(0x102, &[(0x101, seven.clone()), (0x103, seven.clone())]), Some(seven.clone()));
        // The first and the last instruction of a block have only one neighbour in it.
        assert_eq!(line_of(0x102, &[(0x103, seven.clone())]), Some(seven.clone()));
        let eight = vec![frame("f", 8)];
        assert_eq!(line_of(0x102, &[(0x100, seven.clone()), (0x103, eight.clone())]), Some(eight.clone()));
        // The instruction directly after one with a line, which it waits for.
        assert_eq!(line_of(0x102, &[(0x101, seven.clone()), (0x103, eight)]), Some(seven.clone()));
        // The looked-up address is inside an instruction, as for a call.
        assert_eq!(line_of(0x104, &[(0x102, seven.clone())]), Some(seven));
    }

    #[test]
    fn other_blocks_are_not_considered() {
        let seven = vec![frame("f", 7)];
        // Only the previous block and the block after the branch have lines.
        assert_eq!(line_of(0x102, &[(0x100, seven.clone()), (0x105, seven.clone())]), None);
        assert_eq!(line_of(0x106, &[(0x103, seven)]), None);
    }

    /// Machine code: `je` over a `nop`, another `nop`, `ret`. Functions with several returns set their shared result
    /// like this.
    #[test]
    fn a_block_of_one_instruction_gets_the_line_of_both_neighbours() {
        let line = |next_line| {
            let lines = [(0x100, vec![frame("f", 7)]), (0x103, vec![frame("f", next_line)])];
            line_in(&[0x74, 0x01, 0x90, 0x90, 0xc3], 0x102, vec![frame("f", 0)], &lines)
        };
        assert_eq!((line(7), line(8)), (Some(vec![frame("f", 7)]), None));
    }

    /// Machine code: `je`, `nop`, `je`, `nop`, `je`, `nop`, `ret`, with all jumps to the `ret`. Checks before a
    /// vectorised loop look like this.
    #[test]
    fn blocks_entered_from_above_get_the_line_of_both_neighbours() {
        let (inlined_g, inlined_h) = (vec![frame("g", 20), frame("f", 7)], vec![frame("h", 30), frame("f", 7)]);
        let line = |address, entry: u8, following: &Vec<SourceFrame>| {
            let lines = [(0x100, inlined_g.clone()), (0x108, following.clone())];
            let code = [entry, 0x07, 0x90, 0x74, 0x04, 0x90, 0x74, 0x01, 0x90, 0xc3];
            line_in(&code, address, vec![frame("f", 0)], &lines)
        };
        let (je, jmp, eight) = (0x74, 0xeb, vec![frame("f", 8)]);
        for address in [0x102, 0x103, 0x105, 0x106] {
            assert_eq!(line(address, je, &inlined_h), Some(vec![frame("f", 7)]));
            assert_eq!((line(address, je, &eight), line(address, jmp, &inlined_h)), (None, None), "{address:x}");
        }
    }

    /// Machine code: `je` to the `nop` at 5, `nop`, `jmp` to the `nop` at 6, two `nop`, `je`, `ret`. The last `nop`
    /// stands for a store that both branches of an `if` make.
    #[test]
    fn common_code_of_branches_gets_their_line_or_that_of_the_fork() {
        let line = |zero: &[SourceFrame], lines: [Vec<SourceFrame>; 3]| {
            let [fork, first_branch, second_branch] = lines;
            let lines = [(0x100, fork), (0x102, first_branch), (0x105, second_branch)];
            line_in(&[0x74, 0x03, 0x90, 0xeb, 0x01, 0x90, 0x90, 0x74, 0xf7, 0xc3], 0x106, zero.to_vec(), &lines)
        };
        let (f, g) = (|line| vec![frame("f", line)], |line, call| vec![frame("g", line), frame("f", call)]);
        assert_eq!(line(&f(0), [f(7), f(8), f(10)]), Some(f(7)));
        assert_eq!(line(&f(0), [f(7), f(8), f(8)]), Some(f(8)));
        // Inlined calls on one line give that line; code in an inlined call gets only lines of that call.
        assert_eq!(line(&f(0), [f(7), g(20, 8), g(30, 8)]), Some(f(8)));
        assert_eq!(line(&g(0, 9), [g(20, 9), g(21, 9), g(23, 9)]), Some(g(20, 9)));
        assert_eq!(line(&g(0, 9), [f(7), f(8), f(10)]), Some(f(9)));
        assert_eq!(line(&f(0), [f(0), f(8), f(10)]), None);
    }

    /// Machine code: `jmp *0x0(,%rax,8)`, two cases of `nop` and `jmp` to the `ret`, which is aligned by a `nop`.
    #[test]
    fn cases_of_a_switch_get_the_line_of_their_neighbours() {
        let code = [0xff, 0x24, 0xc5, 0, 0, 0, 0, 0x97, 0xeb, 0x04, 0x97, 0xeb, 0x01, 0x90, 0xc3];
        let line = |address, last| {
            let lines = [(0x100, vec![frame("f", 7)]), (0x10e, vec![frame("f", last)])];
            line_in(&code, address, vec![frame("f", 0)], &lines)
        };
        for address in [0x107, 0x108, 0x10a, 0x10b] {
            assert_eq!((line(address, 7), line(address, 8)), (Some(vec![frame("f", 7)]), None), "{address:x}");
        }
    }

    #[test]
    fn different_calls_inlined_at_one_line_give_that_line() {
        let (inlined_g, inlined_h) = (vec![frame("g", 20), frame("f", 7)], vec![frame("h", 30), frame("f", 7)]);
        assert_eq!(line_of(0x102, &[(0x101, inlined_g), (0x103, inlined_h)]), Some(vec![frame("f", 7)]));
    }

    #[test]
    fn a_neighbour_in_the_same_inlined_call_takes_precedence() {
        let inner = |line| vec![frame("g", line), frame("f", 7)];
        let following = (0x103, vec![frame("f", 8)]);
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[(0x101, inner(20)), following.clone()]), Some(inner(20)));
        // The neighbour is in a call inlined further down.
        let deeper = vec![frame("h", 30), frame("g", 20), frame("f", 7)];
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[(0x101, deeper), following.clone()]), Some(inner(20)));
        // The neighbour is outside of the call, for example in the loop of a ufunc.
        let outside_call = (0x103, vec![frame("f", 7)]);
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[(0x101, inner(20)), outside_call]), Some(inner(20)));
        // Neither neighbour is in the call, so the line of the call is used.
        let preceding = (0x101, vec![frame("f", 9)]);
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[preceding, following]), Some(vec![frame("f", 7)]));
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[]), Some(vec![frame("f", 7)]));
    }
}
