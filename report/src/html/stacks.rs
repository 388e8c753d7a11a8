//! The stacks of all samples, for the page's tree, flame graph and timeline: the page adds them up by what is chosen.
//!
//! A tree of frames in preorder, and how much of each thread's time was at each of its nodes in each slice of time.
//! However long a recording is, there are so many slices and nodes and no more; what is too light for a node of its own
//! is added to its caller's `-1`. Nothing is lost: the numbers are all samples.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::activity::Activity;
use crate::export::{
    Unit,
    shown::{is_entry_of, shown_frames},
};
use crate::hottest::{HotLine, hottest};
use crate::profile::{Count, Place};
use crate::recording::Recording;
use crate::report::Report;
use crate::symbols::Frame;

use super::barriers::barriers;

/// Slices of time.
const SLICES: u64 = 300;
const MOST_NODES: usize = 30_000;
const MOST_PARTS: usize = 150_000;

/// Function, file and line, by their numbers in the page; -1 and 0 where there is none. And whether it is only the
/// entry of the function that is next.
type Spot = (i64, i64, u32, bool);
/// Slice, thread, node, activity, and which hot line: 0 for none, else twice its number behind one, and one more in a C
/// function.
type Part = (u64, u32, u32, u8, u32);

#[derive(Debug, Clone, Copy)]
struct Node {
    parent: u32,
    spot: u32,
    weight: u64,
}

/// The root, which is no frame.
const ROOT: u32 = 0;

struct Tree {
    spots: Vec<Spot>,
    spot_numbers: FxHashMap<Spot, u32>,
    nodes: Vec<Node>,
    node_numbers: FxHashMap<(u32, u32), u32>,
}

impl Tree {
    fn new() -> Tree {
        let root = Node { parent: ROOT, spot: 0, weight: 0 };
        let mut tree = Tree {
            spots: Vec::new(),
            spot_numbers: FxHashMap::default(),
            nodes: vec![root],
            node_numbers: FxHashMap::default(),
        };
        tree.spot((-1, -1, 0, false));
        tree
    }

    fn spot(&mut self, spot: Spot) -> u32 {
        let next = self.spots.len() as u32;
        *self.spot_numbers.entry(spot).or_insert_with(|| {
            self.spots.push(spot);
            next
        })
    }

    fn node(&mut self, parent: u32, spot: u32) -> u32 {
        let next = self.nodes.len() as u32;
        *self.node_numbers.entry((parent, spot)).or_insert_with(|| {
            self.nodes.push(Node { parent, spot, weight: 0 });
            next
        })
    }

    /// For each node, the node that represents it.
    fn fold(&mut self) -> Vec<u32> {
        // A parent is older than its children.
        for at in (1..self.nodes.len()).rev() {
            let Node { parent, weight, .. } = self.nodes[at];
            let sum = &mut self.nodes[parent as usize].weight;
            *sum = sum.saturating_add(weight);
        }
        let mut weights: Vec<u64> = self.nodes.iter().map(|node| node.weight).collect();
        weights.sort_unstable_by(|a, b| b.cmp(a));
        // Those of the same weight go together.
        let least = weights.get(MOST_NODES).map_or(0, |weight| weight.saturating_add(1));
        let mut kept: Vec<u32> = vec![ROOT];
        for at in 1..self.nodes.len() {
            let node = self.nodes[at];
            let parent = kept[node.parent as usize];
            let is_folded = parent != ROOT && self.nodes[parent as usize].spot == 0;
            kept.push(match node.weight >= least {
                _ if is_folded => parent,
                true => at as u32,
                false => {
                    let rest = self.node(parent, 0);
                    self.add_to(rest, node.weight)
                }
            });
        }
        kept
    }

    fn add_to(&mut self, node: u32, weight: u64) -> u32 {
        let sum = &mut self.nodes[node as usize].weight;
        *sum = sum.saturating_add(weight);
        node
    }
}

/// What the numbers of [`Spot`] are.
struct Numbers {
    files: FxHashMap<u32, i64>,
}

