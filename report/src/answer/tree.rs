//! Tree of the user's lines by total time.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::profile::Count;

/// Index of a node in the tree. The root is node 0.
pub(super) type NodeId = usize;

/// Identity of a node among its siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    Root,
    Line {
        source: u32,
        line: u32,
        is_compiled: bool,
    },
    /// Function that was compiled, by its number.
    Compilation(u32),
    /// Function whose lines are too many and too small for rows of their own.
    Function {
        row: u32,
        source: u32,
        first: u32,
        last: u32,
        is_compiled: bool,
    },
}

/// Line, or compilation, with everything below it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) key: Key,
    /// Function of a line, as an index into [`Profile::functions`](crate::profile::Profile::functions).
    pub(super) row: u32,
    pub(super) total: Count,
    /// Time by word: what the line and everything below it did.
    pub(super) parts: BTreeMap<u32, Count>,
    /// Time by C function that compiled code called.
    pub(super) calls: BTreeMap<u32, Count>,
    pub(super) children: Vec<NodeId>,
}

impl Node {
    fn new(key: Key, row: u32) -> Node {
        Node { key, row, total: Count::default(), parts: BTreeMap::new(), calls: BTreeMap::new(), children: Vec::new() }
    }

    fn merge(&mut self, other: &Node) {
        self.total += other.total;
        for (word, count) in &other.parts {
            *self.parts.entry(*word).or_default() += *count;
        }
        for (word, count) in &other.calls {
            *self.calls.entry(*word).or_default() += *count;
        }
    }
}

pub(super) struct Tree {
    nodes: Vec<Node>,
    indices: FxHashMap<(NodeId, Key), NodeId>,
}

/// Minimum share of a row in all time, and in its parent.
pub(super) const MIN_PERCENT: f64 = 2.0;
pub(super) const MIN_PARENT_PERCENT: f64 = 5.0;
/// A line is merged with its only large callee if the callee has this share of it.
pub(super) const CHAIN_PERCENT: f64 = 95.0;
/// Lines of a function are shown if they have at least this share of it; otherwise the function is one row.
pub(super) const SHOWN_LINES_PERCENT: f64 = 70.0;
/// Fewer lines are always shown.
pub(super) const MAX_LINES: usize = 2;

