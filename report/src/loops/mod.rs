//! The loops of compiled code that ran: what their machine code does, and what helps.
//!
//! ```text
//!  samples ─ address ─┬─ graph: natural loops of the function      ┐
//!                     └─ called from there, by name                ├─ Loop ─ advice
//!  image ── x86_64: instructions of the loop ── facts              ┘
//! ```
//! One line of Python has two to six machine loops: a vector loop, its remainder, an unrolled scalar one. Only the addresses of samples
//! say which of them ran, so samples and calls are counted by address, never by line. The machine code of the loop that ran is the
//! truth; what a compiler says of a loop may be of another version of it.
//!
//! Works on any recording that names images; x86-64 only.

mod advice;
mod facts;
mod graph;
mod x86_64;

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

pub use advice::Advice;
pub use facts::Facts;

use crate::profile::{Count, Profile};
use crate::report::Report;
use crate::symbols::{ImageCode, Kind};

/// A loop with samples.
#[derive(Clone, Debug)]
pub struct Loop {
    /// The function that it is in.
    pub function: String,
    /// The source file of its hottest line.
    pub path: String,
    /// Its hottest line.
    pub line: u32,
    /// The first of its lines in that file.
    pub first: u32,
    /// The last one.
    pub last: u32,
    /// Samples in its own instructions.
    pub own: Count,
    /// With the calls from there.
    pub total: Count,
    /// The functions that it calls, the heaviest first.
    pub calls: Vec<(String, Count)>,
    /// By function that it calls, and the innermost one below that: every sample once.
    below: Vec<((String, String), Count)>,
    /// What its instructions do.
    pub facts: Facts,
    /// Whether the function has a loop of vector instructions for the same lines, with next to no samples.
    pub vector_version_did_not_run: bool,
    /// What helps.
    pub advice: Vec<Advice>,
}

impl Loop {
    /// `loop 15-16`.
    pub fn name(&self) -> String {
        if self.first == self.last {
            format!("loop {}", self.first)
        } else {
            format!("loop {}-{}", self.first, self.last)
        }
    }

    /// `8 values at a time (512 bits)`, if it is so.
    pub fn vector(&self) -> Option<String> {
        let (lanes, bits) = (self.facts.lanes(), self.facts.width);
        self.facts.is_vectorised().then(|| match lanes {
            0 | 1 => format!("several values at a time ({bits} bits)"),
            lanes => format!("{lanes} values at a time ({bits} bits)"),
        })
    }

    fn is_one_at_a_time(&self) -> bool {
        self.facts.scalar != 0 && !self.facts.is_vectorised()
    }

    /// How much of the loop is in calls of such functions, or of what ends in them, in percent.
    fn share_of_calls(&self, is_meant: fn(&str) -> bool) -> f64 {
        let mut sum = Count::default();
        let meant = self.below.iter().filter(|((callee, leaf), _)| is_meant(callee) || is_meant(leaf));
        meant.for_each(|(_, count)| sum += *count);
        sum.percent_of(self.total)
    }

    fn largest_call(&self, is_meant: fn(&str) -> bool) -> Option<&str> {
        let names = self.below.iter().flat_map(|((callee, leaf), _)| [callee.as_str(), leaf.as_str()]);
        names.into_iter().find(|name| is_meant(name))
    }
}

/// Loops with less of all samples are not looked at.
const LEAST_PERCENT: f64 = 1.0;
const LEAST_SAMPLES: u64 = 5;
/// More of a function is not decoded.
const LONGEST_FUNCTION: u64 = 64 << 10;
/// Two loops of which one has less of the samples of both than this: that one did not run.
const NEXT_TO_NONE: u64 = 50;

/// What was sampled at an instruction, and what it called.
#[derive(Default)]
struct Sampled {
    own: Count,
    total: Count,
    /// By callee and leaf.
    calls: FxHashMap<(String, String), Count>,
}

/// The loops of a recording, the heaviest first.
pub fn loops(report: &Report) -> Vec<Loop> {
    let mut found = Vec::new();
    for (file, offsets) in sampled_instructions(report) {
        let Some(mut code) = ImageCode::open(&report.roots, &report.recording.files[file as usize]) else { continue };
        if code.is_x86_64() {
            image(&mut code, offsets, &mut found);
        }
    }
    let is_hot =
        |of: &Loop| of.total.samples >= LEAST_SAMPLES && of.total.percent_of(report.profile.all) >= LEAST_PERCENT;
    found.retain(is_hot);
    for of in &mut found {
        of.advice = advice::advice(of);
        show_at_a_line_with_samples(of, &report.profile);
    }
    found.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| (&a.path, a.line).cmp(&(&b.path, b.line))));
    found
}

/// Moves a loop to the hottest of its lines that the profile has: samples of line 0 may count for another than its instructions say.
fn show_at_a_line_with_samples(of: &mut Loop, profile: &Profile) {
    let Some(file) = profile.files.iter().find(|file| file.path == of.path) else { return };
    if !file.lines.contains_key(&of.line) {
        let hottest = file.lines.range(of.first..=of.last).max_by_key(|(_, line)| line.shares.own);
        of.line = hottest.map_or(of.line, |(line, _)| *line);
    }
}

