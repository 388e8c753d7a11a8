//! The control flow of a function: blocks, dominators, back edges, natural loops.
//!
//! Works on any instruction set: an instruction is an address and how control leaves it (`machine/`).

use std::collections::BTreeSet;
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::machine::{Flow, Step};

/// A loop. Ranges are of instructions, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NaturalLoop {
    /// Its own blocks, without those of loops inside it.
    pub(crate) own: Vec<Range<usize>>,
    /// Where the branches of its own blocks leave the loop to: an instruction for each.
    pub(crate) exits: Vec<usize>,
    pub(crate) is_innermost: bool,
}

impl NaturalLoop {
    /// The instructions of its own blocks.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = usize> + '_ {
        self.own.iter().cloned().flatten()
    }
}

/// The loops of a function whose first instruction is its entry.
pub(crate) fn loops(steps: &[Step]) -> Vec<NaturalLoop> {
    if steps.is_empty() {
        return Vec::new();
    }
    let graph = Graph::new(steps);
    let nest = Nest::new(&graph);
    let mut found: Vec<NaturalLoop> =
        nest.parents.iter().map(|_| NaturalLoop { own: Vec::new(), exits: Vec::new(), is_innermost: true }).collect();
    for parent in nest.parents.iter().flatten() {
        found[*parent].is_innermost = false;
    }
    for (block, range) in graph.blocks.iter().enumerate() {
        let Some(of) = nest.innermost[block] else { continue };
        found[of].own.push(range.clone());
        let left = graph.next[block].iter().filter(|next| !nest.contains(of, **next));
        found[of].exits.extend(left.map(|next| graph.blocks[*next].start));
    }
    found.sort_by_key(|of| of.own.first().map(|range| range.start));
    found
}

/// Which loop is inside which, and the innermost loop of each block. Headers are visited from the inside out, and a
/// loop that is known already is one step on the way from a latch to its header (LLVM's `LoopInfo`), so no block is
/// visited for every loop around it.
struct Nest {
    innermost: Vec<Option<usize>>,
    /// By loop; inner loops come first.
    parents: Vec<Option<usize>>,
    /// By loop: the numbers of a walk over the tree of loops, at its begin and at its end.
    walk: Vec<(usize, usize)>,
}

impl Nest {
    fn new(graph: &Graph) -> Nest {
        let dominators = Dominators::new(graph);
        let mut nest = Nest { innermost: vec![None; graph.blocks.len()], parents: Vec::new(), walk: Vec::new() };
        let mut headers: Vec<usize> = Vec::new();
        // The loop itself, or the outermost one that is known to be around it; with shortcuts to it.
        let mut outermost: Vec<usize> = Vec::new();
        for &header in graph.order.iter().rev() {
            let latches = graph.before[header].iter().copied().filter(|latch| dominators.dominates(header, *latch));
            let mut work: Vec<usize> = latches.collect();
            if work.is_empty() {
                continue;
            }
            let this = nest.parents.len();
            nest.parents.push(None);
            headers.push(header);
            outermost.push(this);
            while let Some(block) = work.pop() {
                if graph.number[block] == UNREACHED {
                    continue;
                }
                let inner = match nest.innermost[block] {
                    None => {
                        nest.innermost[block] = Some(this);
                        if block != header {
                            work.extend(&graph.before[block]);
                        }
                        continue;
                    }
                    Some(inner) => root(&mut outermost, inner),
                };
                if inner != this {
                    nest.parents[inner] = Some(this);
                    outermost[inner] = this;
                    work.extend(&graph.before[headers[inner]]);
                }
            }
            // A header is in its loop, also where the way from the latches ended at an inner loop with the same blocks.
            nest.innermost[header].get_or_insert(this);
        }
        nest.walk = walk(&nest.parents);
        nest
    }

    fn contains(&self, of: usize, block: usize) -> bool {
        self.innermost[block].is_some_and(|inner| is_below(self.walk[inner], self.walk[of]))
    }
}

/// The last of a chain, which is shortened on the way.
fn root(chain: &mut [usize], mut at: usize) -> usize {
    while chain[at] != at {
        chain[at] = chain[chain[at]];
        at = chain[at];
    }
    at
}

/// Of each node of a forest, the number when a walk comes to it, and the largest number below it. Parents have any
/// number.
fn walk(parents: &[Option<usize>]) -> Vec<(usize, usize)> {
    let mut children = vec![Vec::new(); parents.len()];
    let mut roots = Vec::new();
    for (child, parent) in parents.iter().enumerate() {
        match parent {
            Some(parent) => children[*parent].push(child),
            None => roots.push(child),
        }
    }
    let (mut numbers, mut next) = (vec![(0, 0); parents.len()], 0);
    let mut path: Vec<(usize, usize)> = Vec::new();
    for root in roots {
        path.push((root, 0));
        while let Some((node, child)) = path.last_mut() {
            if *child == 0 {
                numbers[*node].0 = next;
                next += 1;
            }
            match children[*node].get(*child) {
                Some(below) => {
                    *child += 1;
                    path.push((*below, 0));
                }
                None => {
                    numbers[*node].1 = next - 1;
                    path.pop();
                }
            }
        }
    }
    numbers
}

