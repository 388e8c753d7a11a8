//! A line for code that the compiler left at line 0, by the instructions around it in its basic block.
//!
//! LLVM drops the location of an instruction that it moves, merges or splits: of the calls of a vectorised `np.sin`,
//! say. If the nearest located instructions before and behind are of one line, so is this one; if they are of different
//! inlined calls of one line, it is the line of these calls. At the start or the end of a block, one neighbour decides.
//! A block without any line that is entered only from above has the line that the nearest located instructions in front
//! of it and behind it share, up to where other code joins: so have the checks before a vectorised loop. So has a block
//! of a single instruction.
//! Where two disagree, the one of the same inlined call is right, and if neither is, the line of that call is known.
//! What the branches of an `if` have in common, LLVM does once, behind them, on no line: of a store to `a[i]` in each,
//! say. Its block has the line that all branches end with, or else the line where they part: that of the `if`.

use std::collections::BTreeSet;
use std::ops::Range;

use super::source_frame::SourceFrame;
use crate::graph::Branches;
use crate::machine::{Flow, Step};

/// More of a function is not decoded, and more instructions are not looked at.
const LONGEST_FUNCTION: u64 = 256 << 10;
const FARTHEST: usize = 400;

/// The instructions of a function, and where basic blocks begin.
pub(super) struct Blocks {
    instructions: Vec<u64>,
    starts: BTreeSet<u64>,
    /// Those that are entered otherwise than from above: branches go to them, or nothing goes on to them.
    joins: BTreeSet<u64>,
    branches: Option<Branches>,
}

impl Blocks {
    /// How much of a function to decode.
    pub(super) fn length(range: &Range<u64>) -> usize {
        (range.end - range.start).min(LONGEST_FUNCTION) as usize
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
                Flow::Jump(_) | Flow::Leave => drop(joins.insert(step.end)),
            }
            starts.insert(step.end);
        }
        let instructions = function.iter().map(|step| step.address).collect();
        Blocks { instructions, starts, joins, branches: Branches::new(function) }
    }

    /// The frames of the line that an address is at, the innermost first; `frames` are those of any address.
    pub(super) fn line(
        &self,
        address: u64,
        mut frames: impl FnMut(u64) -> Vec<SourceFrame>,
    ) -> Option<Vec<SourceFrame>> {
        let block = *self.starts.range(..=address).next_back()?..self.starts.range(address + 1..).next().copied()?;
        let at = self.instructions.partition_point(|start| *start <= address);
        let own = frames(address);
        let mut located = |start: &u64| Some(frames(*start)).filter(|frames| has_line(frames));
        let within = |start: &&u64| block.contains(start);
        let before = self.instructions[..at].iter().rev().take_while(within).take(FARTHEST).find_map(&mut located);
        let behind = self.instructions[at..].iter().take_while(within).take(FARTHEST).find_map(&mut located);
        let around = match (before, behind) {
            (Some(before), Some(behind)) => {
                let shared = common(&before, &behind);
                // What is shared outside of an inlined call says less than a line of that call.
                let inner = shared.as_ref().is_none_or(|shared| shared.len() < own.len());
                inner.then(|| of_one_call(&own, &before, &behind)).flatten().or(shared)
            }
            (None, None) => {
                let beside = self.around(&block).and_then(|(before, behind)| {
                    let before = before.iter().rev().take(FARTHEST).find_map(&mut located)?;
                    common(&before, &behind.iter().take(FARTHEST).find_map(&mut located)?)
                });
                beside.or_else(|| self.parted(at.checked_sub(1)?, &own, located))
            }
            (one, other) => one.or(other),
        };
        around.or_else(|| own.get(1..).filter(|call| has_line(call)).map(<[SourceFrame]>::to_vec))
    }

    /// The line that the branches which join at an instruction's block end with, or else the one where they part. Only a
    /// line of the function, or of the inlined call, that the compiler names.
    fn parted(
        &self,
        instruction: usize,
        own: &[SourceFrame],
        mut located: impl FnMut(&u64) -> Option<Vec<SourceFrame>>,
    ) -> Option<Vec<SourceFrame>> {
        let (branches, fork) = self.branches.as_ref()?.join(instruction)?;
        let mut last = |block: Range<usize>| {
            let frames = self.instructions[block].iter().rev().take(FARTHEST).find_map(&mut located)?;
            within(own, &frames)
        };
        let ends: Option<Vec<_>> = branches.into_iter().map(&mut last).collect();
        let same = ends.filter(|ends| ends.windows(2).all(|pair| pair[0] == pair[1]));
        same.and_then(|ends| ends.into_iter().next()).or_else(|| last(fork))
    }

    /// The instructions in front of a block and behind it that run with it, and the one behind them; none of a loop, or
    /// of a join of some length.
    fn around(&self, block: &Range<u64>) -> Option<(&[u64], &[u64])> {
        let index = |address: u64| self.instructions.partition_point(|start| *start < address);
        let (first, end) = (index(block.start), index(block.end));
        let from = match self.joins.range(..=block.start).next_back() {
            Some(join) if *join < block.start => index(*join),
            _ if end - first == 1 => first.checked_sub(1)?,
            _ => return None,
        };
        let until = self.joins.range(block.end..).next().map_or(end, |join| index(*join) + 1);
        Some((&self.instructions[from..first], &self.instructions[end..until.min(self.instructions.len())]))
    }
}

