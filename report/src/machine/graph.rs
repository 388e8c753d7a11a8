//! Control flow of a function: blocks, dominators, back edges, natural loops.
//!
//! The analysis is independent of the instruction set. For each instruction it needs only the address and the control
//! flow (`machine/`).

use std::collections::BTreeSet;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::{Flow, Step};

/// Natural loop of a control flow graph. Ranges are instruction indices, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NaturalLoop {
    /// Blocks of the loop, without those of loops nested in it.
    pub(crate) own_blocks: Vec<Range<usize>>,
    /// First instruction of each iteration.
    pub(crate) header: usize,
    /// Target instruction of each branch that leaves the loop from its own blocks.
    pub(crate) exits: Vec<usize>,
    pub(crate) is_innermost: bool,
    /// Index of the loop that directly contains this one.
    pub(crate) parent: Option<usize>,
}

impl NaturalLoop {
    /// Returns the instructions of the loop's own blocks.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = usize> + '_ {
        self.own_blocks.iter().cloned().flatten()
    }
}

/// Finds the loops of a function. The first instruction is the entry.
pub(crate) fn find_loops(steps: &[Step]) -> Vec<NaturalLoop> {
    if steps.is_empty() {
        return Vec::new();
    }
    let graph = Graph::new(steps);
    let nest = Nest::new(&graph);
    let mut natural_loops: Vec<NaturalLoop> =
        nest.parents.iter().map(|_| NaturalLoop { is_innermost: true, ..NaturalLoop::default() }).collect();
    for (natural_loop, header) in natural_loops.iter_mut().zip(&nest.headers) {
        natural_loop.header = graph.blocks[*header].start;
    }
    for parent in nest.parents.iter().flatten() {
        natural_loops[*parent].is_innermost = false;
    }
    for (block, range) in graph.blocks.iter().enumerate() {
        let Some(loop_index) = nest.innermost[block] else { continue };
        natural_loops[loop_index].own_blocks.push(range.clone());
        let exits = graph.successors[block].iter().filter(|successor| !nest.contains(loop_index, **successor));
        natural_loops[loop_index].exits.extend(exits.map(|successor| graph.blocks[*successor].start));
    }
    let mut order: Vec<usize> = (0..natural_loops.len()).collect();
    order.sort_by_key(|index| natural_loops[*index].own_blocks.first().map(|range| range.start));
    let mut position = vec![0; order.len()];
    order.iter().enumerate().for_each(|(new, old)| position[*old] = new);
    for (index, parent) in nest.parents.iter().enumerate() {
        natural_loops[index].parent = parent.map(|parent| position[parent]);
    }
    order.into_iter().map(|index| std::mem::take(&mut natural_loops[index])).collect()
}

/// Loop nest, and the innermost loop of each block. Headers are visited from the innermost outwards. On the path from a
/// latch to its header, a known inner loop is a single step (as in LLVM's `LoopInfo`), so no block is visited once for
/// every enclosing loop.
struct Nest {
    innermost: Vec<Option<usize>>,
    /// Header block of each loop.
    headers: Vec<usize>,
    /// Parent of each loop. Inner loops come before outer ones.
    parents: Vec<Option<usize>>,
    /// Preorder interval of each loop in the loop tree: its own number and the highest number below it.
    intervals: Vec<(usize, usize)>,
}