fn is_below((first, last): (usize, usize), (around_first, around_last): (usize, usize)) -> bool {
    around_first <= first && last <= around_last
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
}

/// Where branches part and join.
pub(crate) struct Branches {
    graph: Graph,
    dominator: Vec<usize>,
    /// By block: whether the function ends with it.
    leaves: Vec<bool>,
}

impl Branches {
    /// Nothing if it is not known where all jumps go.
    pub(crate) fn new(steps: &[Step]) -> Option<Branches> {
        if steps.is_empty() || steps.iter().any(|step| matches!(step.flow, Flow::Jump(None) | Flow::Branch(None))) {
            return None;
        }
        let graph = Graph::new(steps);
        let dominator = immediate_dominators(&graph);
        let leaves = graph.blocks.iter().map(|range| steps[range.end - 1].flow == Flow::Leave).collect();
        Some(Branches { graph, dominator, leaves })
    }

    /// Of the block that an instruction is in, if branches join there: the blocks that lead to it, and the one where
    /// these ways parted. Nothing for the first block of a loop, nor for the last one of a function: what
    /// returns have in common is no part of the first branch.
    pub(crate) fn join(&self, instruction: usize) -> Option<(Vec<Range<usize>>, Range<usize>)> {
        let Graph { blocks, before, number, .. } = &self.graph;
        let block = blocks.partition_point(|range| range.end <= instruction);
        let reached: Vec<usize> =
            before.get(block)?.iter().copied().filter(|before| number[*before] != UNREACHED).collect();
        if self.leaves[block] || reached.len() < 2 || reached.iter().any(|before| number[*before] >= number[block]) {
            return None;
        }
        let range = |block: usize| blocks[block].clone();
        Some((reached.into_iter().map(range).collect(), range(self.dominator[block])))
    }
}

struct Dominators {
    /// By block; nothing for those that the entry does not reach.
    walk: Vec<Option<(usize, usize)>>,
}

impl Dominators {
    fn new(graph: &Graph) -> Dominators {
        let dominator = immediate_dominators(graph);
        let parents: Vec<Option<usize>> = dominator
            .iter()
            .enumerate()
            .map(|(block, above)| Some(*above).filter(|above| *above != UNREACHED && *above != block))
            .collect();
        let walk = walk(&parents).into_iter().zip(&dominator);
        Dominators { walk: walk.map(|(numbers, above)| (*above != UNREACHED).then_some(numbers)).collect() }
    }

    fn dominates(&self, above: usize, block: usize) -> bool {
        matches!((self.walk[above], self.walk[block]), (Some(above), Some(below)) if is_below(below, above))
    }
}

/// By block (Lengauer, Tarjan: *A Fast Algorithm for Finding Dominators in a Flowgraph*, the simple version: n log n).
fn immediate_dominators(graph: &Graph) -> Vec<usize> {
    let (preorder, parent) = preorder(&graph.next);
    let mut number = vec![UNREACHED; graph.blocks.len()];
    for (at, block) in preorder.iter().enumerate() {
        number[*block] = at;
    }
    // Everything here is in numbers of the preorder.
    let count = preorder.len();
    let mut forest = Forest { above: vec![UNREACHED; count], label: (0..count).collect(), semi: (0..count).collect() };
    let (mut dominator, mut waiting) = (vec![0; count], vec![Vec::new(); count]);
    for at in (1..count).rev() {
        for before in graph.before[preorder[at]].iter().map(|block| number[*block]).filter(|at| *at != UNREACHED) {
            let least = forest.least(before);
            forest.semi[at] = forest.semi[at].min(forest.semi[least]);
        }
        waiting[forest.semi[at]].push(at);
        forest.above[at] = parent[at];
        for other in std::mem::take(&mut waiting[parent[at]]) {
            let least = forest.least(other);
            dominator[other] = if forest.semi[least] < forest.semi[other] { least } else { parent[at] };
        }
    }
    for at in 1..count {
        if dominator[at] != forest.semi[at] {
            dominator[at] = dominator[dominator[at]];
        }
    }
    number.iter().map(|at| if *at == UNREACHED { UNREACHED } else { preorder[dominator[*at]] }).collect()
}

/// The blocks in the order in which a depth-first walk comes to them; of each, the place in it of the one that it comes
/// from.
fn preorder(next: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
    let (mut order, mut parent, mut seen) = (Vec::new(), Vec::new(), vec![false; next.len()]);
    let mut work = vec![(0, 0)];
    while let Some((block, from)) = work.pop() {
        if !std::mem::replace(&mut seen[block], true) {
            work.extend(next[block].iter().map(|next| (*next, order.len())));
            order.push(block);
            parent.push(from);
        }
    }
    (order, parent)
}

