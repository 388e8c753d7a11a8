//! JSON for the page's script. Keys are short because a page may have 40,000 lines.
//!
//! Counts of a line are an array: self samples, self weight, total samples, total weight.

use std::collections::BTreeMap;
use std::time::SystemTime;

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use crate::answer::{LIMITS, Leaf, LineNode, LineTree, RowKind, call_of};
use crate::lookup::source::SourceText;
use crate::profile::{Count, FunctionRow, Inlined, Line, Shares, SourceLines, ThreadRow};
use crate::recording::compilations::Compilation;
use crate::render::rows::{MAX_LABEL_COLUMNS, shown_rows};
use crate::report::{Group, Report};
use crate::sanitize::sanitize;
use crate::symbols::Kind;

use super::assembly::Assembly;
use super::barriers::is_parallel;
use super::loops::loop_value;
use super::stacks::stacks;

/// Maximum number of lines of a source that the page contains in full. Longer sources are reduced to the lines around
/// samples.
const MAX_WHOLE_SOURCE_LINES: u32 = 3000;
const CONTEXT_LINES: u32 = 40;
const LIBRARY_CONTEXT_LINES: u32 = 5;
/// Maximum number of functions in the page's list.
const MAX_LISTED_FUNCTIONS: usize = 300;
/// Maximum number of callers per function, and of callees per line.
const MAX_CALLERS: usize = 12;
/// Maximum number of compilations; the longest are kept.
const MAX_COMPILATIONS: usize = 2000;

pub(super) fn data(report: &Report) -> Value {
    let profile = &report.profile;
    let assembly = Assembly::new(&report.recording, &report.symbols, &report.roots);
    let (program, title) = (report.program(), report.title());
    let lines = report.line_tree();
    let mut processes = report.processes();
    processes.sort_by(|a, b| (a.rank, &a.host, a.pid).cmp(&(b.rank, &b.host, b.pid)));
    json!({
        "program": sanitize(&program),
        "command": sanitize(&report.recording.facts.command.join(" ")),
        "recorded": report.recorded.and_then(|time| Some(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs())),
        "title": sanitize(title.strip_prefix(&program).unwrap_or(&title).trim_start_matches(" · ")),
        "weight": profile.all.weight,
        "facts": facts(report),
        "outside": report.outside_ns().map(|(ns, label)| json!([label, ns])).collect::<Vec<_>>(),
        "notes": report.notes.iter().map(|note| sanitize(note)).collect::<Vec<_>>(),
        "threads": threads(report, &processes),
        "processes": processes.iter().map(process_value).collect::<Vec<_>>(),
        "functions": functions(report),
        "files": profile.files.iter().zip(&report.sources).map(|(file, source)| {
            file_value(report, &assembly, file, source)
        }).collect::<Vec<_>>(),
        "answer": answer(report),
        "lines": line_tree(report, &lines),
        "stacks": stacks(report, &lines),
        "compiling": compiling(report),
    })
}

/// Returns the name and time of each thread, and the index of its process.
fn threads(report: &Report, processes: &[Group]) -> Vec<Value> {
    let indices: FxHashMap<(&str, u32), usize> =
        processes.iter().zip(0..).map(|(process, index)| (process.key(), index)).collect();
    let value = |row: &ThreadRow| {
        let thread = &row.thread;
        json!([sanitize(&report.thread_name(thread)), row.all.weight, indices[&(thread.host.as_str(), thread.pid)]])
    };
    report.profile.threads.iter().map(value).collect()
}

/// Returns the name of a process, and the short name below its bar.
fn process_value(process: &Group) -> Value {
    let Group { host, pid, name, label, rank, .. } = process;
    let name = if label.is_empty() { name } else { label };
    let host = if host.is_empty() { String::new() } else { format!(" on {host}") };
    let short = match rank {
        Some(rank) => rank.to_string(),
        None if label.is_empty() => pid.to_string(),
        None => label.clone(),
    };
    json!([sanitize(&format!("{name} (process {pid}{host})")), sanitize(&short)])
}

/// Width for the words that describe a row.
const OF_IT_COLUMNS: usize = 40;

/// Returns the first screen: rows with their text, and what helps.
fn answer(report: &Report) -> Value {
    let answer = report.answer();
    let files = || report.profile.files.iter();
    let position = |path: &str, line: u32| {
        let file = files().position(|file| file.path == path)?;
        Some(json!([file, line]))
    };
    let rows = answer.rows.iter().zip(shown_rows(&answer.rows)).map(|(row, shown)| {
        json!({
            "branches": shown.branches,
            "label": sanitize(&shown.label),
            "text": sanitize(&shown.text),
            "code": !matches!(row.kind, RowKind::Compilation | RowKind::Function | RowKind::Imports),
            "at": position(&row.path, row.line),
            "path": sanitize(&row.path),
            "weight": row.total.weight,
            "of": sanitize(&row.of_it(OF_IT_COLUMNS)),
            "advice": row.advice.as_deref().map(sanitize),
        })
    });
    let helps = answer.helps.iter().map(|help| {
        let at = help.position.as_ref().and_then(|(path, line)| position(path, *line));
        json!({"weight": help.count.weight, "text": sanitize(&help.text), "at": at})
    });
    let elsewhere = answer.elsewhere_parts.iter().map(|(word, count)| json!([sanitize(word), count.weight]));
    json!({
        "weight": answer.all.weight,
        "head": sanitize(&report.headline()),
        "rows": rows.collect::<Vec<_>>(),
        "elsewhere": [answer.elsewhere.weight, elsewhere.collect::<Vec<_>>()],
        "helps": helps.collect::<Vec<_>>(),
    })
}