impl Numbers {
    fn new(report: &Report) -> Numbers {
        let files: FxHashMap<&str, i64> =
            report.profile.files.iter().zip(0..).map(|(file, number)| (file.path.as_str(), number)).collect();
        let sources = report.symbols.sources.iter().zip(0..);
        Numbers { files: sources.filter_map(|(path, at)| Some((at, *files.get(path.as_str())?))).collect() }
    }

    fn spot(&self, report: &Report, frame: &Frame, is_entry: bool) -> Spot {
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

/// The lines among which the hottest are, whatever part of the recording is chosen.
struct HotLines {
    numbers: FxHashMap<Place, u32>,
    lines: Vec<HotLine>,
}

impl HotLines {
    fn new(report: &Report) -> HotLines {
        let lines = hottest(report, usize::MAX);
        HotLines { numbers: lines.iter().map(|line| line.place).zip(0..).collect(), lines }
    }

    /// See [`Part`].
    fn of(&self, report: &Report, numbers: &Numbers, stack: u32) -> u32 {
        let done = report.profile.activities.of(stack);
        let place =
            done.line.and_then(|(source, line)| Some((u32::try_from(*numbers.files.get(&source)?).ok()?, line)));
        let number = place.and_then(|place| self.numbers.get(&place));
        number.map_or(0, |number| 1 + 2 * number + u32::from(done.in_c))
    }

    /// File, line, whether it is of compiled code, and of generated code who called it.
    fn value(&self, report: &Report) -> Value {
        let line = |line: &HotLine| {
            let (file, number) = line.place;
            let by = report.profile.files[file as usize].lines.get(&number).and_then(|line| line.generated_by);
            json!([file, number, line.compiled, by])
        };
        self.lines.iter().map(line).collect()
    }
}

/// Beginning and end, and of each sample the time since the beginning.
struct Times {
    begins: FxHashMap<(String, u32), u64>,
    first: u64,
    length: u64,
}

impl Times {
    fn new(recording: &Recording) -> Times {
        // Different recordings may be of different days and clocks: each process begins at zero.
        let mut begins: FxHashMap<(String, u32), u64> = FxHashMap::default();
        let first = recording.samples.iter().map(|sample| sample.time).min().unwrap_or_default();
        if recording.parts > 1 {
            for sample in &recording.samples {
                let thread = &recording.threads[sample.thread as usize];
                let begin = begins.entry((thread.host.clone(), thread.pid)).or_insert(sample.time);
                *begin = sample.time.min(*begin);
            }
        }
        let mut times = Times { begins, first, length: 0 };
        let begins = times.of_threads(recording);
        let since = |(thread, time): (u32, u64)| time.saturating_sub(begins[thread as usize]);
        times.length = recording.samples.iter().map(|sample| since((sample.thread, sample.time))).max().unwrap_or(0);
        times
    }

    /// When the process of each thread begins.
    fn of_threads(&self, recording: &Recording) -> Vec<u64> {
        let begin = |key: (String, u32)| self.begins.get(&key).copied().unwrap_or(self.first);
        recording.threads.iter().map(|thread| begin((thread.host.clone(), thread.pid))).collect()
    }
}

pub(super) fn stacks(report: &Report) -> Value {
    let recording = &report.recording;
    let unit = Unit::of(report);
    let (mut tree, numbers) = (Tree::new(), Numbers::new(report));
    // Of each stack its node and what is done there.
    let hot = HotLines::new(report);
    let mut leafs: Vec<Option<(u32, u8, u32)>> = vec![None; recording.stacks.len()];
    for sample in &recording.samples {
        let (node, ..) = *leafs[sample.stack as usize].get_or_insert_with(|| {
            let frames = shown_frames(report, sample.stack);
            let mut node = ROOT;
            for (at, frame) in frames.iter().enumerate().rev() {
                let is_entry = at != 0 && is_entry_of(report, frame, &frames[at - 1]);
                let spot = tree.spot(numbers.spot(report, frame, is_entry));
                node = tree.node(node, spot);
            }
            (node, activity(report, sample.stack), hot.of(report, &numbers, sample.stack))
        });
        tree.add_to(node, unit.amount(Count { weight: sample.weight, samples: 1 }));
    }
    let kept = tree.fold();
    let times = Times::new(recording);
    let mut slices = SLICES;
    let (slice, parts) = loop {
        let slice = times.length / slices + 1;
        let parts = parts(recording, &times, slice, |stack| {
            let (node, activity, hot) = leafs[stack as usize].unwrap_or_default();
            (kept[node as usize], activity, hot)
        });
        if parts.len() <= MOST_PARTS || slices == 1 {
            break (slice, parts);
        }
        slices /= 2;
    };
    let (order, depths) = preorder(&tree, &kept);
    let mut flat: Vec<u64> = Vec::with_capacity(parts.len() * 7);
    for ((slice, thread, node, activity, hot), count) in parts {
        let node = order[node as usize];
        flat.extend([slice, thread.into(), node.into(), activity.into(), hot.into(), count.samples, count.weight]);
    }
    let barriers = barriers(report, &times.of_threads(recording), slice).into_iter();
    json!({
        "clock": unit == Unit::Time,
        "unit": if unit == Unit::Samples { "samples" } else { report.event() },
        "slice": slice,
        "slices": times.length / slice + 1,
        "activities": Activity::ALL.map(Activity::words),
        "spots": tree.spots.iter().flat_map(|(function, file, line, is_entry)| {
            [*function, *file, i64::from(*line), i64::from(*is_entry)]
        }).collect::<Vec<_>>(),
        "nodes": depths.iter().flat_map(|(depth, spot)| [*depth, *spot]).collect::<Vec<_>>(),
        "parts": flat,
        "hot": hot.value(report),
        "barriers": barriers
            .flat_map(|((f, thread, slice), waited)| [f.into(), thread.into(), slice, waited])
            .collect::<Vec<u64>>(),
    })
}

fn parts(
    recording: &Recording,
    times: &Times,
    slice: u64,
    leaf: impl Fn(u32) -> (u32, u8, u32),
) -> BTreeMap<Part, Count> {
    let begins = times.of_threads(recording);
    let mut parts: FxHashMap<Part, Count> = FxHashMap::default();
    for sample in &recording.samples {
        let time = sample.time.saturating_sub(begins[sample.thread as usize]);
        let (node, activity, hot) = leaf(sample.stack);
        *parts.entry((time / slice, sample.thread, node, activity, hot)).or_default() +=
            Count { weight: sample.weight, samples: 1 };
    }
    parts.into_iter().collect()
}

/// Of each node its number in preorder, and of each number its depth and spot. The root is number 0.
fn preorder(tree: &Tree, kept: &[u32]) -> (Vec<u32>, Vec<(u32, u32)>) {
    let is_kept = |at: usize| kept.get(at).is_none_or(|kept| *kept as usize == at);
    let mut children: Vec<Vec<u32>> = vec![Vec::new(); tree.nodes.len()];
    for (at, node) in tree.nodes.iter().enumerate().skip(1).filter(|(at, _)| is_kept(*at)) {
        children[node.parent as usize].push(at as u32);
    }
    let (mut order, mut depths) = (vec![0; tree.nodes.len()], Vec::new());
    let mut left: Vec<(u32, u32)> = vec![(ROOT, 0)];
    while let Some((node, depth)) = left.pop() {
        order[node as usize] = depths.len() as u32;
        depths.push((depth, tree.nodes[node as usize].spot));
        let below = &mut children[node as usize];
        // The heaviest comes first: it is the last that is put on the stack.
        below.sort_by_key(|child| (tree.nodes[*child as usize].weight, std::cmp::Reverse(*child)));
        left.extend(below.iter().map(|child| (*child, depth + 1)));
    }
    (order, depths)
}

/// Index into [`Activity::ALL`].
fn activity(report: &Report, stack: u32) -> u8 {
    report.profile.activities.of(stack).activity as u8
}
