//! Processed profile format of the Firefox Profiler, version 55:
//! <https://github.com/firefox-devtools/profiler/blob/main/src/types/profile.js>
//!
//! The `fxprof-processed-profile` crate is not used because it does not support lines. The tests compare the tables and
//! their columns with the output of that crate.

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::distinct::Distinct;
use crate::profile::Count;
use crate::recording::{Sample, Thread};
use crate::report::{Report, Unit};
use crate::symbols::{Frame, Kind};

const CATEGORIES: [(&str, &str); 5] =
    [("Other", "grey"), ("Compiled", "green"), ("Python", "yellow"), ("Native", "blue"), ("Kernel", "orange")];

/// Returns a profile for the Firefox Profiler.
pub fn to_firefox(report: &Report) -> Value {
    let start = report.recording.samples.iter().map(|sample| sample.time).min().unwrap_or_default();
    let interval = report.interval().filter(|_| report.is_time()).map_or(1.0, |period| period as f64 / 1e6);
    let has_hosts = report.hosts().len() > 1;
    let threads: Vec<Value> = report
        .samples_by_thread()
        .into_iter()
        .map(|(thread, samples)| thread_value(report, thread, &samples, start, has_hosts))
        .collect();
    let categories: Vec<Value> = CATEGORIES
        .iter()
        .map(|(name, colour)| json!({"name": name, "color": colour, "subcategories": ["Other"]}))
        .collect();
    json!({
        "meta": {
            "categories": categories,
            "debug": false,
            "extensions": {"baseURL": [], "id": [], "length": 0, "name": []},
            "importedFrom": concat!("jitlisten ", env!("CARGO_PKG_VERSION")),
            "interval": interval,
            "preprocessedProfileVersion": 55,
            "processType": 0,
            "product": report.title(),
            "sampleUnits": {"eventDelay": "ms", "threadCPUDelta": "µs", "time": "ms"},
            "startTime": 0.0,
            "symbolicated": true,
            "pausedRanges": [],
            "version": 24,
            "usesOnlyOneStackType": true,
            "sourceCodeIsNotOnSearchfox": true,
            "markerSchema": [],
            "oscpu": report.recording.facts.architecture,
            "platform": "Linux",
        },
        "libs": [],
        "shared": {"stringArray": []},
        "threads": threads,
        "pages": [],
        "profilerOverhead": [],
        "counters": [],
    })
}

#[derive(Default)]
struct Tables {
    strings: Distinct<String>,
    functions: Vec<(u32, Option<u32>)>,
    function_indices: FxHashMap<(u32, Option<u32>), usize>,
    frames: Vec<(usize, usize, u32, Option<u32>)>,
    frame_indices: FxHashMap<(Frame, u32), usize>,
    /// Prefix and frame index of each stack.
    stacks: Distinct<(Option<u32>, usize)>,
}

impl Tables {
    fn intern_frame(&mut self, report: &Report, frame: &Frame, depth: u32) -> usize {
        if let Some(index) = self.frame_indices.get(&(*frame, depth)) {
            return *index;
        }
        let key = (frame.function, frame.source);
        let function = match self.function_indices.get(&key) {
            Some(index) => *index,
            None => {
                let name = self.strings.number(report.label(frame));
                let file = report.source_path(frame).map(|path| self.strings.number(path.to_owned()));
                self.functions.push((name, file));
                self.function_indices.insert(key, self.functions.len() - 1);
                self.functions.len() - 1
            }
        };
        let category = category(report.symbols.function(frame).kind);
        self.frames.push((function, category, depth, frame.line.filter(|line| *line != 0)));
        self.frame_indices.insert((*frame, depth), self.frames.len() - 1);
        self.frames.len() - 1
    }

    /// Interns a stack. `frames` are innermost first.
    fn intern_stack(&mut self, report: &Report, frames: &[Frame]) -> Option<u32> {
        let mut prefix = None;
        let mut depth = 0;
        for frame in frames.iter().rev() {
            depth = if frame.inlined { depth + 1 } else { 0 };
            let frame = self.intern_frame(report, frame, depth);
            prefix = Some(self.stacks.number((prefix, frame)));
        }
        prefix
    }

    fn frames_value(&self) -> Value {
        let (frames, length) = (&self.frames, self.frames.len());
        json!({
            "length": length,
            "address": vec![-1; length],
            "inlineDepth": frames.iter().map(|frame| frame.2).collect::<Vec<_>>(),
            "category": frames.iter().map(|frame| frame.1).collect::<Vec<_>>(),
            "subcategory": vec![0; length],
            "func": frames.iter().map(|frame| frame.0).collect::<Vec<_>>(),
            "nativeSymbol": vec![Value::Null; length],
            "innerWindowID": vec![0; length],
            "line": frames.iter().map(|frame| frame.3).collect::<Vec<_>>(),
            "column": vec![Value::Null; length],
        })
    }

