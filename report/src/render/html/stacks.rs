//! Sample stacks for the page's call tree, flame graph and timeline. The page adds up the selected part.
//!
//! The data is a tree of frames in preorder, and the time of each thread at each node per time slice. The numbers of
//! slices and nodes are limited regardless of the length of the recording. Nodes that are too light are merged: each
//! caller gets one child with function -1 for all of them, so that the sums still include all samples.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::answer::LineTree;
use crate::distinct::Distinct;
use crate::profile::activity::Activity;
use crate::profile::hottest::HotLine;
use crate::profile::{Count, SourcePosition};
use crate::recording::{Recording, Sample, Thread};
use crate::report::{Report, Unit};
use crate::symbols::Frame;

use super::barriers::barrier_waits;

/// Maximum number of time slices in the timeline.
const MAX_SLICES: u64 = 300;
const MAX_NODES: usize = 30_000;
const MAX_PARTS: usize = 150_000;

/// Key of a frame: function, file and line by their indices in the page (-1, -1 and 0 if unknown). The flag is true for
/// an entry point that only calls the next function.
type FrameKey = (i64, i64, u32, bool);
/// Key of a part: slice, thread, node, activity, hot line, and leaf of the tree of lines. The hot line is 0 if there is
/// none, else 1 + 2 * index, plus 1 for time in a C function.
type Part = (u64, u32, u32, u8, u32, u32);

#[derive(Debug, Clone, Copy)]
struct Node {
    parent: u32,
    frame_key: u32,
    weight: u64,
}

/// Root of the tree, which is not a frame.
const ROOT: u32 = 0;

struct Tree {
    frame_keys: Distinct<FrameKey>,
    nodes: Vec<Node>,
    node_numbers: FxHashMap<(u32, u32), u32>,
}

impl Tree {
    fn new() -> Tree {
        let root = Node { parent: ROOT, frame_key: 0, weight: 0 };
        let mut tree = Tree { frame_keys: Distinct::default(), nodes: vec![root], node_numbers: FxHashMap::default() };
        tree.frame_keys.number((-1, -1, 0, false));
        tree
    }

    fn child(&mut self, parent: u32, frame_key: u32) -> u32 {
        let next = self.nodes.len() as u32;
        *self.node_numbers.entry((parent, frame_key)).or_insert_with(|| {
            self.nodes.push(Node { parent, frame_key, weight: 0 });
            next
        })
    }

    /// Merges light nodes, and returns the node that now represents each node.
    fn merge_light_nodes(&mut self) -> Vec<u32> {
        // Parents have smaller indices than their children.
        for index in (1..self.nodes.len()).rev() {
            let Node { parent, weight, .. } = self.nodes[index];
            let sum = &mut self.nodes[parent as usize].weight;
            *sum = sum.saturating_add(weight);
        }
        let mut weights: Vec<u64> = self.nodes.iter().map(|node| node.weight).collect();
        weights.sort_unstable_by(|a, b| b.cmp(a));
        // Nodes of equal weight are all kept or all merged.
        let min_weight = weights.get(MAX_NODES).map_or(0, |weight| weight.saturating_add(1));
        let mut representatives: Vec<u32> = vec![ROOT];
        for index in 1..self.nodes.len() {
            let node = self.nodes[index];
            let parent = representatives[node.parent as usize];
            let is_folded = parent != ROOT && self.nodes[parent as usize].frame_key == 0;
            representatives.push(match node.weight >= min_weight {
                _ if is_folded => parent,
                true => index as u32,
                false => {
                    let rest = self.child(parent, 0);
                    self.add_weight(rest, node.weight)
                }
            });
        }
        representatives
    }

    fn add_weight(&mut self, node: u32, weight: u64) -> u32 {
        let sum = &mut self.nodes[node as usize].weight;
        *sum = sum.saturating_add(weight);
        node
    }
}

/// Indices that a [`FrameKey`] contains.
struct Indices {
    files: FxHashMap<u32, i64>,
}

impl Indices {
    fn new(report: &Report) -> Indices {
        let files: FxHashMap<&str, i64> =
            report.profile.files.iter().zip(0..).map(|(file, number)| (file.path.as_str(), number)).collect();
        let sources = report.symbols.sources.iter().zip(0..);
        Indices { files: sources.filter_map(|(path, source)| Some((source, *files.get(path.as_str())?))).collect() }
    }

