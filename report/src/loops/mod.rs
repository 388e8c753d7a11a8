//! Loops that ran in compiled code: facts from their machine code, and advice.
//!
//! ```text
//!  samples ─ address ─┬─ graph: natural loops of a function        ┐
//!                     └─ called from there, by name                ├─ Loop ─ advice
//!  image ── machine: instructions ── analysis: facts of the loop   ┘
//! ```
//! One line of Python becomes two to six machine loops: a vector loop, its remainder, an unrolled scalar one. Only
//! sample addresses tell which of them ran, so samples and calls are counted by address, never by line. The facts come
//! from the machine code of the loop that ran. Remarks of the compiler (`remarks.rs`) may be about another version of
//! the loop, and are shown in addition.
//!
//! Works on any recording that names images, for x86-64 or aarch64.

#[cfg(test)]
mod aarch64_tests;
mod advice;
mod analysis;
mod callees;
mod facts;
mod hot_loop;
mod remarks;
mod rules;

use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

pub use advice::{Advice, Gain};
pub(crate) use callees::is_allocation;
pub use facts::Facts;
use hot_loop::Surroundings;
pub use hot_loop::{Instruction, Loop, Remark, Verdict, Version};
use remarks::Remarks;
pub(crate) use rules::SMALL_PARALLEL;

use crate::machine::graph;
use crate::machine::{self, Machine};
use crate::profile::{Count, Profile, heaviest_first, stack_counts};
use crate::recording::Recording;
use crate::symbols::Roots;
use crate::symbols::{ImageCode, Kind, Symbols, is_numba_file};

/// Minimum percentage of the samples in compiled code for a loop to be analysed; `MIN_SAMPLES` applies in addition.
pub(crate) const MIN_PERCENT: f64 = 1.0;
pub(crate) const MIN_SAMPLES: u64 = 5;
/// Image section with LLVM's remarks, and the maximum size that is read.
const REMARKS: (&str, u64) = (".jitlisten.remarks", 1 << 20);

/// Origin of an instruction: file and line at each level of inlining, innermost first.
type Origin = Vec<(String, u32)>;

/// Samples at an instruction and in the functions that it called.
#[derive(Default)]
struct InstructionSamples {
    self_count: Count,
    total: Count,
    /// Samples by callee and innermost function.
    calls: FxHashMap<(String, String), Count>,
}

impl InstructionSamples {
    fn add(&mut self, other: InstructionSamples) {
        self.self_count += other.self_count;
        self.total += other.total;
        for (call, count) in other.calls {
            *self.calls.entry(call).or_default() += count;
        }
    }
}

/// Finds the loops that ran, the hottest first. The samples of a function that several processes compiled are added up.
pub(crate) fn find_loops(recording: &Recording, symbols: &Symbols, profile: &Profile, roots: &Roots) -> Vec<Loop> {
    let mut hot_loops = Vec::new();
    // Compiled code that only calls libraries has no samples of its own.
    let is_hot = |total: Count| {
        total.samples >= MIN_SAMPLES
            && (profile.compiled.is_zero() || total.percent_of(profile.compiled) >= MIN_PERCENT)
    };
    let mut functions_by_file: BTreeMap<u32, Vec<SampledFunction>> = BTreeMap::new();
    for function in sampled_functions(recording, symbols, roots).into_iter().filter(|function| is_hot(function.total()))
    {
        functions_by_file.entry(function.file).or_default().push(function);
    }
    for (file, functions) in functions_by_file {
        let Some(mut code) = ImageCode::open(roots, &recording.files[file as usize]) else { continue };
        if let Some(machine) = code.machine() {
            add_image_loops(&mut code, machine, functions, is_hot, &mut hot_loops);
        }
    }
    let gufuncs: FxHashSet<&str> =
        symbols.functions.iter().filter_map(|function| function.name.strip_prefix("gufunc::")).collect();
    for hot_loop in &mut hot_loops {
        let kernel = hot_loop.function.strip_prefix("gufunc::").unwrap_or(&hot_loop.function);
        hot_loop.is_gufunc = gufuncs.contains(kernel) && !kernel.starts_with("prange kernel ");
    }
    // Users cannot change Numba's own code or its options.
    let owners = profile.activities.owners();
    for hot_loop in hot_loops.iter_mut().filter(|hot_loop| owners.package(&hot_loop.loop_path) != Some("numba")) {
        hot_loop.advice = rules::advice(hot_loop);
    }
    hot_loops.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| (&a.path, a.line).cmp(&(&b.path, b.line))));
    hot_loops
}

/// Compiled function with samples, in the image of the first process that has it.
struct SampledFunction {
    name: String,
    file: u32,
    range: Range<u64>,
    instructions: BTreeMap<u64, InstructionSamples>,
}

