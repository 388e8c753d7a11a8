//! The loops of compiled code that ran: facts from their machine code, and advice.
//!
//! ```text
//!  samples ─ address ─┬─ crate::graph: natural loops of a function ┐
//!                     └─ called from there, by name                ├─ Loop ─ advice
//!  image ── machine: instructions ── count: facts of the loop      ┘
//! ```
//! One line of Python has two to six machine loops: a vector loop, its remainder, an unrolled scalar one. Only the
//! addresses of samples say which of them ran, so samples and calls are counted by address, never by line. The machine
//! code of the loop that ran is the truth; what the compiler said of a loop (`remarks.rs`) may be of another version of
//! it, and is shown beside it.
//!
//! Works on any recording that names images, of x86-64 or aarch64.

#[cfg(test)]
mod aarch64_tests;
mod advice;
mod count;
mod facts;
mod found;
mod remarks;

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

pub use facts::Facts;
pub use found::{Advice, Instruction, Loop, Remark, Version};
use remarks::Remarks;

use crate::graph;
use crate::machine::{self, Machine};
use crate::profile::{Count, Profile};
use crate::recording::Recording;
use crate::roots::Roots;
use crate::symbols::{ImageCode, Kind, Symbols};

/// Loops with less of the samples of compiled code are not looked at.
pub(crate) const LEAST_PERCENT: f64 = 1.0;
pub(crate) const LEAST_SAMPLES: u64 = 5;
/// More of a function is not decoded.
const LONGEST_FUNCTION: u64 = 64 << 10;
/// The section of an image with what LLVM said, and the longest that is read.
const REMARKS: (&str, u64) = (".jitlisten.remarks", 1 << 20);

/// Where an instruction is from: file and line of each call that was inlined there, the innermost first.
type Places = Vec<(String, u32)>;

/// What was sampled at an instruction, and what it called.
#[derive(Default)]
struct Sampled {
    own: Count,
    total: Count,
    /// By callee and leaf.
    calls: FxHashMap<(String, String), Count>,
}

/// The loops of a recording, the heaviest first.
pub(crate) fn loops(recording: &Recording, symbols: &Symbols, profile: &Profile, roots: &Roots) -> Vec<Loop> {
    let mut found = Vec::new();
    for (file, offsets) in sampled_instructions(recording, symbols) {
        let Some(mut code) = ImageCode::open(roots, &recording.files[file as usize]) else { continue };
        if let Some(machine) = code.machine() {
            image(&mut code, machine, offsets, profile, &mut found);
        }
    }
    for of in &mut found {
        of.advice = advice::advice(of);
        show_at_a_line_with_samples(of, profile);
    }
    found.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| (&a.path, a.line).cmp(&(&b.path, b.line))));
    found
}

/// Moves a loop to the hottest of its lines that the profile has: samples of line 0 may count for another than its
/// instructions say.
fn show_at_a_line_with_samples(of: &mut Loop, profile: &Profile) {
    let Some(file) = profile.files.iter().find(|file| file.path == of.path) else { return };
    if of.path == of.around && !file.lines.contains_key(&of.line) {
        let hottest = file.lines.range(of.first..=of.last).max_by_key(|(_, line)| line.shares.own);
        of.line = hottest.map_or(of.line, |(line, _)| *line);
    }
}

