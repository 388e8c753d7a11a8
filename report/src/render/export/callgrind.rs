//! Callgrind format, which KCachegrind and `callgrind_annotate` read: <https://valgrind.org/docs/manual/cl-format.html>
//!
//! Costs are the periods of samples, in ns or events, followed by the number of samples. `calls=` is also a number of
//! samples, because a sampler does not see individual calls.

use std::collections::BTreeMap;
use std::fmt::Write;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::profile::{Count, stack_counts};
use crate::report::Report;
use crate::sanitize::sanitize;
use crate::symbols::Frame;

/// Key of a function: source and function index.
type FunctionKey = (Option<u32>, u32);

/// Costs of one function: its own lines, and its calls by line and callee.
#[derive(Default)]
struct Costs {
    lines: BTreeMap<u32, Count>,
    calls: BTreeMap<(u32, FunctionKey), (Count, u32)>,
}

/// Returns a profile in Callgrind format for KCachegrind and `callgrind_annotate`.
pub fn to_callgrind(report: &Report) -> String {
    let mut functions: BTreeMap<FunctionKey, (Frame, Costs)> = BTreeMap::new();
    for (stack, count) in stack_counts(&report.recording) {
        add_stack(&mut functions, &report.stack_frames(stack), count);
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

fn add_stack(functions: &mut BTreeMap<FunctionKey, (Frame, Costs)>, frames: &[Frame], count: Count) {
    let key_of = |frame: &Frame| (frame.source, frame.function);
    let Some(leaf) = frames.first() else { return };
    for frame in frames {
        functions.entry(key_of(frame)).or_insert_with(|| (*frame, Costs::default()));
    }
    if let Some((_, costs)) = functions.get_mut(&key_of(leaf)) {
        *costs.lines.entry(leaf.line.unwrap_or_default()).or_default() += count;
    }
    // A recursive call counts once per sample.
    let mut seen: FxHashSet<(FunctionKey, u32, FunctionKey)> = FxHashSet::default();
    for pair in frames.windows(2) {
        let [inner, outer] = pair else { continue };
        let edge = (key_of(outer), outer.line.unwrap_or_default(), key_of(inner));
        if !seen.insert(edge) {
            continue;
        }
        if let Some((_, costs)) = functions.get_mut(&edge.0) {
            let entry =
                costs.calls.entry((edge.1, edge.2)).or_insert((Count::default(), inner.line.unwrap_or_default()));
            entry.0 += count;
        }
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
