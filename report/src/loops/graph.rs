//! Natural loops of a function: blocks, dominators (Cooper, Harvey, Kennedy: *A Simple, Fast Dominance Algorithm*), back edges.
//!
//! Works on any instruction set: an instruction is an address and how control leaves it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rustc_hash::FxHashMap;

/// How control leaves an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// To the next instruction, also behind a call.
    Next,
    /// To the target, if it is known.
    Jump(Option<u64>),
    /// To the target or to the next instruction.
    Branch(Option<u64>),
    /// Out of the function.
    Leave,
}

/// An instruction as the graph needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) address: u64,
    pub(super) flow: Flow,
}

/// A loop. Ranges are of instructions, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NaturalLoop {
    /// Its own blocks, without those of loops inside it.
    pub(super) own: Vec<Range<usize>>,
    /// Branches of its own blocks that may leave the loop.
    pub(super) exits: usize,
    pub(super) is_innermost: bool,
}

impl NaturalLoop {
    /// The instructions of its own blocks.
    pub(super) fn instructions(&self) -> impl Iterator<Item = usize> + '_ {
        self.own.iter().cloned().flatten()
    }
}

/// The loops of a function whose first instruction is its entry.
pub(super) fn loops(steps: &[Step]) -> Vec<NaturalLoop> {
    if steps.is_empty() {
        return Vec::new();
    }
    let graph = Graph::new(steps);
    let bodies = graph.bodies();
    let is_inside =
        |inner: &BTreeSet<usize>, outer: &BTreeSet<usize>| inner.len() < outer.len() && inner.is_subset(outer);
    bodies
        .values()
        .map(|body| {
            let inner: Vec<&BTreeSet<usize>> = bodies.values().filter(|other| is_inside(other, body)).collect();
            let own: Vec<usize> =
                body.iter().copied().filter(|block| !inner.iter().any(|inner| inner.contains(block))).collect();
            let leaves = |block: &&usize| graph.next[**block].iter().any(|next| !body.contains(next));
            let exits = own.iter().filter(leaves).count();
            NaturalLoop {
                own: own.into_iter().map(|block| graph.blocks[block].clone()).collect(),
                exits,
                is_innermost: inner.is_empty(),
            }
        })
        .collect()
}

struct Graph {
    /// Instructions of each block.
    blocks: Vec<Range<usize>>,
    next: Vec<Vec<usize>>,
    before: Vec<Vec<usize>>,
    /// Blocks that the entry reaches, each behind those that lead to it but for back edges.
    order: Vec<usize>,
    /// The place of a block in `order`.
    number: Vec<usize>,
}

const UNREACHED: usize = usize::MAX;

impl Graph {
    fn new(steps: &[Step]) -> Graph {
        let at: FxHashMap<u64, usize> = steps.iter().enumerate().map(|(at, step)| (step.address, at)).collect();
        let blocks = blocks(steps, &at);
        let block_at: FxHashMap<usize, usize> =
            blocks.iter().enumerate().map(|(block, range)| (range.start, block)).collect();
        let target = |address: Option<u64>| address.and_then(|address| block_at.get(at.get(&address)?).copied());
        let (mut next, mut before) = (vec![Vec::new(); blocks.len()], vec![Vec::new(); blocks.len()]);
        for (block, range) in blocks.iter().enumerate() {
            let behind = (block + 1 < blocks.len()).then_some(block + 1);
            let targets = match steps[range.end - 1].flow {
                Flow::Next => [None, behind],
                Flow::Jump(address) => [target(address), None],
                Flow::Branch(address) => [target(address), behind],
                Flow::Leave => [None, None],
            };
            for target in targets.into_iter().flatten() {
                next[block].push(target);
                before[target].push(block);
            }
        }
        let order = reverse_postorder(&next);
        let mut number = vec![UNREACHED; blocks.len()];
        for (place, block) in order.iter().enumerate() {
            number[*block] = place;
        }
        Graph { blocks, next, before, order, number }
    }