impl Nest {
    fn new(graph: &Graph) -> Nest {
        let dominators = Dominators::new(graph);
        let mut nest = Nest {
            innermost: vec![None; graph.blocks.len()],
            headers: Vec::new(),
            parents: Vec::new(),
            intervals: Vec::new(),
        };
        // Outermost known loop that encloses each loop, or the loop itself, as a union-find forest with path
        // compression.
        let mut outermost: Vec<usize> = Vec::new();
        for &header in graph.order.iter().rev() {
            let latches =
                graph.predecessors[header].iter().copied().filter(|latch| dominators.dominates(header, *latch));
            let mut work: Vec<usize> = latches.collect();
            if work.is_empty() {
                continue;
            }
            let current = nest.parents.len();
            nest.parents.push(None);
            nest.headers.push(header);
            outermost.push(current);
            while let Some(block) = work.pop() {
                if graph.position[block] == UNREACHED {
                    continue;
                }
                let inner = match nest.innermost[block] {
                    None => {
                        nest.innermost[block] = Some(current);
                        if block != header {
                            work.extend(&graph.predecessors[block]);
                        }
                        continue;
                    }
                    Some(inner) => find_root(&mut outermost, inner),
                };
                if inner != current {
                    nest.parents[inner] = Some(current);
                    outermost[inner] = current;
                    work.extend(&graph.predecessors[nest.headers[inner]]);
                }
            }
            // The header belongs to its loop, even if the paths from the latches ended at an inner loop with the same
            // blocks.
            nest.innermost[header].get_or_insert(current);
        }
        nest.intervals = preorder_intervals(&nest.parents);
        nest
    }

    fn contains(&self, outer: usize, block: usize) -> bool {
        self.innermost[block].is_some_and(|inner| is_within(self.intervals[inner], self.intervals[outer]))
    }
}

/// Returns the root of a node's chain, and compresses the path.
fn find_root(parents: &mut [usize], mut node: usize) -> usize {
    while parents[node] != node {
        parents[node] = parents[parents[node]];
        node = parents[node];
    }
    node
}

/// Returns the preorder interval of each node of a forest: its own number and the highest number below it. Parents may
/// have any index.
fn preorder_intervals(parents: &[Option<usize>]) -> Vec<(usize, usize)> {
    let mut children = vec![Vec::new(); parents.len()];
    let mut roots = Vec::new();
    for (child, parent) in parents.iter().enumerate() {
        match parent {
            Some(parent) => children[*parent].push(child),
            None => roots.push(child),
        }
    }
    let (mut intervals, mut next) = (vec![(0, 0); parents.len()], 0);
    let mut path: Vec<(usize, usize)> = Vec::new();
    for root in roots {
        path.push((root, 0));
        while let Some((node, child)) = path.last_mut() {
            if *child == 0 {
                intervals[*node].0 = next;
                next += 1;
            }
            match children[*node].get(*child) {
                Some(below) => {
                    *child += 1;
                    path.push((*below, 0));
                }
                None => {
                    intervals[*node].1 = next - 1;
                    path.pop();
                }
            }
        }
    }
    intervals
}

fn is_within((first, last): (usize, usize), (outer_first, outer_last): (usize, usize)) -> bool {
    outer_first <= first && last <= outer_last
}

struct Graph {
    blocks: Vec<Range<usize>>,
    successors: Vec<Vec<usize>>,
    predecessors: Vec<Vec<usize>>,
    /// Reachable blocks in reverse postorder.
    order: Vec<usize>,
    /// Position of each block in `order`.
    position: Vec<usize>,
}

const UNREACHED: usize = usize::MAX;

impl Graph {
    fn new(steps: &[Step]) -> Graph {
        let index: FxHashMap<u64, usize> =
            steps.iter().enumerate().map(|(index, step)| (step.address, index)).collect();
        let blocks = find_blocks(steps, &index);
        let block_at: FxHashMap<usize, usize> =
            blocks.iter().enumerate().map(|(block, range)| (range.start, block)).collect();
        let target = |address: Option<u64>| address.and_then(|address| block_at.get(index.get(&address)?).copied());
        let (mut successors, mut predecessors) = (vec![Vec::new(); blocks.len()], vec![Vec::new(); blocks.len()]);
        for (block, range) in blocks.iter().enumerate() {
            let fallthrough = (block + 1 < blocks.len()).then_some(block + 1);
            let targets = match steps[range.end - 1].flow {
                Flow::Next => [None, fallthrough],
                Flow::Jump(address) => [target(address), None],
                Flow::Branch(address) => [target(address), fallthrough],
                Flow::Switch | Flow::Leave => [None, None],
            };
            for target in targets.into_iter().flatten() {
                successors[block].push(target);
                predecessors[target].push(block);
            }
        }
        for (switch, target) in find_cases(steps, &blocks, &predecessors) {
            successors[switch].push(target);
            predecessors[target].push(switch);
        }
        let order = reverse_postorder(&successors);
        let mut position = vec![UNREACHED; blocks.len()];
        for (index, block) in order.iter().enumerate() {
            position[*block] = index;
        }
        Graph { blocks, successors, predecessors, order, position }
    }
}