/// By image and offset: the instructions of compiled code that samples are in or were called from.
fn sampled_instructions(report: &Report) -> BTreeMap<u32, BTreeMap<u64, Sampled>> {
    let (recording, symbols) = (&report.recording, &report.symbols);
    let mut weights: FxHashMap<u32, Count> = FxHashMap::default();
    for sample in &recording.samples {
        *weights.entry(sample.stack).or_default() += Count { weight: sample.weight, samples: 1 };
    }
    let mut found: BTreeMap<u32, BTreeMap<u64, Sampled>> = BTreeMap::new();
    let mut seen = FxHashSet::default();
    for (stack, count) in weights {
        let stack = recording.stacks.get(stack);
        seen.clear();
        for (depth, location) in stack.iter().enumerate() {
            let is_compiled =
                symbols.frames(*location).first().is_some_and(|frame| symbols.function(frame).kind == Kind::Compiled);
            let place = recording.locations[*location as usize].place.filter(|_| is_compiled);
            let Some(place) = place.filter(|place| seen.insert((place.file, place.offset))) else { continue };
            let sampled = found.entry(place.file).or_default().entry(place.offset).or_default();
            sampled.total += count;
            if depth == 0 {
                sampled.own += count;
                continue;
            }
            // What was inlined into a function is part of it.
            let name = |location: u32| {
                let frame = symbols.frames(location).last();
                frame.map(|frame| symbols.function(frame).base.clone()).unwrap_or_default()
            };
            *sampled.calls.entry((name(stack[depth - 1]), name(stack[0]))).or_default() += count;
        }
    }
    found
}

fn image(code: &mut ImageCode, offsets: BTreeMap<u64, Sampled>, found: &mut Vec<Loop>) {
    let sampled: BTreeMap<u64, Sampled> =
        offsets.into_iter().filter_map(|(offset, sampled)| Some((code.address(offset)?, sampled))).collect();
    let mut done = 0;
    for address in sampled.keys() {
        let Some((name, range)) = code.function(*address).filter(|_| *address >= done) else { continue };
        done = range.end;
        let length = (range.end - range.start).min(LONGEST_FUNCTION);
        let instructions = x86_64::decode(&code.bytes(range.start, length as usize), range.start);
        let mut of_function: Vec<Loop> = graph::loops(&x86_64::steps(&instructions))
            .iter()
            .filter_map(|natural| one(code, &name, &instructions, natural, &sampled))
            .collect();
        find_versions(&mut of_function);
        found.append(&mut of_function);
    }
}

fn one(
    code: &mut ImageCode,
    function: &str,
    instructions: &[iced_x86::Instruction],
    natural: &graph::NaturalLoop,
    sampled: &BTreeMap<u64, Sampled>,
) -> Option<Loop> {
    let (mut own, mut total) = (Count::default(), Count::default());
    let mut below: FxHashMap<(String, String), Count> = FxHashMap::default();
    // By file and line: samples, and instructions where there are none.
    let mut lines: BTreeMap<(String, u32), (Count, u32)> = BTreeMap::new();
    for instruction in natural.instructions().map(|at| &instructions[at]) {
        let place = code.line_of_user(instruction.ip()).filter(|(_, line)| *line != 0);
        let mut here = Count::default();
        for (_, at) in sampled.range(instruction.ip()..instruction.next_ip().max(instruction.ip())) {
            own += at.own;
            here += at.total;
            at.calls.iter().for_each(|(names, count)| *below.entry(names.clone()).or_default() += *count);
        }
        total += here;
        if let Some(place) = place {
            let entry = lines.entry(place).or_default();
            entry.0 += here;
            entry.1 += 1;
        }
    }
    let ((path, line), _) = lines.iter().max_by_key(|(_, weight)| **weight)?;
    let of_file = || lines.keys().filter(|(other, _)| other == path).map(|(_, line)| *line);
    let mut calls: FxHashMap<String, Count> = FxHashMap::default();
    below.iter().for_each(|((callee, _), count)| *calls.entry(callee.clone()).or_default() += *count);
    Some(Loop {
        function: function.to_owned(),
        path: path.clone(),
        line: *line,
        first: of_file().min().unwrap_or(*line),
        last: of_file().max().unwrap_or(*line),
        own,
        total,
        calls: heaviest_first(calls),
        below: heaviest_first(below),
        facts: x86_64::facts(instructions, natural),
        vector_version_did_not_run: false,
        advice: Vec::new(),
    })
}

fn heaviest_first<T: Ord>(counts: FxHashMap<T, Count>) -> Vec<(T, Count)> {
    let mut counts: Vec<(T, Count)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts
}

/// Tells of each scalar loop whether a vector loop for the same lines is there and was not used.
fn find_versions(of_function: &mut [Loop]) {
    let vectors: Vec<(String, u32, u32, Count)> = of_function
        .iter()
        .filter(|of| of.facts.is_vectorised())
        .map(|of| (of.path.clone(), of.first, of.last, of.total))
        .collect();
    for of in of_function.iter_mut().filter(|of| of.is_one_at_a_time()) {
        let overlaps = |(path, first, last, _): &&(String, u32, u32, Count)| {
            *path == of.path && *first <= of.last && of.first <= *last
        };
        let mut ran = Count::default();
        let versions = vectors.iter().filter(overlaps).map(|(.., count)| ran += *count).count();
        of.vector_version_did_not_run = versions != 0 && ran.samples * NEXT_TO_NONE <= of.total.samples;
    }
}