/// Returns the tree of the user's lines, from which the page makes the first screen of a part of the recording.
fn line_tree(report: &Report, lines: &LineTree) -> Value {
    let profile = &report.profile;
    let files: FxHashMap<&str, i64> =
        profile.files.iter().zip(0..).map(|(file, number)| (file.path.as_str(), number)).collect();
    let file = |path: &str| files.get(path).copied().unwrap_or(-1);
    let call = |function: u32| profile.functions.get(function as usize).map(|function| call_of(&function.name));
    // Caller, kind, file, line, and function.
    let node = |node: &LineNode| match *node {
        LineNode::Root => [-1, 0, -1, 0, -1],
        LineNode::Line { parent, source, line, function, is_compiled } => {
            let file = file(&report.symbols.sources[source as usize]);
            [parent.into(), is_compiled.into(), file, line.into(), function.into()]
        }
        LineNode::Compilation { parent, function } => {
            let (_, path, line) = &lines.compiled[function as usize];
            [parent.into(), 2, file(path), (*line).into(), function.into()]
        }
    };
    let functions: BTreeMap<u32, Option<String>> = (lines.nodes.iter())
        .filter_map(|node| match node {
            LineNode::Line { function, .. } => Some((*function, call(*function).map(|call| sanitize(&call)))),
            _ => None,
        })
        .collect();
    let optional = |number: Option<u32>| number.map_or(-1, i64::from);
    let leaf = |leaf: &Leaf| {
        let Leaf { node, word, call, compilation, library } = *leaf;
        [node.into(), word.into(), optional(call), optional(compilation), optional(library)]
    };
    let compiled = lines.compiled.iter().map(|(name, path, _)| [sanitize(&call_of(name)), sanitize(path)]);
    let advice = lines.advice.iter().map(|(path, line, text)| json!([file(path), line, sanitize(text)]));
    let limits: Map<String, Value> = LIMITS.iter().map(|(name, limit)| ((*name).to_owned(), json!(limit))).collect();
    json!({
        "limits": limits,
        "columns": OF_IT_COLUMNS,
        "labelColumns": MAX_LABEL_COLUMNS,
        "nodes": lines.nodes.iter().flat_map(node).collect::<Vec<i64>>(),
        "functions": functions,
        "compiled": compiled.collect::<Vec<_>>(),
        "words": lines.words.iter().map(|word| sanitize(word)).collect::<Vec<_>>(),
        "leaves": lines.leaves.iter().flat_map(leaf).collect::<Vec<i64>>(),
        "libraries": lines.libraries.iter().map(|library| sanitize(library)).collect::<Vec<_>>(),
        "again": lines.again,
        "advice": advice.collect::<Vec<_>>(),
    })
}

/// Returns the counts of samples without a line and of lost samples, unless they are zero.
fn facts(report: &Report) -> Value {
    let profile = &report.profile;
    let rows = [
        ("in compiled code without a line table", profile.without_line),
        ("of that at line 0", profile.line_zero),
        ("lost samples", Count { weight: 0, samples: profile.lost }),
    ];
    let rows = rows.into_iter().filter(|(_, count)| !count.is_zero());
    rows.map(|(label, count)| json!([label, count.samples, count.weight])).collect()
}

fn counts_value(shares: &Shares) -> Value {
    json!([shares.self_count.samples, shares.self_count.weight, shares.total.samples, shares.total.weight])
}

fn functions(report: &Report) -> Vec<Value> {
    let profile = &report.profile;
    let mut modules = vec![""; profile.functions.len()];
    // Compiled code belongs to the package of its source.
    let package =
        |row: &FunctionRow| profile.activities.owners().package(&profile.files[row.lines?.file as usize].path);
    let mut libraries: Vec<Option<&str>> = profile.functions.iter().map(package).collect();
    for (index, (function, row)) in report.symbols.functions.iter().zip(&profile.rows).enumerate() {
        let row = *row as usize;
        if row < modules.len() && function.kind != Kind::Compiled {
            modules[row] = &function.module;
            libraries[row] = libraries[row].or(profile.activities.library_of_function(index));
        }
    }
    let mut remaining = MAX_LISTED_FUNCTIONS;
    profile
        .functions
        .iter()
        .zip(modules.into_iter().zip(libraries))
        .map(|(row, (module, library))| {
            let is_listed = remaining != 0 && row.is_listed();
            remaining -= usize::from(is_listed);
            let mut value = json!({
                "name": sanitize(&row.name),
                "kind": row.kind.name(),
                "n": counts_value(&row.shares),
            });
            if !module.is_empty() {
                value["module"] = json!(sanitize(module));
            }
            if let Some(library) = library {
                value["library"] = json!(sanitize(library));
            }
            if report.is_user_function(row) {
                value["yours"] = json!(true);
            }
            if let Some(lines) = row.lines {
                value["at"] = json!([lines.file, lines.first, lines.last]);
            }
            if !row.callers.is_empty() {
                let callers = row.callers.iter().take(MAX_CALLERS);
                value["callers"] = callers.map(|(caller, from, count)| json!([caller, from, count.weight])).collect();
            }
            if is_parallel(row) {
                value["parallel"] = json!(true);
            }
            if is_listed {
                value["listed"] = json!(true);
                let compilations = row.several_compilations().iter();
                value["compilations"] =
                    compilations.map(|(name, shares)| json!([sanitize(name), counts_value(shares)])).collect();
            }
            value
        })
        .collect()
}