/// Returns the edges of jumps by a table, and of jumps to an address that is computed from one. The tables are not
/// read: their targets are the blocks that nothing else jumps to. With several tables, a block belongs to the nearest
/// jump before it.
fn find_cases(steps: &[Step], blocks: &[Range<usize>], predecessors: &[Vec<usize>]) -> Vec<(usize, usize)> {
    let is_switch = |range: &Range<usize>| matches!(steps[range.end - 1].flow, Flow::Switch | Flow::Jump(None));
    let switches: Vec<usize> =
        blocks.iter().enumerate().filter(|(_, range)| is_switch(range)).map(|(block, _)| block).collect();
    let Some(first) = switches.first() else { return Vec::new() };
    let is_case = |block: &usize| {
        predecessors[*block].is_empty() && !blocks[*block].clone().all(|number| steps[number].is_padding)
    };
    let nearest = |block: usize| switches[..switches.partition_point(|switch| *switch < block)].last().unwrap_or(first);
    (1..blocks.len()).filter(is_case).map(|block| (*nearest(block), block)).collect()
}

/// Blocks at which branches diverge and join.
pub(crate) struct Branches {
    graph: Graph,
    immediate_dominator: Vec<usize>,
    /// Flag per block: true if the block ends the function.
    ends_function: Vec<bool>,
}

impl Branches {
    /// Builds the control flow graph and its dominators. Returns `None` if the target of a jump is unknown.
    pub(crate) fn new(steps: &[Step]) -> Option<Branches> {
        if steps.is_empty() || steps.iter().any(|step| matches!(step.flow, Flow::Jump(None) | Flow::Branch(None))) {
            return None;
        }
        let graph = Graph::new(steps);
        let immediate_dominator = immediate_dominators(&graph);
        let ends_function = graph.blocks.iter().map(|range| steps[range.end - 1].flow == Flow::Leave).collect();
        Some(Branches { graph, immediate_dominator, ends_function })
    }

    /// Returns the predecessors of an instruction's block and the block where their paths diverged, if branches join
    /// there. Returns `None` for a loop header, and for a block that ends the function, because the code that all
    /// returns share belongs to none of the branches.
    pub(crate) fn join(&self, instruction: usize) -> Option<(Vec<Range<usize>>, Range<usize>)> {
        let Graph { blocks, predecessors, position, .. } = &self.graph;
        let block = blocks.partition_point(|range| range.end <= instruction);
        let predecessors: Vec<usize> = predecessors
            .get(block)?
            .iter()
            .copied()
            .filter(|predecessors| position[*predecessors] != UNREACHED)
            .collect();
        if self.ends_function[block]
            || predecessors.len() < 2
            || predecessors.iter().any(|predecessors| position[*predecessors] >= position[block])
        {
            return None;
        }
        let range = |block: usize| blocks[block].clone();
        Some((predecessors.into_iter().map(range).collect(), range(self.immediate_dominator[block])))
    }
}

/// Direction of a search in the control flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Backward,
    Forward,
}

impl Branches {
    pub(crate) fn block_of(&self, instruction: usize) -> Option<usize> {
        let block = self.graph.blocks.partition_point(|range| range.end <= instruction);
        (block < self.graph.blocks.len()).then_some(block)
    }

    pub(crate) fn instructions(&self, block: usize) -> Range<usize> {
        self.graph.blocks[block].clone()
    }

