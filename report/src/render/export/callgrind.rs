//! Callgrind format, which KCachegrind and `callgrind_annotate` read: <https://valgrind.org/docs/manual/cl-format.html>
//!
//! Costs are the periods of samples, in ns or events, followed by the number of samples. `calls=` is also a number of
//! samples, because a sampler does not see individual calls.

use std::collections::BTreeMap;
use std::fmt::Write;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::distinct::Distinct;
use crate::profile::{Count, stack_counts};
use crate::report::Report;
use crate::sanitize::sanitize;
use crate::symbols::Frame;

/// Number of a function's file and name.
type FunctionKey = u32;

/// Costs of one function: its own lines, and its calls by line and callee.
#[derive(Default)]
struct Costs {
    lines: BTreeMap<u32, Count>,
    calls: BTreeMap<(u32, FunctionKey), (Count, u32)>,
}

/// Returns a profile in Callgrind format for KCachegrind and `callgrind_annotate`.
pub fn to_callgrind(report: &Report) -> String {
    let mut functions: BTreeMap<FunctionKey, (Frame, Costs)> = BTreeMap::new();
    let mut keys = Keys { report, names: Distinct::default(), by_frame: FxHashMap::default() };
    for (stack, count) in stack_counts(report.counted_samples()) {
        add_stack(&mut functions, &report.stack_frames(stack), &mut keys, count);
    }
    let event: String =
        report.event().chars().map(|letter| if letter.is_alphanumeric() { letter } else { '_' }).collect();
    let event = if event.starts_with(char::is_alphabetic) { event } else { format!("event_{event}") };
    let command = sanitize(&report.recording.facts.command.join(" "));
    let mut out = format!(
        "# callgrind format\nversion: 1\ncreator: jitlisten {}\ncmd: {command}\npositions: line\nevents: {event} \
         Samples\nsummary: {} {}\n",
        env!("CARGO_PKG_VERSION"),
        report.profile.all.weight,
        report.profile.all.samples,
    );
    let frames: BTreeMap<FunctionKey, Frame> = functions.iter().map(|(key, (frame, _))| (*key, *frame)).collect();
    let mut names = Names::default();
    for (key, (frame, costs)) in &functions {
        let _ = writeln!(
            out,
            "\nfl={}\nfn={}",
            names.file_reference(report, frame),
            names.function_reference(report, frame, key)
        );
        for (line, count) in &costs.lines {
            let _ = writeln!(out, "{line} {} {}", count.weight, count.samples);
        }
        for ((line, callee), (count, callee_line)) in &costs.calls {
            let Some(inner) = frames.get(callee) else { continue };
            let _ = writeln!(
                out,
                "cfi={}\ncfn={}",
                names.file_reference(report, inner),
                names.function_reference(report, inner, callee)
            );
            let _ = writeln!(out, "calls={} {callee_line}\n{line} {} {}", count.samples, count.weight, count.samples);
        }
    }
    out
}

/// Adds a stack. Readers add the calls of a function to its own cost, so each sample counts once per function: as its
/// own cost, or for the call of its innermost frame. Recursive calls count for none.
fn add_stack(
    functions: &mut BTreeMap<FunctionKey, (Frame, Costs)>,
    frames: &[Frame],
    keys: &mut Keys<'_>,
    count: Count,
) {
    let frames: Vec<(FunctionKey, Frame)> = frames.iter().map(|frame| (keys.key(frame), *frame)).collect();
    let Some((leaf_key, leaf)) = frames.first() else { return };
    for (key, frame) in &frames {
        functions.entry(*key).or_insert_with(|| (*frame, Costs::default()));
    }
    if let Some((_, costs)) = functions.get_mut(leaf_key) {
        *costs.lines.entry(leaf.line.unwrap_or_default()).or_default() += count;
    }
    let mut counted: FxHashSet<FunctionKey> = FxHashSet::from_iter([*leaf_key]);
    for pair in frames.windows(2) {
        let [(callee, inner), (caller, outer)] = pair else { continue };
        if !counted.insert(*caller) {
            continue;
        }
        if let Some((_, costs)) = functions.get_mut(caller) {
            let call = (outer.line.unwrap_or_default(), *callee);
            let entry = costs.calls.entry(call).or_insert((Count::default(), inner.line.unwrap_or_default()));
            entry.0 += count;
        }
    }
}

/// Keys of functions. Functions that readers cannot tell apart, because file and name are equal, have the same key.
struct Keys<'a> {
    report: &'a Report,
    names: Distinct<(Option<&'a str>, String)>,
    by_frame: FxHashMap<(Option<u32>, u32), FunctionKey>,
}

impl<'a> Keys<'a> {
    fn key(&mut self, frame: &Frame) -> FunctionKey {
        let (report, names): (&'a Report, _) = (self.report, &mut self.names);
        *self
            .by_frame
            .entry((frame.source, frame.function))
            .or_insert_with(|| names.number((report.source_path(frame), report.label(frame))))
    }
}

/// Names of files and functions. Each is written once and then referred to by number.
#[derive(Default)]
struct Names {
    files: FxHashMap<String, usize>,
    functions: FxHashMap<FunctionKey, usize>,
}

impl Names {
    fn file_reference(&mut self, report: &Report, frame: &Frame) -> String {
        let file = report.source_path(frame).map_or_else(|| "???".to_owned(), sanitize);
        let next = self.files.len() + 1;
        match self.files.get(&file) {
            Some(number) => format!("({number})"),
            None => {
                self.files.insert(file.clone(), next);
                format!("({next}) {file}")
            }
        }
    }

    fn function_reference(&mut self, report: &Report, frame: &Frame, key: &FunctionKey) -> String {
        let next = self.functions.len() + 1;
        match self.functions.get(key) {
            Some(number) => format!("({number})"),
            None => {
                self.functions.insert(*key, next);
                format!("({next}) {}", report.label(frame))
            }
        }
    }
}