    fn frame_key(&self, report: &Report, frame: &Frame, is_entry: bool) -> FrameKey {
        let function = report.profile.rows[frame.function as usize];
        let function = if function == u32::MAX { -1 } else { i64::from(function) };
        let file = frame.source.and_then(|source| self.files.get(&source)).copied();
        let line = frame
            .line
            .filter(|line| file.is_some_and(|file| report.profile.files[file as usize].lines.contains_key(line)));
        match file.zip(line) {
            Some((file, line)) => (function, file, line, is_entry),
            None => (function, -1, 0, is_entry),
        }
    }
}

/// Candidates for the hottest lines of any selected part of the recording.
struct HotLines {
    indices: FxHashMap<SourcePosition, u32>,
    lines: Vec<HotLine>,
}

impl HotLines {
    fn new(report: &Report) -> HotLines {
        let lines = report.profile.hottest(usize::MAX);
        HotLines { indices: lines.iter().map(|line| line.position).zip(0..).collect(), lines }
    }

    /// Returns the hot line code of a stack, as in [`Part`].
    fn line_code(&self, report: &Report, indices: &Indices, stack: u32) -> u32 {
        let stack_activity = report.profile.activities.get(stack);
        let position = stack_activity
            .line
            .and_then(|(source, line)| Some((u32::try_from(*indices.files.get(&source)?).ok()?, line)));
        let number = position.and_then(|position| self.indices.get(&position));
        number.map_or(0, |number| 1 + 2 * number + u32::from(stack_activity.in_c))
    }

    /// Returns file, number, compiled flag, and caller of generated code for each line.
    fn to_json(&self, report: &Report) -> Value {
        let line = |line: &HotLine| {
            let (file, number) = line.position;
            let generated_by =
                report.profile.files[file as usize].lines.get(&number).and_then(|line| line.generated_by);
            json!([file, number, line.compiled, generated_by])
        };
        self.lines.iter().map(line).collect()
    }
}

/// Time axis of the page.
struct Timeline {
    /// Time of each thread that is shown as zero.
    starts: Vec<u64>,
    length: u64,
}

impl Timeline {
    fn new(recording: &Recording) -> Timeline {
        let first = recording.samples.iter().map(|sample| sample.time).min().unwrap_or_default();
        let mut starts = vec![first; recording.threads.len()];
        if recording.parts > 1 {
            // Recordings may be from different days and clocks, so the processes of each command start at zero, and each
            // process whose command is unknown.
            let mut clocks = Distinct::default();
            let clock = |thread: &Thread| {
                let process = if thread.run.is_empty() { thread.pid } else { 0 };
                clocks.number((thread.host.clone(), thread.run.clone(), process))
            };
            let clock_of_thread: Vec<u32> = recording.threads.iter().map(clock).collect();
            let mut clock_starts = vec![u64::MAX; clocks.values.len()];
            for sample in &recording.samples {
                let start = &mut clock_starts[clock_of_thread[sample.thread as usize] as usize];
                *start = sample.time.min(*start);
            }
            starts = clock_of_thread.iter().map(|clock| clock_starts[*clock as usize]).collect();
        }
        let offset = |sample: &Sample| sample.time.saturating_sub(starts[sample.thread as usize]);
        let length = recording.samples.iter().map(offset).max().unwrap_or(0);
        Timeline { starts, length }
    }
}

