//! Choice of the rows that the first screen shows.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::tree::{Key, MIN_PARENT_PERCENT, MIN_PERCENT, NodeId, Tree};
use crate::profile::Count;

/// Maximum number of rows.
pub(super) const MAX_ROWS: usize = 15;
/// Rows below [`MIN_PERCENT`] are shown if there would be fewer than this number.
pub(super) const FEW_ROWS: usize = 5;
/// Minimum share of such a row: without a parent, and below another row.
pub(super) const MIN_ROOT_PERCENT: f64 = 0.5;
pub(super) const MIN_CHILD_PERCENT: f64 = 1.0;

/// Chosen row.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    /// Merged lines, outermost first.
    pub(super) chain: Vec<NodeId>,
    pub(super) depth: usize,
    /// Number of lines below the row that lack rows of their own.
    pub(super) hidden_lines: usize,
    /// Time of the rows below this one.
    pub(super) below: Count,
}

struct Candidate {
    total: Count,
    key: Key,
    node: NodeId,
    depth: usize,
    parent: Option<usize>,
}

impl Candidate {
    fn order(&self) -> impl Ord + use<> {
        (self.total, Reverse((self.depth, self.key)))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Candidate) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// Returns the rows in display order: widest first, each followed by the rows below it. A row is only shown if its
/// parent is.
pub(super) fn choose(tree: &mut Tree, all: Count) -> Vec<Chosen> {
    let mut rows: Vec<(Vec<NodeId>, usize, Option<usize>)> = Vec::new();
    let mut heap = BinaryHeap::new();
    let push = |heap: &mut BinaryHeap<Candidate>, tree: &mut Tree, node, depth, parent| {
        for node in tree.rows_below(node) {
            let (total, key) = (tree.node(node).total, tree.node(node).key);
            heap.push(Candidate { total, key, node, depth, parent });
        }
    };
    push(&mut heap, tree, 0, 0, None);
    while let Some(Candidate { total, node, depth, parent, .. }) = heap.pop().filter(|_| rows.len() < MAX_ROWS) {
        let percent = total.percent_of(all);
        if percent < MIN_PERCENT {
            if rows.len() >= FEW_ROWS {
                break;
            }
            let min = if depth == 0 { MIN_ROOT_PERCENT } else { MIN_CHILD_PERCENT };
            if percent < min {
                continue;
            }
        }
        let parent_total = parent.map(|parent: usize| tree.node(rows[parent].0[0]).total);
        if parent_total.is_some_and(|parent| total.percent_of(parent) < MIN_PARENT_PERCENT) {
            continue;
        }
        let chain = tree.chain(node);
        let last = chain[chain.len() - 1];
        rows.push((chain, depth, parent));
        push(&mut heap, tree, last, depth + 1, Some(rows.len() - 1));
    }
    let mut shown = Vec::new();
    show_below(tree, &rows, None, &mut shown);
    shown
}

fn show_below(
    tree: &mut Tree,
    rows: &[(Vec<NodeId>, usize, Option<usize>)],
    parent: Option<usize>,
    shown: &mut Vec<Chosen>,
) {
    // Rows were chosen in the order of their times.
    for (index, (chain, depth, _)) in rows.iter().enumerate().filter(|(_, row)| row.2 == parent) {
        let below: Vec<NodeId> = rows.iter().filter(|row| row.2 == Some(index)).map(|row| row.0[0]).collect();
        let below_total: Count = below.iter().map(|node| tree.node(*node).total).sum();
        let last = chain[chain.len() - 1];
        let mut hidden = tree.rows_below(last);
        hidden.retain(|node| {
            !below.contains(node) && matches!(tree.node(*node).key, Key::Line { .. } | Key::Function { .. })
        });
        let hidden_total: Count = hidden.iter().map(|node| tree.node(*node).total).sum();
        let hidden_lines = hidden.len();
        let is_half = hidden_total.percent_of(tree.node(last).total) >= HALF_PERCENT;
        shown.push(Chosen {
            chain: chain.clone(),
            depth: *depth,
            hidden_lines: if is_half && hidden_lines >= MIN_HIDDEN_LINES { hidden_lines } else { 0 },
            below: below_total,
        });
        show_below(tree, rows, Some(index), shown);
    }
}

/// Hidden lines are mentioned if they have at least this share of the row above them.
pub(super) const HALF_PERCENT: f64 = 50.0;
/// Fewer hidden lines are not mentioned.
pub(super) const MIN_HIDDEN_LINES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn add(tree: &mut Tree, lines: &[u32], samples: u64) {
        let path: Vec<(Key, u32)> =
            lines.iter().map(|line| (Key::Line { source: 0, line: *line, is_compiled: false }, *line)).collect();
        tree.add(&path, Count { weight: samples, samples }, 0, None);
    }

    /// Returns the innermost line, depth and hidden lines of each row.
    fn rows(tree: &mut Tree, all: u64) -> Vec<(u32, usize, usize)> {
        let rows = choose(tree, Count { weight: all, samples: all });
        let innermost = |row: &Chosen| match tree.node(row.chain[row.chain.len() - 1]).key {
            Key::Line { line, .. } => line,
            _ => 0,
        };
        rows.iter().map(|row| (innermost(row), row.depth, row.hidden_lines)).collect()
    }

    #[test]
    fn the_widest_rows_come_first_each_with_its_callees() {
        let mut tree = Tree::new();
        add(&mut tree, &[1, 2], 300);
        add(&mut tree, &[1, 3], 200);
        add(&mut tree, &[4], 450);
        add(&mut tree, &[5], 49);
        add(&mut tree, &[6], 1);
        assert_eq!(rows(&mut tree, 1000), [(1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 0, 0), (5, 0, 0)]);
    }

    #[test]
    fn small_rows_are_shown_if_there_are_few() {
        let mut tree = Tree::new();
        add(&mut tree, &[1], 980);
        add(&mut tree, &[2], 14);
        add(&mut tree, &[3], 2);
        assert_eq!(rows(&mut tree, 1000), [(1, 0, 0), (2, 0, 0)], "1.4 % is shown, 0.2 % is not");
    }

    #[test]
    fn hidden_lines_are_counted() {
        let mut tree = Tree::new();
        (10..110).for_each(|callee| add(&mut tree, &[1, callee], 1));
        assert_eq!(rows(&mut tree, 100), [(1, 0, 100)]);
    }
}