/// Whether the compiler names a line.
pub(super) fn has_line(frames: &[SourceFrame]) -> bool {
    frames.first().is_some_and(|frame| frame.line.is_some_and(|line| line != 0))
}

/// Whether it says that there is none.
pub(super) fn is_line_zero(frames: &[SourceFrame]) -> bool {
    frames.first().is_some_and(|frame| frame.file.is_some() && frame.line.is_none_or(|line| line == 0))
}

/// The outermost frames that both have.
fn common(one: &[SourceFrame], other: &[SourceFrame]) -> Option<Vec<SourceFrame>> {
    let same = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    let shared = one[one.len() - same..].to_vec();
    has_line(&shared).then_some(shared)
}

/// The line of the only one that is in the same inlined call.
fn of_one_call(own: &[SourceFrame], before: &[SourceFrame], behind: &[SourceFrame]) -> Option<Vec<SourceFrame>> {
    match (within(own, before), within(own, behind)) {
        (Some(line), None) | (None, Some(line)) => Some(line),
        _ => None,
    }
}

/// The line of an instruction in the same function or inlined call, if it is there or in what that one calls.
fn within(own: &[SourceFrame], frames: &[SourceFrame]) -> Option<Vec<SourceFrame>> {
    let frames = frames.get(frames.len().checked_sub(own.len())?..)?;
    (has_line(frames) && is_of_one_call(own, frames)).then(|| frames.to_vec())
}