pub(super) fn stacks(report: &Report, lines: &LineTree) -> Value {
    let recording = &report.recording;
    let unit = report.unit();
    let (mut tree, indices) = (Tree::new(), Indices::new(report));
    // Node, activity and hot line of each stack.
    let hot = HotLines::new(report);
    let mut leaves: Vec<Option<(u32, u8, u32)>> = vec![None; recording.stacks.len()];
    for sample in report.counted_samples() {
        let (node, ..) = *leaves[sample.stack as usize].get_or_insert_with(|| {
            let frames = report.shown_frames(sample.stack);
            let mut node = ROOT;
            for (depth, frame) in frames.iter().enumerate().rev() {
                let is_entry = depth != 0 && report.is_entry_of(frame, &frames[depth - 1]);
                let frame_key = tree.frame_keys.number(indices.frame_key(report, frame, is_entry));
                node = tree.child(node, frame_key);
            }
            (node, activity_index(report, sample.stack), hot.line_code(report, &indices, sample.stack))
        });
        tree.add_weight(node, unit.amount(Count::from_sample(sample)));
    }
    let representatives = tree.merge_light_nodes();
    let timeline = Timeline::new(recording);
    let mut slices = MAX_SLICES;
    let (slice, parts) = loop {
        let slice = timeline.length / slices + 1;
        let parts = collect_parts(report, lines, &timeline, slice, |stack| {
            let (node, activity, line_code) = leaves[stack as usize].unwrap_or_default();
            (representatives[node as usize], activity, line_code)
        });
        if parts.len() <= MAX_PARTS || slices == 1 {
            break (slice, parts);
        }
        slices /= 2;
    };
    let (order, depths) = preorder(&tree, &representatives);
    let mut flat_parts: Vec<u64> = Vec::with_capacity(parts.len() * 8);
    for ((slice, thread, node, activity, hot, leaf), count) in parts {
        let codes = [thread, order[node as usize], activity.into(), hot].map(u64::from);
        flat_parts.push(slice);
        flat_parts.extend(codes);
        flat_parts.extend([count.samples, count.weight, leaf.into()]);
    }
    let barriers = barrier_waits(report, &timeline.starts, slice).into_iter();
    json!({
        "clock": unit == Unit::Time,
        "unit": if unit == Unit::Samples { "samples" } else { report.event() },
        "slice": slice,
        "slices": timeline.length / slice + 1,
        "activities": Activity::ALL.map(Activity::words),
        "spots": tree.frame_keys.values.iter().flat_map(|(function, file, line, is_entry)| {
            [*function, *file, i64::from(*line), i64::from(*is_entry)]
        }).collect::<Vec<_>>(),
        "nodes": depths.iter().flat_map(|(depth, frame_key)| [*depth, *frame_key]).collect::<Vec<_>>(),
        "parts": flat_parts,
        "hot": hot.to_json(report),
        "barriers": barriers
            .flat_map(|((f, thread, slice), waited)| [f.into(), thread.into(), slice, waited])
            .collect::<Vec<u64>>(),
    })
}

fn collect_parts(
    report: &Report,
    lines: &LineTree,
    timeline: &Timeline,
    slice: u64,
    leaf_of_stack: impl Fn(u32) -> (u32, u8, u32),
) -> BTreeMap<Part, Count> {
    let mut parts: FxHashMap<Part, Count> = FxHashMap::default();
    for (sample, leaf) in report.recording.samples.iter().zip(&lines.leaf_of_sample) {
        let Some(leaf) = leaf else { continue };
        let time = sample.time.saturating_sub(timeline.starts[sample.thread as usize]);
        let (node, activity, hot) = leaf_of_stack(sample.stack);
        let part = (time / slice, sample.thread, node, activity, hot, *leaf);
        *parts.entry(part).or_default() += Count::from_sample(sample);
    }
    parts.into_iter().collect()
}

/// Returns the preorder number of each node, and the depth and frame of each number. The root has number 0.
fn preorder(tree: &Tree, representatives: &[u32]) -> (Vec<u32>, Vec<(u32, u32)>) {
    let is_kept =
        |index: usize| representatives.get(index).is_none_or(|representatives| *representatives as usize == index);
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); tree.nodes.len()];
    for (index, node) in tree.nodes.iter().enumerate().skip(1).filter(|(index, _)| is_kept(*index)) {
        children[node.parent as usize].push(index as u32);
    }
    let (mut order, mut depths) = (vec![0; tree.nodes.len()], Vec::new());
    let mut pending: Vec<(u32, u32)> = vec![(ROOT, 0)];
    while let Some((node, depth)) = pending.pop() {
        order[node as usize] = depths.len() as u32;
        depths.push((depth, tree.nodes[node as usize].frame_key));
        let node_children = &mut children[node as usize];
        // Children are pushed in ascending order of weight, so the heaviest one is popped first.
        node_children.sort_by_key(|child| (tree.nodes[*child as usize].weight, std::cmp::Reverse(*child)));
        pending.extend(node_children.iter().map(|child| (*child, depth + 1)));
    }
    (order, depths)
}

/// Returns the index into [`Activity::ALL`].
fn activity_index(report: &Report, stack: u32) -> u8 {
    report.profile.activities.get(stack).activity as u8
}