/// The trees of the blocks that are done.
struct Forest {
    above: Vec<usize>,
    label: Vec<usize>,
    semi: Vec<usize>,
}

impl Forest {
    /// On the way up to a root, without it, the block with the least semidominator. Shortens the way.
    fn least(&mut self, at: usize) -> usize {
        if self.above[at] == UNREACHED {
            return self.label[at];
        }
        let (mut way, mut top) = (Vec::new(), at);
        while self.above[self.above[top]] != UNREACHED {
            way.push(top);
            top = self.above[top];
        }
        for below in way.into_iter().rev() {
            let above = self.above[below];
            if self.semi[self.label[above]] < self.semi[self.label[below]] {
                self.label[below] = self.label[above];
            }
            self.above[below] = self.above[above];
        }
        self.label[at]
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
        let step = |(at, flow): (usize, &Flow)| Step { address: at as u64, end: at as u64 + 1, flow: *flow };
        flows.iter().enumerate().map(step).collect()
    }

    #[test]
    fn a_loop_in_a_loop() {
        use Flow::{Branch, Leave, Next};
        // 1 to 5 around 2 to 3.
        let found = loops(&steps(&[Next, Next, Next, Branch(Some(2)), Next, Branch(Some(1)), Leave]));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], NaturalLoop { own: vec![1..2, 4..6], exits: vec![6], is_innermost: false });
        assert_eq!(found[1].instructions().collect::<Vec<_>>(), [2, 3]);
        assert!(found[1].exits == [4] && found[1].is_innermost);
    }

    #[test]
    fn a_loop_that_ends_early_has_two_exits() {
        use Flow::{Branch, Leave, Next};
        let found = loops(&steps(&[Next, Branch(Some(4)), Next, Branch(Some(0)), Leave]));
        assert_eq!(found, [NaturalLoop { own: vec![0..2, 2..4], exits: vec![4, 4], is_innermost: true }]);
    }

    #[test]
    fn code_that_nothing_reaches_and_unknown_targets_are_no_loops() {
        use Flow::{Branch, Jump, Leave};
        assert_eq!(loops(&steps(&[Leave, Jump(Some(1))])), []);
        assert_eq!(loops(&steps(&[Branch(None), Jump(None), Branch(Some(99))])), []);
        assert_eq!(loops(&[]), []);
    }

    #[test]
    fn a_loop_that_several_branches_repeat_is_one() {
        use Flow::{Branch, Leave, Next};
        let found = loops(&steps(&[Next, Branch(Some(0)), Next, Branch(Some(0)), Leave]));
        assert_eq!(found, [NaturalLoop { own: vec![0..2, 2..4], exits: vec![4], is_innermost: true }]);
    }

    #[test]
    fn branches_join_and_part_again() {
        use Flow::{Branch, Jump, Leave, Next};
        let at = |flows: &[Flow], instruction| Branches::new(&steps(flows)).and_then(|found| found.join(instruction));
        // 1 or 2 to 3, behind 0; padding that nothing reaches in front.
        let parted = [Branch(Some(2)), Jump(Some(4)), Jump(Some(4)), Next, Branch(Some(0)), Leave];
        assert_eq!(at(&parted, 4), Some((vec![1..2, 2..3], 0..1)));
        assert_eq!((at(&parted, 0), at(&parted, 1), at(&parted, 9)), (None, None, None));
        // A loop's first block; a function's last one; a jump to anywhere.
        assert_eq!(at(&[Next, Next, Branch(Some(1)), Leave], 1), None);
        assert_eq!(at(&[Branch(Some(2)), Jump(Some(3)), Jump(Some(3)), Leave], 3), None);
        assert_eq!(at(&[Branch(Some(2)), Jump(Some(3)), Jump(Some(3)), Jump(None)], 3), None);
    }

    #[test]
    fn every_loop_of_the_largest_functions_is_found() {
        const MANY: usize = 16_000;
        // One in another, and one behind another with an exit each to the end.
        let nested: Vec<Flow> =
            (0..MANY)
                .map(|at| {
                    if at < MANY / 2 { Flow::Branch(Some(MANY as u64)) } else { Flow::Branch(Some((MANY - at) as u64)) }
                })
                .chain([Flow::Leave])
                .collect();
        assert_eq!(loops(&steps(&nested)).len(), MANY / 2);
        let behind: Vec<Flow> = (0..MANY as u64)
            .map(|at| if at % 2 == 0 { Flow::Branch(Some(MANY as u64)) } else { Flow::Branch(Some(at - 1)) })
            .chain([Flow::Leave])
            .collect();
        assert_eq!(loops(&steps(&behind)).len(), MANY / 2);
    }
}