    /// Returns the blocks directly before or after a block.
    pub(crate) fn neighbours(&self, block: usize, direction: Direction) -> &[usize] {
        match direction {
            Direction::Backward => &self.graph.predecessors[block],
            Direction::Forward => &self.graph.successors[block],
        }
    }
}

struct Dominators {
    /// Preorder interval of each block in the dominator tree; `None` for unreachable blocks.
    intervals: Vec<Option<(usize, usize)>>,
}

impl Dominators {
    fn new(graph: &Graph) -> Dominators {
        let dominators = immediate_dominators(graph);
        let parents: Vec<Option<usize>> = dominators
            .iter()
            .enumerate()
            .map(|(block, dominator)| {
                Some(*dominator).filter(|dominator| *dominator != UNREACHED && *dominator != block)
            })
            .collect();
        let intervals = preorder_intervals(&parents).into_iter().zip(&dominators);
        Dominators {
            intervals: intervals.map(|(interval, dominator)| (*dominator != UNREACHED).then_some(interval)).collect(),
        }
    }

    fn dominates(&self, ancestor: usize, block: usize) -> bool {
        let (Some(ancestor), Some(below)) = (self.intervals[ancestor], self.intervals[block]) else { return false };
        is_within(below, ancestor)
    }
}

/// Returns the immediate dominator of each block (Lengauer, Tarjan: *A Fast Algorithm for Finding Dominators in a
/// Flowgraph*, the simple version, O(n log n)).
fn immediate_dominators(graph: &Graph) -> Vec<usize> {
    let (preorder, parent) = preorder(&graph.successors);
    let mut number = vec![UNREACHED; graph.blocks.len()];
    for (vertex, block) in preorder.iter().enumerate() {
        number[*block] = vertex;
    }
    // All indices from here on are preorder numbers.
    let count = preorder.len();
    let mut forest =
        Forest { ancestor: vec![UNREACHED; count], label: (0..count).collect(), semi: (0..count).collect() };
    let (mut dominator, mut buckets) = (vec![0; count], vec![Vec::new(); count]);
    for vertex in (1..count).rev() {
        for predecessor in graph.predecessors[preorder[vertex]]
            .iter()
            .map(|block| number[*block])
            .filter(|vertex| *vertex != UNREACHED)
        {
            let smallest = forest.min_label(predecessor);
            forest.semi[vertex] = forest.semi[vertex].min(forest.semi[smallest]);
        }
        buckets[forest.semi[vertex]].push(vertex);
        forest.ancestor[vertex] = parent[vertex];
        for member in std::mem::take(&mut buckets[parent[vertex]]) {
            let smallest = forest.min_label(member);
            dominator[member] = if forest.semi[smallest] < forest.semi[member] { smallest } else { parent[vertex] };
        }
    }
    for vertex in 1..count {
        if dominator[vertex] != forest.semi[vertex] {
            dominator[vertex] = dominator[dominator[vertex]];
        }
    }
    number.iter().map(|vertex| if *vertex == UNREACHED { UNREACHED } else { preorder[dominator[*vertex]] }).collect()
}

/// Returns the blocks in depth-first preorder, and the preorder number of each block's parent.
fn preorder(successors: &[Vec<usize>]) -> (Vec<usize>, Vec<usize>) {
    let (mut order, mut parent, mut seen) = (Vec::new(), Vec::new(), vec![false; successors.len()]);
    let mut work = vec![(0, 0)];
    while let Some((block, parent_number)) = work.pop() {
        if !std::mem::replace(&mut seen[block], true) {
            work.extend(successors[block].iter().map(|successors| (*successors, order.len())));
            order.push(block);
            parent.push(parent_number);
        }
    }
    (order, parent)
}

/// Spanning forest of the processed blocks, with path compression.
struct Forest {
    ancestor: Vec<usize>,
    label: Vec<usize>,
    semi: Vec<usize>,
}

