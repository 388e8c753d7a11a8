//! Tree of the user's lines without a choice of rows, from which the page makes the first screen of any part of the
//! recording. The page chooses rows by the same limits; `report/tests/browser.rs` compares the results.

use rustc_hash::FxHashMap;

use super::build::{Builder, Evidence, MAX_IMPORT_PERCENT, MAX_IMPORTS, advice_text, when_again};
use super::row::{MIN_CALL_PERCENT, MIN_FUNCTIONS, MIN_WORD_PERCENT, ONE_WORD_PERCENT};
use super::rows::{FEW_ROWS, HALF_PERCENT, MAX_ROWS, MIN_CHILD_PERCENT, MIN_HIDDEN_LINES, MIN_ROOT_PERCENT};
use super::tree::{CHAIN_PERCENT, Key, MAX_LINES, MIN_PARENT_PERCENT, MIN_PERCENT, SHOWN_LINES_PERCENT};
use crate::distinct::Distinct;
use crate::profile::library_of_stack;

/// Lines and compilations by caller.
#[derive(Debug)]
pub(crate) struct LineTree {
    /// Node 0 is the root. Other nodes come after their parents.
    pub(crate) nodes: Vec<LineNode>,
    /// Functions that were compiled: name, path and line.
    pub(crate) compiled: Vec<(String, String, u32)>,
    /// What samples did: texts of [`Leaf::word`] and [`Leaf::call`].
    pub(crate) words: Vec<String>,
    pub(crate) leaves: Vec<Leaf>,
    /// Index into `leaves` of each sample; `None` for those of idle threads.
    pub(crate) leaf_of_sample: Vec<Option<u32>>,
    pub(crate) libraries: Vec<String>,
    /// When each compilation of [`Leaf::compilation`] happens again.
    pub(crate) again: Vec<&'static str>,
    /// Advice for loops, hottest loop first: path, line and text.
    pub(crate) advice: Vec<(String, u32, String)>,
}

/// Node of the tree.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LineNode {
    Root,
    Line {
        parent: u32,
        /// Index into [`Symbols::sources`](crate::symbols::Symbols::sources).
        source: u32,
        line: u32,
        /// Function, as an index into [`Profile::functions`](crate::profile::Profile::functions).
        function: u32,
        is_compiled: bool,
    },
    /// Compilation of a function, as an index into [`LineTree::compiled`].
    Compilation {
        parent: u32,
        function: u32,
    },
}

/// What samples of one node did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leaf {
    pub(crate) node: u32,
    pub(crate) word: u32,
    /// C function that compiled code called.
    pub(crate) call: Option<u32>,
    /// Index into [`LineTree::again`].
    pub(crate) compilation: Option<u32>,
    /// Row of the list of libraries, as an index into [`LineTree::libraries`].
    pub(crate) library: Option<u32>,
}

/// Limits of the first screen, by name.
pub(crate) const LIMITS: [(&str, f64); 17] = [
    ("rows", MAX_ROWS as f64),
    ("fewRows", FEW_ROWS as f64),
    ("percent", MIN_PERCENT),
    ("rootPercent", MIN_ROOT_PERCENT),
    ("childPercent", MIN_CHILD_PERCENT),
    ("parentPercent", MIN_PARENT_PERCENT),
    ("chainPercent", CHAIN_PERCENT),
    ("shownLinesPercent", SHOWN_LINES_PERCENT),
    ("lines", MAX_LINES as f64),
    ("hiddenLines", MIN_HIDDEN_LINES as f64),
    ("halfPercent", HALF_PERCENT),
    ("oneWordPercent", ONE_WORD_PERCENT),
    ("wordPercent", MIN_WORD_PERCENT),
    ("callPercent", MIN_CALL_PERCENT),
    ("functions", MIN_FUNCTIONS as f64),
    ("importPercent", MAX_IMPORT_PERCENT),
    ("imports", MAX_IMPORTS as f64),
];

impl LineTree {
    pub(crate) fn new(evidence: &Evidence<'_>) -> LineTree {
        let samples = evidence.samples;
        let mut builder = Builder::new(evidence);
        let activities = &evidence.profile.activities;
        let (mut leaves, mut compilations, mut libraries) =
            (Distinct::default(), Distinct::default(), Distinct::default());
        let mut leaf_of_group = Vec::with_capacity(samples.groups.len());
        for group in &samples.groups {
            let node = builder.add_to_tree(group) as u32;
            let compilation = group.compilation.map(|compilation| compilations.number(compilation));
            let library = library_of_stack(activities, group.stack).map(|library| libraries.number(library));
            leaf_of_group.push(leaves.number(Leaf { node, word: group.word, call: group.call, compilation, library }));
        }
        let compilation = |index: &u32| &evidence.compilations[*index as usize];
        let compiled = builder.compiled.values.iter();
        let advice = evidence.loops.iter();
        let advice = advice.filter_map(|hot_loop| Some((hot_loop.path.clone(), hot_loop.line, advice_text(hot_loop)?)));
        LineTree {
            nodes: nodes(&builder),
            compiled: compiled.map(|(name, path, line)| (name.clone(), (*path).to_owned(), *line)).collect(),
            leaves: leaves.values,
            libraries: libraries.values,
            leaf_of_sample: (samples.group_of_sample.iter())
                .map(|group| group.map(|group| leaf_of_group[group as usize]))
                .collect(),
            again: compilations.values.iter().map(|index| when_again([compilation(index).why].into_iter())).collect(),
            advice: advice.collect(),
            words: samples.words.clone(),
        }
    }
}

fn nodes(builder: &Builder<'_>) -> Vec<LineNode> {
    let nodes = builder.tree.nodes();
    let mut parents: FxHashMap<usize, u32> = FxHashMap::default();
    for (parent, node) in nodes.iter().enumerate() {
        parents.extend(node.children.iter().map(|child| (*child, parent as u32)));
    }
    let node = |(index, node): (usize, &super::tree::Node)| {
        let parent = parents.get(&index).copied().unwrap_or_default();
        match node.key {
            Key::Line { source, line, is_compiled } => {
                LineNode::Line { parent, source, line, function: node.row, is_compiled }
            }
            Key::Compilation(function) => LineNode::Compilation { parent, function },
            Key::Root | Key::Function { .. } => LineNode::Root,
        }
    };
    nodes.iter().enumerate().map(node).collect()
}