/// By image and offset: the instructions of compiled code that samples are in or were called from.
fn sampled_instructions(recording: &Recording, symbols: &Symbols) -> BTreeMap<u32, BTreeMap<u64, Sampled>> {
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

fn image(
    code: &mut ImageCode,
    machine: Machine,
    offsets: BTreeMap<u64, Sampled>,
    profile: &Profile,
    found: &mut Vec<Loop>,
) {
    let sampled: BTreeMap<u64, Sampled> =
        offsets.into_iter().filter_map(|(offset, sampled)| Some((code.address(offset)?, sampled))).collect();
    let is_hot = |total: Count| total.samples >= LEAST_SAMPLES && total.percent_of(profile.compiled) >= LEAST_PERCENT;
    let remarks = Remarks::parse(&code.section(REMARKS.0, REMARKS.1));
    let mut done = 0;
    for address in sampled.keys() {
        let Some((name, range)) = code.function(*address).filter(|_| *address >= done) else { continue };
        done = range.end;
        let mut all = Count::default();
        sampled.range(range.clone()).for_each(|(_, at)| all += at.total);
        if !is_hot(all) {
            continue;
        }
        let length = (range.end - range.start).min(LONGEST_FUNCTION);
        let bytes = code.bytes(range.start, length as usize);
        let instructions = machine.instructions(&bytes, range.start);
        let loops = graph::loops(&instructions.iter().map(|instruction| instruction.step).collect::<Vec<_>>());
        let mut of_function: Vec<(Loop, FxHashSet<Places>)> =
            loops.iter().filter_map(|natural| one(code, &instructions, natural, &sampled)).collect();
        found::find_versions(&mut of_function);
        let hot = of_function.into_iter().map(|(of, _)| of).filter(|of| is_hot(of.total));
        found.extend(hot.map(|mut of| {
            of.function.clone_from(&name);
            of.remarks = remarks.of(range.start, &of);
            for instruction in &mut of.instructions {
                let from = (instruction.address - range.start) as usize;
                instruction.text = machine.text(&bytes[from..], instruction.address);
            }
            of
        }));
    }
}

/// A loop without its versions, and where its instructions are from.
fn one(
    code: &mut ImageCode,
    instructions: &[machine::Instruction],
    natural: &graph::NaturalLoop,
    sampled: &BTreeMap<u64, Sampled>,
) -> Option<(Loop, FxHashSet<Places>)> {
    let (mut own, mut total) = (Count::default(), Count::default());
    let mut below: FxHashMap<(String, String), Count> = FxHashMap::default();
    // By place: samples, and instructions where there are none.
    let mut lines: BTreeMap<Places, (Count, u32)> = BTreeMap::new();
    let mut shown = Vec::new();
    for machine::Step { address, end, .. } in natural.instructions().map(|at| instructions[at].step) {
        let places = code.places_of_user(address);
        let (mut here, mut calls) = (Sampled::default(), FxHashMap::default());
        for (_, at) in sampled.range(address..end.max(address)) {
            here.own += at.own;
            here.total += at.total;
            for ((callee, leaf), count) in &at.calls {
                *below.entry((callee.clone(), leaf.clone())).or_default() += *count;
                *calls.entry(callee.clone()).or_default() += *count;
            }
        }
        own += here.own;
        total += here.total;
        shown.push(Instruction {
            address,
            line: places.first().map_or(0, |(_, line)| *line),
            own: here.own,
            total: here.total,
            calls: heaviest_first(calls),
            text: String::new(),
        });
        if !places.is_empty() {
            let entry = lines.entry(places).or_default();
            entry.0 += here.total;
            entry.1 += 1;
        }
    }
    let mut by_line: BTreeMap<&(String, u32), (Count, u32)> = BTreeMap::new();
    for (places, (count, instructions)) in &lines {
        let entry = by_line.entry(&places[0]).or_default();
        entry.0 += *count;
        entry.1 += instructions;
    }
    let ((path, line), _) = by_line.iter().max_by_key(|(_, weight)| **weight)?;
    // The lines of the loop itself, without those of functions that were inlined into it.
    let callers = callers_of_all(&lines.keys().collect::<Vec<_>>());
    let own_place = |places: &Places| places[places.len() - 1 - callers].clone();
    let hottest =
        lines.iter().filter(|(places, _)| places[0] == (path.clone(), *line)).max_by_key(|(_, weight)| **weight);
    let around = hottest.map_or_else(|| path.clone(), |(places, _)| own_place(places).0);
    let of_loop = || lines.keys().map(own_place).filter(|(path, _)| *path == around).map(|(_, line)| line);
    let mut calls: FxHashMap<String, Count> = FxHashMap::default();
    below.iter().for_each(|((callee, _), count)| *calls.entry(callee.clone()).or_default() += *count);
    let of = Loop {
        function: String::new(),
        path: path.clone(),
        line: *line,
        is_inlined: callers != 0,
        first: of_loop().min().unwrap_or(*line),
        last: of_loop().max().unwrap_or(*line),
        around,
        lines: lines.keys().flatten().cloned().collect(),
        own,
        total,
        calls: heaviest_first(calls),
        below: heaviest_first(below),
        facts: count::facts(instructions, natural),
        is_innermost: natural.is_innermost,
        versions: Vec::new(),
        instructions: shown,
        remarks: Vec::new(),
        advice: Vec::new(),
    };
    Some((of, lines.into_keys().collect()))
}

/// How many calls, the outermost first, all instructions of a loop share: the loop is of a function that was inlined
/// there, and its lines are not those of the calls.
fn callers_of_all(all: &[&Places]) -> usize {
    let shared = |at: usize| {
        let caller = |places: &Places| (places.len() > at + 1).then(|| places[places.len() - 1 - at].clone());
        let first = all.first().and_then(|places| caller(places));
        first.is_some() && all.iter().all(|places| caller(places) == first)
    };
    (0..).take_while(|at| shared(*at)).count()
}

fn heaviest_first<T: Ord>(counts: FxHashMap<T, Count>) -> Vec<(T, Count)> {
    let mut counts: Vec<(T, Count)> = counts.into_iter().collect();
    counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of a chain of inlined calls, the innermost first, in one file.
    fn callers_of(all: &[&[u32]]) -> usize {
        let all: Vec<Places> =
            all.iter().map(|lines| lines.iter().map(|line| ("prog.py".to_owned(), *line)).collect()).collect();
        callers_of_all(&all.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_loop_is_of_the_innermost_function_that_has_all_its_instructions() {
        assert_eq!(callers_of(&[&[15], &[16]]), 0);
        assert_eq!(callers_of(&[&[15, 37], &[16, 37]]), 1, "inlined with its loop");
        assert_eq!(callers_of(&[&[15, 37]]), 1);
        assert_eq!(callers_of(&[&[15, 37, 50], &[16, 37, 50], &[3, 16, 37, 50]]), 2);
        assert_eq!(callers_of(&[&[15, 37], &[37]]), 0, "what it calls was inlined into the loop");
        assert_eq!(callers_of(&[&[15, 37], &[15, 38]]), 0);
        assert_eq!(callers_of(&[]), 0);
    }
}