/// Whether the innermost frames are of the same function or inlined call.
fn is_of_one_call(one: &[SourceFrame], other: &[SourceFrame]) -> bool {
    let name = |frames: &[SourceFrame]| frames.first().map(|frame| frame.linkage_name.clone());
    one.get(1..) == other.get(1..) && name(one) == name(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    /// Three `nop`, `jne` to the second, two `nop`, `ret`.
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
        blocks.line(address, |at| {
            lines.iter().find(|(start, _)| *start == at).map_or_else(|| zero.clone(), |(_, frames)| frames.clone())
        })
    }

    #[test]
    fn neighbours_of_one_line_say_it() {
        let seven = vec![frame("f", 7)];
        assert_eq!(line_of(0x102, &[(0x101, seven.clone()), (0x103, seven.clone())]), Some(seven.clone()));
        // At an end of the block there is one.
        assert_eq!(line_of(0x102, &[(0x103, seven.clone())]), Some(seven.clone()));
        assert_eq!(line_of(0x102, &[(0x101, seven.clone()), (0x103, vec![frame("f", 8)])]), None);
        // In the middle of an instruction, as a call is looked up.
        assert_eq!(line_of(0x104, &[(0x102, seven.clone())]), Some(seven));
    }

    #[test]
    fn another_block_says_nothing() {
        let seven = vec![frame("f", 7)];
        // The block before, and the one behind the branch.
        assert_eq!(line_of(0x102, &[(0x100, seven.clone()), (0x105, seven.clone())]), None);
        assert_eq!(line_of(0x106, &[(0x103, seven)]), None);
    }

    /// `je` over a `nop`, another one, `ret`: how functions set the result that several returns share.
    #[test]
    fn a_block_of_one_instruction_has_the_line_of_both_neighbours() {
        let line = |behind| {
            let lines = [(0x100, vec![frame("f", 7)]), (0x103, vec![frame("f", behind)])];
            line_in(&[0x74, 0x01, 0x90, 0x90, 0xc3], 0x102, vec![frame("f", 0)], &lines)
        };
        assert_eq!((line(7), line(8)), (Some(vec![frame("f", 7)]), None));
    }

    /// `je`, `nop`, `je`, `nop`, `je`, `nop`, `ret`, all to the `ret`: how checks before a vectorised loop are.
    #[test]
    fn blocks_entered_from_above_have_the_line_of_both_neighbours() {
        let (one, other) = (vec![frame("g", 20), frame("f", 7)], vec![frame("h", 30), frame("f", 7)]);
        let line = |address, entry: u8, behind: &Vec<SourceFrame>| {
            let lines = [(0x100, one.clone()), (0x108, behind.clone())];
            let code = [entry, 0x07, 0x90, 0x74, 0x04, 0x90, 0x74, 0x01, 0x90, 0xc3];
            line_in(&code, address, vec![frame("f", 0)], &lines)
        };
        let (je, jmp, eight) = (0x74, 0xeb, vec![frame("f", 8)]);
        for address in [0x102, 0x103, 0x105, 0x106] {
            assert_eq!(line(address, je, &other), Some(vec![frame("f", 7)]));
            assert_eq!((line(address, je, &eight), line(address, jmp, &other)), (None, None), "{address:x}");
        }
    }

    /// `je` to the `nop` at 5, `nop`, `jmp` to that at 6, two `nop`, `je`, `ret`: a store that both branches of an `if`
    /// make.
    #[test]
    fn what_branches_have_in_common_has_their_line_or_the_one_where_they_part() {
        let line = |zero: &[SourceFrame], lines: [Vec<SourceFrame>; 3]| {
            let [fork, one, other] = lines;
            let lines = [(0x100, fork), (0x102, one), (0x105, other)];
            line_in(&[0x74, 0x03, 0x90, 0xeb, 0x01, 0x90, 0x90, 0x74, 0xf7, 0xc3], 0x106, zero.to_vec(), &lines)
        };
        let (f, g) = (|line| vec![frame("f", line)], |line, call| vec![frame("g", line), frame("f", call)]);
        assert_eq!(line(&f(0), [f(7), f(8), f(10)]), Some(f(7)));
        assert_eq!(line(&f(0), [f(7), f(8), f(8)]), Some(f(8)));
        // Of inlined calls on one line, that line; in an inlined call, only its lines.
        assert_eq!(line(&f(0), [f(7), g(20, 8), g(30, 8)]), Some(f(8)));
        assert_eq!(line(&g(0, 9), [g(20, 9), g(21, 9), g(23, 9)]), Some(g(20, 9)));
        assert_eq!(line(&g(0, 9), [f(7), f(8), f(10)]), Some(f(9)));
        assert_eq!(line(&f(0), [f(0), f(8), f(10)]), None);
    }

    #[test]
    fn different_inlined_calls_of_one_line_are_that_line() {
        let (one, other) = (vec![frame("g", 20), frame("f", 7)], vec![frame("h", 30), frame("f", 7)]);
        assert_eq!(line_of(0x102, &[(0x101, one), (0x103, other)]), Some(vec![frame("f", 7)]));
    }

    #[test]
    fn of_neighbours_that_disagree_the_one_of_the_same_inlined_call_is_right() {
        let inner = |line| vec![frame("g", line), frame("f", 7)];
        let behind = (0x103, vec![frame("f", 8)]);
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[(0x101, inner(20)), behind.clone()]), Some(inner(20)));
        // In what that one calls.
        let deeper = vec![frame("h", 30), frame("g", 20), frame("f", 7)];
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[(0x101, deeper), behind.clone()]), Some(inner(20)));
        // Around the call: the loop of a ufunc, say.
        let around = (0x103, vec![frame("f", 7)]);
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[(0x101, inner(20)), around]), Some(inner(20)));
        // Neither: the call has a line.
        let before = (0x101, vec![frame("f", 9)]);
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[before, behind]), Some(vec![frame("f", 7)]));
        assert_eq!(line_in(&CODE, 0x102, inner(0), &[]), Some(vec![frame("f", 7)]));
    }
}