    fn functions_value(&self) -> Value {
        let (functions, length) = (&self.functions, self.functions.len());
        json!({
            "length": length,
            "name": functions.iter().map(|function| function.0).collect::<Vec<_>>(),
            "isJS": vec![false; length],
            "relevantForJS": vec![false; length],
            "resource": vec![-1; length],
            "fileName": functions.iter().map(|function| function.1).collect::<Vec<_>>(),
            "lineNumber": vec![Value::Null; length],
            "columnNumber": vec![Value::Null; length],
        })
    }
}

/// Returns the CPU time since the previous sample in µs, for the activity graph; null for events other than time.
fn cpu_time_deltas(report: &Report, samples: &[Sample]) -> Value {
    if report.unit() != Unit::Time {
        return Value::Null;
    }
    samples.iter().map(|sample| sample.weight / 1000).collect()
}

/// Returns the period of each sample, and the type of these weights. The format lacks a type for events, so they are
/// called samples.
fn weights(report: &Report, samples: &[Sample]) -> (Value, &'static str) {
    match report.unit() {
        Unit::Time => (samples.iter().map(|sample| sample.weight as f64 / 1e6).collect(), "tracing-ms"),
        unit => (samples.iter().map(|sample| unit.amount(Count::from_sample(sample))).collect(), "samples"),
    }
}

fn category(kind: Kind) -> usize {
    match kind {
        Kind::Unknown => 0,
        Kind::Compiled => 1,
        Kind::Python => 2,
        Kind::Native => 3,
        Kind::Kernel => 4,
    }
}

/// Returns the id that the profiler groups threads by, and the name of the process. Processes of several machines may
/// have the same pid.
fn process_id_and_name(thread: &Thread, has_hosts: bool) -> (String, String) {
    let label = thread.process_label();
    let name = if label.is_empty() { thread.name.clone() } else { label };
    let host = if has_hosts && !thread.host.is_empty() { format!(" on {}", thread.host) } else { String::new() };
    (format!("{}{host}", thread.pid), format!("{name}{host}"))
}

fn thread_value(report: &Report, thread: u32, samples: &[Sample], start: u64, has_hosts: bool) -> Value {
    let mut tables = Tables::default();
    let mut stack_by_number: FxHashMap<u32, Option<u32>> = FxHashMap::default();
    let stacks: Vec<Option<u32>> = samples
        .iter()
        .map(|sample| {
            *stack_by_number
                .entry(sample.stack)
                .or_insert_with(|| tables.intern_stack(report, &report.stack_frames(sample.stack)))
        })
        .collect();
    let previous = std::iter::once(start).chain(samples.iter().map(|sample| sample.time));
    let deltas: Vec<f64> = samples
        .iter()
        .zip(previous)
        .map(|(sample, previous)| sample.time.saturating_sub(previous) as f64 / 1e6)
        .collect();
    let row = &report.recording.threads[thread as usize];
    let (weights, weight_type) = weights(report, samples);
    let (process_id, process_name) = process_id_and_name(row, has_hosts);
    json!({
        "frameTable": tables.frames_value(),
        "funcTable": tables.functions_value(),
        "markers": {"length": 0, "category": [], "data": [], "endTime": [], "name": [], "phase": [], "startTime": []},
        "name": row.name,
        "isMainThread": row.pid == row.tid,
        "nativeSymbols": {"length": 0, "address": [], "functionSize": [], "libIndex": [], "name": []},
        "pausedRanges": [],
        "pid": process_id,
        "processName": process_name,
        "processShutdownTime": Value::Null,
        "processStartupTime": 0.0,
        "processType": "default",
        "registerTime": 0.0,
        "resourceTable": {"length": 0, "lib": [], "name": [], "host": [], "type": []},
        "samples": {
            "length": samples.len(),
            "stack": stacks,
            "timeDeltas": deltas,
            "weight": weights,
            "weightType": weight_type,
            "threadCPUDelta": cpu_time_deltas(report, samples),
        },
        "stackTable": {
            "length": tables.stacks.values.len(),
            "prefix": tables.stacks.values.iter().map(|stack| stack.0).collect::<Vec<_>>(),
            "frame": tables.stacks.values.iter().map(|stack| stack.1).collect::<Vec<_>>(),
        },
        "stringArray": tables.strings.values,
        "tid": row.tid,
        "unregisterTime": Value::Null,
        "showMarkersInTimeline": false,
    })
}