impl SampledFunction {
    fn total(&self) -> Count {
        self.instructions.values().map(|instruction| instruction.total).sum()
    }
}

/// Returns the compiled functions with samples. Functions of the same name and size in two processes are the same,
/// because their code differs only in addresses; they are merged.
fn sampled_functions(recording: &Recording, symbols: &Symbols, roots: &Roots) -> Vec<SampledFunction> {
    let mut functions: Vec<SampledFunction> = Vec::new();
    let mut indices: FxHashMap<(String, u64), usize> = FxHashMap::default();
    for (file, offsets) in sampled_instructions(recording, symbols) {
        let Some(code) = ImageCode::open(roots, &recording.files[file as usize]) else { continue };
        let mut sampled: BTreeMap<u64, InstructionSamples> =
            offsets.into_iter().filter_map(|(offset, sampled)| Some((code.address(offset)?, sampled))).collect();
        for (name, range) in code.functions_at(sampled.keys()) {
            let mut rest = sampled.split_off(&range.start);
            let after = rest.split_off(&range.end);
            sampled.extend(after);
            let index = *indices.entry((name.clone(), range.end - range.start)).or_insert_with(|| {
                let instructions = BTreeMap::new();
                functions.push(SampledFunction { name, file, range: range.clone(), instructions });
                functions.len() - 1
            });
            let function = &mut functions[index];
            for (address, instruction) in rest {
                let address = address - range.start + function.range.start;
                function.instructions.entry(address).or_default().add(instruction);
            }
        }
    }
    functions
}

/// Returns the instructions of compiled code that have samples, either at the instruction or in functions called from
/// it, by image and offset.
fn sampled_instructions(recording: &Recording, symbols: &Symbols) -> BTreeMap<u32, BTreeMap<u64, InstructionSamples>> {
    let mut sampled_by_file: BTreeMap<u32, BTreeMap<u64, InstructionSamples>> = BTreeMap::new();
    let compiled_position = |location: u32| {
        let function = symbols.function(symbols.frames(location).first()?);
        recording.locations[location as usize].position.filter(|_| function.kind == Kind::Compiled)
    };
    let positions: Vec<_> = (0..recording.locations.len() as u32).map(compiled_position).collect();
    let mut seen = FxHashSet::default();
    for (stack, count) in stack_counts(&recording.samples) {
        let stack = recording.stacks.get(stack);
        seen.clear();
        for (depth, location) in stack.iter().enumerate() {
            let position = positions[*location as usize];
            let Some(position) = position.filter(|position| seen.insert((position.file, position.offset))) else {
                continue;
            };
            let sampled = sampled_by_file.entry(position.file).or_default().entry(position.offset).or_default();
            sampled.total += count;
            if depth == 0 {
                sampled.self_count += count;
                continue;
            }
            // Inlined functions count as part of the compiled function that contains them.
            let name = |location: u32| {
                let frame = symbols.frames(location).last();
                frame.map(|frame| symbols.function(frame).base.clone()).unwrap_or_default()
            };
            *sampled.calls.entry((name(stack[depth - 1]), name(stack[0]))).or_default() += count;
        }
    }
    sampled_by_file
}

fn add_image_loops(
    code: &mut ImageCode,
    machine: Machine,
    functions: Vec<SampledFunction>,
    is_hot: impl Fn(Count) -> bool,
    hot_loops: &mut Vec<Loop>,
) {
    let remarks = Remarks::parse(&code.section(REMARKS.0, REMARKS.1));
    for SampledFunction { name, range, instructions: sampled, .. } in functions {
        let bytes = code.bytes(&range);
        let instructions = machine.instructions(&bytes, range.start);
        let loops = graph::find_loops(&instructions.iter().map(|instruction| instruction.step).collect::<Vec<_>>());
        let mut function_loops: Vec<(Loop, FxHashSet<Origin>)> = loops
            .iter()
            .filter_map(|natural_loop| {
                let (mut hot_loop, origins) = describe_loop(code, &instructions, natural_loop, &sampled)?;
                hot_loop.surroundings = describe_surroundings(&instructions, &loops, natural_loop, &sampled);
                Some((hot_loop, origins))
            })
            .collect();
        hot_loop::find_versions(&mut function_loops);
        function_loops.extend(
            parallel_region(&instructions, &loops, &sampled)
                .and_then(|region| describe_loop(code, &instructions, &region, &sampled)),
        );
        let hot = function_loops.into_iter().map(|(hot_loop, _)| hot_loop).filter(|hot_loop| is_hot(hot_loop.total));
        hot_loops.extend(hot.map(|mut hot_loop| {
            hot_loop.function.clone_from(&name);
            hot_loop.remarks = remarks.for_loop(range.start, &hot_loop);
            for instruction in &mut hot_loop.instructions {
                let offset = (instruction.address - range.start) as usize;
                instruction.text = machine.text(&bytes[offset..], instruction.address);
            }
            hot_loop
        }));
    }
}

