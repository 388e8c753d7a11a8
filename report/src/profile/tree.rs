//! Trees of inlined calls below source lines.

use rustc_hash::FxHashMap;

use super::{Count, Shares};

/// Inlined call, with the calls inlined into it.
#[derive(Clone, Debug)]
pub struct Inlined {
    /// Index into [`Profile::functions`](super::Profile::functions).
    pub function: u32,
    /// Index into [`Profile::files`](super::Profile::files).
    pub file: Option<u32>,
    /// Line in the inlined function.
    pub line: u32,
    /// Part of the samples in this call.
    pub shares: Shares,
    /// Calls that were inlined into this one.
    pub inlined: Vec<Inlined>,
}

/// Parent of an inlined call: a line (source and number), or another inlined call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Parent {
    Line(u32, u32),
    Call(u32),
}

/// Function, source and line of an inlined call.
pub(super) type Call = (u32, Option<u32>, u32);

/// Trees of inlined calls under construction.
#[derive(Debug, Default)]
pub(super) struct Trees {
    indices: FxHashMap<(Parent, Call), u32>,
    nodes: Vec<(Parent, Call, Shares)>,
}

impl Trees {
    pub(super) fn intern(&mut self, parent: Parent, call: Call) -> u32 {
        let next = self.nodes.len() as u32;
        let nodes = &mut self.nodes;
        *self.indices.entry((parent, call)).or_insert_with(|| {
            nodes.push((parent, call, Shares::default()));
            next
        })
    }

    pub(super) fn add_total(&mut self, node: u32, count: Count) {
        self.nodes[node as usize].2.total += count;
    }

    pub(super) fn add_self(&mut self, node: u32, count: Count) {
        self.nodes[node as usize].2.self_count += count;
    }

    /// Returns the finished trees by line.
    pub(super) fn finish(self, file_of: &impl Fn(Option<u32>) -> Option<u32>) -> FxHashMap<(u32, u32), Vec<Inlined>> {
        let mut children: FxHashMap<u32, Vec<Inlined>> = FxHashMap::default();
        let mut roots: FxHashMap<(u32, u32), Vec<Inlined>> = FxHashMap::default();
        // Parents have smaller indices than their children.
        for (index, (parent, (function, source, line), shares)) in self.nodes.into_iter().enumerate().rev() {
            let mut inlined = children.remove(&(index as u32)).unwrap_or_default();
            inlined.sort_by(|a: &Inlined, b| b.shares.total.cmp(&a.shares.total).then(a.line.cmp(&b.line)));
            let call = Inlined { function, file: file_of(source), line, shares, inlined };
            match parent {
                Parent::Line(source, line) => roots.entry((source, line)).or_default().push(call),
                Parent::Call(parent) => children.entry(parent).or_default().push(call),
            }
        }
        for calls in roots.values_mut() {
            calls.sort_by(|a, b| b.shares.total.cmp(&a.shares.total).then(a.line.cmp(&b.line)));
        }
        roots
    }
}