    /// The immediate dominator of each block.
    fn dominators(&self) -> Vec<usize> {
        let mut dominator = vec![UNREACHED; self.blocks.len()];
        dominator[0] = 0;
        let mut changed = true;
        while changed {
            changed = false;
            for &block in &self.order[1..] {
                let known = self.before[block].iter().copied().filter(|before| dominator[*before] != UNREACHED);
                let Some(nearest) = known.reduce(|a, b| self.common(&dominator, a, b)) else { continue };
                changed |= std::mem::replace(&mut dominator[block], nearest) != nearest;
            }
        }
        dominator
    }

    fn common(&self, dominator: &[usize], mut a: usize, mut b: usize) -> usize {
        while a != b {
            while self.number[a] > self.number[b] {
                a = dominator[a];
            }
            while self.number[b] > self.number[a] {
                b = dominator[b];
            }
        }
        a
    }

    /// By header: the blocks of its loop.
    fn bodies(&self) -> BTreeMap<usize, BTreeSet<usize>> {
        let dominator = self.dominators();
        let dominates = |header: usize, mut block: usize| {
            while block != header && block != 0 {
                block = dominator[block];
            }
            block == header
        };
        let mut bodies: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for &latch in &self.order {
            for &header in self.next[latch].iter().filter(|header| dominates(**header, latch)) {
                let body = bodies.entry(header).or_insert_with(|| BTreeSet::from([header]));
                let mut work = vec![latch];
                while let Some(block) = work.pop() {
                    if self.number[block] != UNREACHED && body.insert(block) {
                        work.extend(&self.before[block]);
                    }
                }
            }
        }
        bodies
    }
}

fn blocks(steps: &[Step], at: &FxHashMap<u64, usize>) -> Vec<Range<usize>> {
    let mut first = BTreeSet::from([0]);
    for (number, step) in steps.iter().enumerate() {
        if let Flow::Jump(Some(address)) | Flow::Branch(Some(address)) = step.flow {
            first.extend(at.get(&address));
        }
        if step.flow != Flow::Next {
            first.insert(number + 1);
        }
    }
    first.insert(steps.len());
    let first: Vec<usize> = first.into_iter().filter(|number| *number <= steps.len()).collect();
    first.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn reverse_postorder(next: &[Vec<usize>]) -> Vec<usize> {
    let (mut order, mut seen) = (Vec::new(), vec![false; next.len()]);
    let mut path = vec![(0, 0)];
    seen[0] = true;
    while let Some((block, edge)) = path.last_mut() {
        match next[*block].get(*edge) {
            Some(&target) => {
                *edge += 1;
                if !std::mem::replace(&mut seen[target], true) {
                    path.push((target, 0));
                }
            }
            None => {
                order.push(*block);
                path.pop();
            }
        }
    }
    order.reverse();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions at 0, 1, 2, ...
    fn steps(flows: &[Flow]) -> Vec<Step> {
        flows.iter().enumerate().map(|(at, flow)| Step { address: at as u64, flow: *flow }).collect()
    }

    #[test]
    fn a_loop_in_a_loop() {
        use Flow::{Branch, Leave, Next};
        // 1 to 5 around 2 to 3.
        let found = loops(&steps(&[Next, Next, Next, Branch(Some(2)), Next, Branch(Some(1)), Leave]));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], NaturalLoop { own: vec![1..2, 4..6], exits: 1, is_innermost: false });
        assert_eq!(found[1].instructions().collect::<Vec<_>>(), [2, 3]);
        assert!(found[1].exits == 1 && found[1].is_innermost);
    }

    #[test]
    fn a_loop_that_ends_early_has_two_exits() {
        use Flow::{Branch, Leave, Next};
        let found = loops(&steps(&[Next, Branch(Some(4)), Next, Branch(Some(0)), Leave]));
        assert_eq!(found, [NaturalLoop { own: vec![0..2, 2..4], exits: 2, is_innermost: true }]);
    }

    #[test]
    fn code_that_nothing_reaches_and_unknown_targets_are_no_loops() {
        use Flow::{Branch, Jump, Leave};
        assert_eq!(loops(&steps(&[Leave, Jump(Some(1))])), []);
        assert_eq!(loops(&steps(&[Branch(None), Jump(None), Branch(Some(99))])), []);
        assert_eq!(loops(&[]), []);
    }
}