impl Tree {
    pub(super) fn new() -> Tree {
        Tree { nodes: vec![Node::new(Key::Root, u32::MAX)], indices: FxHashMap::default() }
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// Returns all nodes. A node comes after its parent.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Adds time that was spent below a path. Returns the innermost node.
    pub(super) fn add(&mut self, path: &[(Key, u32)], count: Count, word: u32, call: Option<u32>) -> NodeId {
        self.nodes[0].total += count;
        let mut parent = 0;
        for (key, row) in path {
            let next = self.nodes.len();
            let id = *self.indices.entry((parent, *key)).or_insert(next);
            if id == next {
                self.nodes.push(Node::new(*key, *row));
                self.nodes[parent].children.push(id);
            }
            let node = &mut self.nodes[id];
            node.total += count;
            *node.parts.entry(word).or_default() += count;
            if let Some(call) = call {
                *node.calls.entry(call).or_default() += count;
            }
            parent = id;
        }
        parent
    }

    /// Merges a line with its callee while the callee is of the same kind and has nearly all of its time. Returns the
    /// chain from `id` to the innermost line.
    pub(super) fn chain(&mut self, id: NodeId) -> Vec<NodeId> {
        let mut chain = vec![id];
        loop {
            let last = chain[chain.len() - 1];
            let callees = self.rows_below(last);
            let Some(callee) = callees.into_iter().max_by_key(|callee| self.nodes[*callee].total) else { break };
            let (node, callee_node) = (&self.nodes[last], &self.nodes[callee]);
            let is_same_kind = match (node.key, callee_node.key) {
                (Key::Line { is_compiled: outer, .. }, Key::Line { is_compiled: inner, .. }) => outer == inner,
                _ => false,
            };
            if !is_same_kind || callee_node.total.percent_of(node.total) < CHAIN_PERCENT {
                break;
            }
            chain.push(callee);
        }
        chain
    }

    /// Returns the nodes that may be rows below a node: its lines, and a function instead of its lines if these are
    /// many and small.
    pub(super) fn rows_below(&mut self, id: NodeId) -> Vec<NodeId> {
        let children = self.nodes[id].children.clone();
        if matches!(self.nodes[id].key, Key::Function { .. }) {
            return children;
        }
        let (all, parent) = (self.nodes[0].total, self.nodes[id].total);
        let mut rows = Vec::new();
        let mut functions: BTreeMap<(u32, u32, bool), Vec<NodeId>> = BTreeMap::new();
        for child in children {
            match self.nodes[child].key {
                Key::Line { source, is_compiled, .. } => {
                    functions.entry((self.nodes[child].row, source, is_compiled)).or_default().push(child);
                }
                _ => rows.push(child),
            }
        }
        for ((row, source, is_compiled), lines) in functions {
            let (mut total, mut shown) = (Count::default(), Count::default());
            for line in &lines {
                let count = self.nodes[*line].total;
                total += count;
                if count.percent_of(all) >= MIN_PERCENT && count.percent_of(parent) >= MIN_PARENT_PERCENT {
                    shown += count;
                }
            }
            let is_one_row = lines.len() > MAX_LINES
                && shown.percent_of(total) < SHOWN_LINES_PERCENT
                && total.percent_of(all) >= MIN_PERCENT;
            if !is_one_row {
                rows.extend(lines);
                continue;
            }
            rows.push(self.function_node(id, (row, source, is_compiled), lines));
        }
        rows
    }

    fn function_node(
        &mut self,
        parent: NodeId,
        (row, source, is_compiled): (u32, u32, bool),
        lines: Vec<NodeId>,
    ) -> NodeId {
        let numbers = lines.iter().filter_map(|line| match self.nodes[*line].key {
            Key::Line { line, .. } => Some(line),
            _ => None,
        });
        let (first, last) = numbers.fold((u32::MAX, 0), |(first, last), number| (first.min(number), last.max(number)));
        let key = Key::Function { row, source, first, last, is_compiled };
        if let Some(known) = self.indices.get(&(parent, key)) {
            return *known;
        }
        let mut function = Node::new(key, row);
        for line in &lines {
            function.merge(&self.nodes[*line]);
        }
        function.children = lines;
        let id = self.nodes.len();
        self.nodes.push(function);
        self.indices.insert((parent, key), id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the key of a line. Line 100 and above belong to function 2.
    fn line(line: u32, is_compiled: bool) -> (Key, u32) {
        (Key::Line { source: 0, line, is_compiled }, if line < 100 { 1 } else { 2 })
    }

    fn add(tree: &mut Tree, lines: &[(Key, u32)], samples: u64) {
        tree.add(lines, Count { weight: samples, samples }, 0, None);
    }

    #[test]
    fn chains_do_not_cross_from_python_to_compiled_code() {
        let mut tree = Tree::new();
        let (outer, inner, compiled) = (line(1, false), line(2, false), line(3, true));
        add(&mut tree, &[outer, inner, compiled], 97);
        add(&mut tree, &[outer], 3);
        let [first] = tree.rows_below(0)[..] else { panic!("one row") };
        let chain: Vec<Key> = tree.chain(first).into_iter().map(|node| tree.node(node).key).collect();
        assert_eq!(chain, [outer.0, inner.0]);
        // Without nearly all of the time in one callee, both lines have rows.
        add(&mut tree, &[outer], 10);
        assert_eq!(tree.chain(first).len(), 1);
    }

    #[test]
    fn many_small_lines_are_one_function() {
        let mut tree = Tree::new();
        (1..=50).for_each(|number| add(&mut tree, &[line(number, false)], 1));
        add(&mut tree, &[line(100, false)], 50);
        let rows: Vec<Key> = tree.rows_below(0).into_iter().map(|node| tree.node(node).key).collect();
        let function = Key::Function { row: 1, source: 0, first: 1, last: 50, is_compiled: false };
        assert_eq!(rows, [function, line(100, false).0]);
        // The same rows are returned again, not new ones.
        let count = tree.nodes.len();
        assert_eq!((tree.rows_below(0).len(), tree.nodes.len()), (2, count));
    }
}