/// Returns the calls outside of loops that ran parallel regions, as a loop: a `prange` is one, although its rounds are
/// in another function.
fn parallel_region(
    instructions: &[machine::Instruction],
    loops: &[graph::NaturalLoop],
    sampled: &BTreeMap<u64, InstructionSamples>,
) -> Option<graph::NaturalLoop> {
    let in_loops: FxHashSet<usize> = loops.iter().flat_map(graph::NaturalLoop::instructions).collect();
    let is_region = |instruction: &machine::Instruction| {
        let machine::Step { address, end, .. } = instruction.step;
        let mut calls = sampled.range(address..end.max(address)).flat_map(|(_, sampled)| sampled.calls.keys());
        calls.any(|(callee, _)| callees::is_parallel_loop(callee))
    };
    let outside = instructions.iter().enumerate().filter(|(index, _)| !in_loops.contains(index));
    let regions = outside.filter(|(_, instruction)| is_region(instruction));
    let own_blocks: Vec<_> = regions.map(|(index, _)| index..index + 1).collect();
    (!own_blocks.is_empty()).then(|| graph::NaturalLoop {
        own_blocks,
        is_innermost: true,
        ..graph::NaturalLoop::default()
    })
}

/// Describes the code that runs once each time a loop is entered: the rest of the loop around it, or the function's
/// code outside of loops.
fn describe_surroundings(
    instructions: &[machine::Instruction],
    loops: &[graph::NaturalLoop],
    natural_loop: &graph::NaturalLoop,
    sampled: &BTreeMap<u64, InstructionSamples>,
) -> Surroundings {
    let mut is_outside = vec![natural_loop.parent.is_none(); instructions.len()];
    match natural_loop.parent {
        Some(parent) => loops[parent].instructions().for_each(|index| is_outside[index] = true),
        None => loops.iter().flat_map(graph::NaturalLoop::instructions).for_each(|index| is_outside[index] = false),
    }
    let mut surroundings = Surroundings { is_loop: natural_loop.parent.is_some(), ..Surroundings::default() };
    for (instruction, _) in instructions.iter().zip(is_outside).filter(|(_, is_outside)| *is_outside) {
        let machine::Step { address, end, .. } = instruction.step;
        surroundings.instructions += 1;
        surroundings.is_slow |= matches!(
            instruction.operation,
            machine::Operation::Divide(_) | machine::Operation::SquareRoot | machine::Operation::Call
        );
        for (_, sampled) in sampled.range(address..end.max(address)) {
            surroundings.self_count += sampled.self_count;
        }
    }
    if let Some(parent) = natural_loop.parent {
        let of_loop = |natural_loop: &graph::NaturalLoop| {
            natural_loop.instructions().map(|index| &instructions[index]).collect::<Vec<_>>()
        };
        surroundings.entry = analysis::classify_entry(&of_loop(natural_loop), &of_loop(&loops[parent]));
    }
    surroundings
}

/// Samples of a loop and of its instructions.
#[derive(Default)]
struct LoopSamples {
    self_count: Count,
    total: Count,
    /// Samples by callee and leaf.
    below: FxHashMap<(String, String), Count>,
    /// Samples and number of instructions by origin. The number of instructions breaks ties, for example if there are
    /// no samples.
    lines: BTreeMap<Origin, (Count, u32)>,
    shown_instructions: Vec<Instruction>,
}

impl LoopSamples {
    fn add(&mut self, step: machine::Step, origin: Origin, sampled: &BTreeMap<u64, InstructionSamples>) {
        let (mut sampled_here, mut calls) = (InstructionSamples::default(), FxHashMap::default());
        for (_, instruction) in sampled.range(step.address..step.end.max(step.address)) {
            sampled_here.self_count += instruction.self_count;
            sampled_here.total += instruction.total;
            for ((callee, leaf), count) in &instruction.calls {
                *self.below.entry((callee.clone(), leaf.clone())).or_default() += *count;
                *calls.entry(callee.clone()).or_default() += *count;
            }
        }
        self.self_count += sampled_here.self_count;
        self.total += sampled_here.total;
        self.shown_instructions.push(Instruction {
            address: step.address,
            line: origin.first().map_or(0, |(_, line)| *line),
            self_count: sampled_here.self_count,
            total: sampled_here.total,
            calls: heaviest_first(calls),
            text: String::new(),
        });
        if !origin.is_empty() {
            let entry = self.lines.entry(origin).or_default();
            entry.0 += sampled_here.total;
            entry.1 += 1;
        }
    }
}