/// Returns the longest compilations, ordered by start, and a summary of all of them.
fn compiling(report: &Report) -> Value {
    let mut rows: Vec<&Compilation> = report.compilations.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.cpu_ns));
    let left_out = rows.len().saturating_sub(MAX_COMPILATIONS);
    rows.truncate(MAX_COMPILATIONS);
    rows.sort_by_key(|row| (row.begin, row.depth));
    let start = report.start_time();
    json!({
        "words": if report.compilations.is_empty() { String::new() } else { report.compiling_summary() },
        "left_out": left_out,
        "rows": rows.into_iter().map(|row| {
            let mut value = row.to_value(start);
            value["for"] = json!(row.reason());
            value
        }).collect::<Vec<_>>(),
    })
}

fn file_value(report: &Report, assembly: &Assembly, file: &SourceLines, source: &SourceText) -> Value {
    let self_count: Count = file.lines.values().map(|line| line.shares.self_count).sum();
    let lines: Map<String, Value> = file
        .lines
        .iter()
        .map(|(number, line)| {
            let loops = report.loops_at(&file.path, *number).map(loop_value).collect();
            (number.to_string(), line_value(report, assembly.line(&file.path, *number), loops, line))
        })
        .collect();
    json!({
        "path": sanitize(&file.path),
        "library": !report.is_user_source(&file.path),
        "note": source.note.as_deref().map(sanitize),
        "n": [self_count.samples, self_count.weight, null, null],
        "parts": source_parts(report, file, source),
        "lines": lines,
    })
}

fn line_value(report: &Report, assembly: Option<Value>, loops: Vec<Value>, line: &Line) -> Value {
    let mut value = json!({"n": counts_value(&line.shares), "f": line.functions});
    if !line.inlined.is_empty() {
        value["i"] = inlined_calls(report, &line.inlined);
    }
    if !line.calls.is_empty() {
        let calls = line.calls.iter().take(MAX_CALLERS);
        value["c"] = calls.map(|(callee, count)| json!([callee, count.weight])).collect();
    }
    if !loops.is_empty() {
        value["o"] = json!(loops);
    }
    if let Some(assembly) = assembly {
        value["a"] = assembly;
    }
    value
}

fn inlined_calls(report: &Report, calls: &[Inlined]) -> Value {
    let calls = calls.iter().map(|call| {
        let file = call.file.map(|file| file as usize);
        let text = file.and_then(|file| report.sources[file].line(call.line)).unwrap_or_default();
        let mut value = json!({
            "f": call.function,
            "p": file.map_or(-1, |file| file as i64),
            "l": call.line,
            "s": text.trim_start(),
            "n": counts_value(&call.shares),
        });
        if !call.inlined.is_empty() {
            value["i"] = inlined_calls(report, &call.inlined);
        }
        value
    });
    calls.collect()
}

/// Returns the parts of a source that the page shows: the whole file, or the lines around samples. Each part has the
/// number of its first line and the text of its lines.
fn source_parts(report: &Report, file: &SourceLines, source: &SourceText) -> Vec<Value> {
    let (max_whole_lines, context) = match report.is_user_source(&file.path) {
        true => (MAX_WHOLE_SOURCE_LINES, CONTEXT_LINES),
        false => (0, LIBRARY_CONTEXT_LINES),
    };
    let line_numbers = file.lines.keys().copied().filter(|line| *line != 0);
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    if source.len() <= max_whole_lines && !source.is_empty() {
        ranges.push((1, source.len()));
    }
    for line in line_numbers.filter(|line| *line > source.len() || source.len() > max_whole_lines) {
        let context = if line > source.len() { 0 } else { context };
        let (first, last) =
            (line.saturating_sub(context).max(1), line.saturating_add(context).min(source.len().max(line)));
        match ranges.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => ranges.push((first, last)),
        }
    }
    let text = |line: u32| source.line(line).unwrap_or_default();
    ranges.into_iter().map(|(first, last)| json!([first, (first..=last).map(text).collect::<Vec<_>>()])).collect()
}