impl Forest {
    /// Returns the block with the smallest semidominator on the path to the root, which is excluded. Compresses the
    /// path.
    fn min_label(&mut self, vertex: usize) -> usize {
        if self.ancestor[vertex] == UNREACHED {
            return self.label[vertex];
        }
        let (mut path, mut top) = (Vec::new(), vertex);
        while self.ancestor[self.ancestor[top]] != UNREACHED {
            path.push(top);
            top = self.ancestor[top];
        }
        for descendant in path.into_iter().rev() {
            let ancestor = self.ancestor[descendant];
            if self.semi[self.label[ancestor]] < self.semi[self.label[descendant]] {
                self.label[descendant] = self.label[ancestor];
            }
            self.ancestor[descendant] = self.ancestor[ancestor];
        }
        self.label[vertex]
    }
}

fn find_blocks(steps: &[Step], index: &FxHashMap<u64, usize>) -> Vec<Range<usize>> {
    let mut starts = BTreeSet::from([0]);
    for (number, step) in steps.iter().enumerate() {
        if let Flow::Jump(Some(address)) | Flow::Branch(Some(address)) = step.flow {
            starts.extend(index.get(&address));
        }
        if step.flow != Flow::Next {
            starts.insert(number + 1);
        }
    }
    starts.insert(steps.len());
    let starts: Vec<usize> = starts.into_iter().filter(|number| *number <= steps.len()).collect();
    starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn reverse_postorder(successors: &[Vec<usize>]) -> Vec<usize> {
    let (mut order, mut seen) = (Vec::new(), vec![false; successors.len()]);
    let mut path = vec![(0, 0)];
    seen[0] = true;
    while let Some((block, edge)) = path.last_mut() {
        match successors[*block].get(*edge) {
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

    /// Builds instructions at addresses 0, 1, 2, ...
    fn steps(flows: &[Flow]) -> Vec<Step> {
        let step = |(address, flow): (usize, &Flow)| {
            let address = address as u64;
            Step { address, end: address + 1, flow: *flow, is_padding: false }
        };
        flows.iter().enumerate().map(step).collect()
    }

    #[test]
    fn a_loop_in_a_loop() {
        use Flow::{Branch, Leave, Next};
        // The outer loop is 1 to 5, the inner one 2 to 3.
        let natural_loops = find_loops(&steps(&[Next, Next, Next, Branch(Some(2)), Next, Branch(Some(1)), Leave]));
        assert_eq!(natural_loops.len(), 2);
        assert_eq!(
            natural_loops[0],
            NaturalLoop { own_blocks: vec![1..2, 4..6], header: 1, exits: vec![6], is_innermost: false, parent: None }
        );
        assert_eq!(natural_loops[1].instructions().collect::<Vec<_>>(), [2, 3]);
        assert!(natural_loops[1].exits == [4] && natural_loops[1].is_innermost);
    }

    #[test]
    fn a_loop_that_ends_early_has_two_exits() {
        use Flow::{Branch, Leave, Next};
        let natural_loops = find_loops(&steps(&[Next, Branch(Some(4)), Next, Branch(Some(0)), Leave]));
        assert_eq!(
            natural_loops,
            [NaturalLoop {
                own_blocks: vec![0..2, 2..4],
                header: 0,
                exits: vec![4, 4],
                is_innermost: true,
                parent: None
            }]
        );
    }

    #[test]
    fn unreachable_code_and_unknown_targets_form_no_loops() {
        use Flow::{Branch, Jump, Leave};
        assert_eq!(find_loops(&steps(&[Leave, Jump(Some(1))])), []);
        assert_eq!(find_loops(&steps(&[Branch(None), Jump(None), Branch(Some(99))])), []);
        assert_eq!(find_loops(&[]), []);
    }

    #[test]
    fn several_back_edges_form_one_loop() {
        use Flow::{Branch, Leave, Next};
        let natural_loops = find_loops(&steps(&[Next, Branch(Some(0)), Next, Branch(Some(0)), Leave]));
        assert_eq!(
            natural_loops,
            [NaturalLoop { own_blocks: vec![0..2, 2..4], header: 0, exits: vec![4], is_innermost: true, parent: None }]
        );
    }

    /// The cases of a `switch` are reached by a table.
    #[test]
    fn a_loop_with_a_switch_is_a_loop() {
        use Flow::{Branch, Jump, Leave, Next, Switch};
        let flows = [Next, Next, Switch, Jump(Some(5)), Jump(Some(5)), Branch(Some(1)), Leave];
        let natural_loops = find_loops(&steps(&flows));
        assert_eq!(natural_loops.len(), 1);
        assert_eq!(natural_loops[0].instructions().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        let branches = Branches::new(&steps(&flows)).expect("a graph");
        let block = branches.block_of(4).expect("a block");
        let neighbours = [Direction::Backward, Direction::Forward].map(|direction| {
            let blocks = branches.neighbours(block, direction);
            blocks
                .iter()
                .map(|block| branches.instructions(*block))
                .map(|range| (range.start, range.end))
                .collect::<Vec<_>>()
        });
        assert_eq!(neighbours, [vec![(1, 3)], vec![(5, 6)]]);
    }

    #[test]
    fn branches_diverge_and_join() {
        use Flow::{Branch, Jump, Leave, Next};
        let join_at =
            |flows: &[Flow], instruction| Branches::new(&steps(flows)).and_then(|branches| branches.join(instruction));
        // Paths through 1 and 2 diverge at 0 and join at 4; unreachable padding is at 3.
        let parted = [Branch(Some(2)), Jump(Some(4)), Jump(Some(4)), Next, Branch(Some(0)), Leave];
        assert_eq!(join_at(&parted, 4), Some((vec![1..2, 2..3], 0..1)));
        assert_eq!((join_at(&parted, 0), join_at(&parted, 1), join_at(&parted, 9)), (None, None, None));
        // No join: a loop header, the end of the function, a jump to an unknown target.
        assert_eq!(join_at(&[Next, Next, Branch(Some(1)), Leave], 1), None);
        assert_eq!(join_at(&[Branch(Some(2)), Jump(Some(3)), Jump(Some(3)), Leave], 3), None);
        assert_eq!(join_at(&[Branch(Some(2)), Jump(Some(3)), Jump(Some(3)), Jump(None)], 3), None);
    }

    #[test]
    fn every_loop_of_the_largest_functions_is_found() {
        const INSTRUCTIONS: usize = 16_000;
        // First nested loops, then a sequence of loops that each have an exit to the end.
        let nested: Vec<Flow> = (0..INSTRUCTIONS)
            .map(|address| {
                if address < INSTRUCTIONS / 2 {
                    Flow::Branch(Some(INSTRUCTIONS as u64))
                } else {
                    Flow::Branch(Some((INSTRUCTIONS - address) as u64))
                }
            })
            .chain([Flow::Leave])
            .collect();
        assert_eq!(find_loops(&steps(&nested)).len(), INSTRUCTIONS / 2);
        let sequential: Vec<Flow> = (0..INSTRUCTIONS as u64)
            .map(|address| {
                if address % 2 == 0 { Flow::Branch(Some(INSTRUCTIONS as u64)) } else { Flow::Branch(Some(address - 1)) }
            })
            .chain([Flow::Leave])
            .collect();
        assert_eq!(find_loops(&steps(&sequential)).len(), INSTRUCTIONS / 2);
    }

    #[test]
    fn a_jump_table_leads_to_the_cases_after_it() {
        // 0: table jump to the cases 1 and 3; 2: joins; 4: repeats from 0.
        let flows = [
            Flow::Jump(None),
            Flow::Next,
            Flow::Jump(Some(5)),
            Flow::Next,
            Flow::Next,
            Flow::Branch(Some(0)),
            Flow::Leave,
        ];
        let [natural_loop] = &find_loops(&steps(&flows))[..] else { panic!("one loop") };
        assert_eq!(natural_loop.instructions().count(), 6);
    }
}