/// Describes a loop without its other versions, and returns the origins of its instructions.
fn describe_loop(
    code: &mut ImageCode,
    instructions: &[machine::Instruction],
    natural_loop: &graph::NaturalLoop,
    sampled: &BTreeMap<u64, InstructionSamples>,
) -> Option<(Loop, FxHashSet<Origin>)> {
    let mut samples = LoopSamples::default();
    for step in natural_loop.instructions().map(|index| instructions[index].step) {
        samples.add(step, code.user_lines(step.address), sampled);
    }
    let LoopSamples { self_count, total, below, lines, shown_instructions } = samples;
    let mut by_line: BTreeMap<&(String, u32), (Count, u32)> = BTreeMap::new();
    for (origin, (count, instructions)) in &lines {
        let entry = by_line.entry(&origin[0]).or_default();
        entry.0 += *count;
        entry.1 += instructions;
    }
    let ((path, line), _) = by_line.iter().max_by_key(|(_, weight)| **weight)?;
    // Lines of functions inlined into the loop are not part of its line range.
    let callers = shared_callers(&lines.keys().collect::<Vec<_>>());
    let loop_line = |origin: &Origin| origin[origin.len() - 1 - callers].clone();
    let hottest =
        lines.iter().filter(|(origin, _)| origin[0] == (path.clone(), *line)).max_by_key(|(_, weight)| **weight);
    let loop_path = hottest.map_or_else(|| path.clone(), |(origin, _)| loop_line(origin).0);
    let loop_lines = || lines.keys().map(loop_line).filter(|(path, _)| *path == loop_path).map(|(_, line)| line);
    let mut calls: FxHashMap<String, Count> = FxHashMap::default();
    below.iter().for_each(|((callee, _), count)| *calls.entry(callee.clone()).or_default() += *count);
    let hottest_instruction = shown_instructions.iter().max_by_key(|instruction| instruction.self_count);
    let hottest_path = hottest_instruction.and_then(|instruction| Some(code.line(instruction.address)?.0));
    let hot_loop = Loop {
        function: String::new(),
        path: path.clone(),
        line: *line,
        is_inlined: callers != 0,
        is_gufunc: false,
        is_of_numba: hottest_path.is_some_and(|path| is_numba_file(&path)),
        first: loop_lines().min().unwrap_or(*line),
        last: loop_lines().max().unwrap_or(*line),
        loop_path,
        lines: lines.keys().flatten().cloned().collect(),
        self_count,
        total,
        calls: heaviest_first(calls),
        below: heaviest_first(below),
        facts: analysis::loop_facts(instructions, natural_loop),
        is_innermost: natural_loop.is_innermost,
        surroundings: Surroundings::default(),
        versions: Vec::new(),
        instructions: shown_instructions,
        remarks: Vec::new(),
        advice: Vec::new(),
    };
    Some((hot_loop, lines.into_keys().collect()))
}

/// Counts the outermost inlined calls that all origins share. The loop belongs to the function that the last of these
/// calls inlined, so the lines of the calls themselves are not lines of the loop.
fn shared_callers(origins: &[&Origin]) -> usize {
    let shared = |depth: usize| {
        let caller = |origin: &Origin| (origin.len() > depth + 1).then(|| origin[origin.len() - 1 - depth].clone());
        let first = origins.first().and_then(|origin| caller(origin));
        first.is_some() && origins.iter().all(|origin| caller(origin) == first)
    };
    (0..).take_while(|depth| shared(*depth)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the shared callers of inline chains, each given as line numbers in one file, innermost first.
    fn shared_callers_of_lines(chains: &[&[u32]]) -> usize {
        let chains: Vec<Origin> =
            chains.iter().map(|lines| lines.iter().map(|line| ("prog.py".to_owned(), *line)).collect()).collect();
        shared_callers(&chains.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_loop_belongs_to_the_innermost_function_that_contains_it() {
        assert_eq!(shared_callers_of_lines(&[&[15], &[16]]), 0);
        assert_eq!(shared_callers_of_lines(&[&[15, 37], &[16, 37]]), 1, "inlined with its loop");
        assert_eq!(shared_callers_of_lines(&[&[15, 37]]), 1);
        assert_eq!(shared_callers_of_lines(&[&[15, 37, 50], &[16, 37, 50], &[3, 16, 37, 50]]), 2);
        assert_eq!(shared_callers_of_lines(&[&[15, 37], &[37]]), 0, "what it calls was inlined into the loop");
        assert_eq!(shared_callers_of_lines(&[&[15, 37], &[15, 38]]), 0);
        assert_eq!(shared_callers_of_lines(&[]), 0);
    }
}
