//! What the script of the page gets. Short keys: there may be 40,000 lines.
//!
//! Numbers of a line: own samples, own weight, total samples, total weight.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::assembly::Assembly;
use crate::printable::printable;
use crate::profile::{Count, Inlined, Line, Shares, SourceLines};
use crate::report::Report;
use crate::source::SourceText;
use crate::symbols::Kind;

/// A longer source is cut to what is around its samples.
const LONGEST_WHOLE: u32 = 3000;
const AROUND: u32 = 40;
/// Functions in the list, callers of one, callees of a line.
const MOST_LISTED: usize = 300;
const MOST_CALLERS: usize = 12;

pub(super) fn data(report: &Report) -> Value {
    let profile = &report.profile;
    let assembly = Assembly::new(&report.recording, &report.symbols, &report.roots);
    json!({
        "title": printable(&report.title()),
        "command": printable(&report.recording.facts.command.join(" ")),
        "weight": profile.all.weight,
        "head": head(report),
        "notes": report.notes.iter().map(|note| printable(note)).collect::<Vec<_>>(),
        "threads": profile.threads.iter().map(|row| {
            json!({
                "name": printable(&report.thread_name(&row.thread)),
                "weight": row.all.weight,
                "all": [row.all.samples, row.all.weight],
                "compiled": [row.compiled.samples, row.compiled.weight],
            })
        }).collect::<Vec<_>>(),
        "functions": functions(report),
        "files": profile.files.iter().zip(&report.sources).map(|(file, source)| {
            file_value(report, &assembly, file, source)
        }).collect::<Vec<_>>(),
    })
}

fn head(report: &Report) -> Value {
    let profile = &report.profile;
    let pair = |what: &str, count: Count| json!([what, [count.samples, count.weight]]);
    let outside = profile.outside.iter().take(3).map(|(name, _)| printable(name)).collect::<Vec<_>>().join(", ");
    json!([
        pair("in compiled code", profile.compiled),
        pair("of it without a line table", profile.without_line),
        pair("of it line 0", profile.line_zero),
        pair(&format!("outside: {outside}"), profile.outside_all()),
        ["samples lost", [profile.lost, null]],
    ])
}

fn numbers(shares: &Shares) -> Value {
    json!([shares.own.samples, shares.own.weight, shares.total.samples, shares.total.weight])
}

/// By the number of the thread.
fn threads(shares: &BTreeMap<u32, Shares>) -> Value {
    Value::Object(shares.iter().map(|(thread, shares)| (thread.to_string(), numbers(shares))).collect())
}

fn functions(report: &Report) -> Vec<Value> {
    let mut left = MOST_LISTED;
    let rows = report.profile.functions.iter();
    rows.map(|row| {
        let listed = left != 0 && (matches!(row.kind, Kind::Compiled | Kind::Python) || row.lines.is_some());
        left -= usize::from(listed);
        let compilations: Vec<Value> = match listed {
            true => row
                .several_compilations()
                .iter()
                .map(|(name, shares)| json!([printable(name), numbers(shares)]))
                .collect(),
            false => Vec::new(),
        };
        let callers: Vec<Value> = row
            .callers
            .iter()
            .take(MOST_CALLERS)
            .map(|(caller, from, count)| json!([caller, from, count.weight]))
            .collect();
        let threads = if listed { threads(&row.by_thread) } else { Value::Null };
        json!({
            "name": printable(&row.name),
            "listed": listed,
            "n": numbers(&row.shares),
            "t": threads,
            "at": row.lines.map(|(file, first, last)| [file, first, last]),
            "compilations": compilations,
            "callers": callers,
        })
    })
    .collect()
}

fn file_value(report: &Report, assembly: &Assembly, file: &SourceLines, source: &SourceText) -> Value {
    let mut own = Count::default();
    for line in file.lines.values() {
        own += line.shares.own;
    }
    let lines: Map<String, Value> = file
        .lines
        .iter()
        .map(|(number, line)| (number.to_string(), line_value(report, assembly.line(&file.path, *number), line)))
        .collect();
    json!({
        "path": printable(&file.path),
        "note": source.note.as_deref().map(printable),
        "n": [own.samples, own.weight, null, null],
        "parts": parts(file, source),
        "lines": lines,
    })
}

fn line_value(report: &Report, assembly: Option<Value>, line: &Line) -> Value {
    let mut value = Map::new();
    value.insert("n".to_owned(), numbers(&line.shares));
    value.insert("f".to_owned(), json!(line.functions));
    if !line.inlined.is_empty() {
        value.insert("i".to_owned(), inlined(report, &line.inlined));
    }
    if !line.calls.is_empty() {
        let calls: Vec<Value> =
            line.calls.iter().take(MOST_CALLERS).map(|(callee, count)| json!([callee, count.weight])).collect();
        value.insert("c".to_owned(), json!(calls));
    }
    if !line.by_thread.is_empty() {
        value.insert("t".to_owned(), threads(&line.by_thread));
    }
    if let Some(assembly) = assembly {
        value.insert("a".to_owned(), assembly);
    }
    Value::Object(value)
}

fn inlined(report: &Report, calls: &[Inlined]) -> Value {
    let calls = calls.iter().map(|call| {
        let file = call.file.map(|file| file as usize);
        let text = file.and_then(|file| report.sources[file].line(call.line)).unwrap_or_default();
        let mut value = Map::new();
        value.insert("f".to_owned(), json!(call.function));
        value.insert("p".to_owned(), json!(file.map_or(-1, |file| file as i64)));
        value.insert("l".to_owned(), json!(call.line));
        value.insert("s".to_owned(), json!(text.trim_start()));
        value.insert("n".to_owned(), numbers(&call.shares));
        if !call.inlined.is_empty() {
            value.insert("i".to_owned(), inlined(report, &call.inlined));
        }
        Value::Object(value)
    });
    calls.collect()
}

/// The source, whole or around its samples: where each part begins, and its lines.
fn parts(file: &SourceLines, source: &SourceText) -> Vec<Value> {
    let known = file.lines.keys().copied().filter(|line| *line != 0);
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    if source.len() <= LONGEST_WHOLE && !source.is_empty() {
        ranges.push((1, source.len()));
    }
    let around = if source.is_empty() { 0 } else { AROUND };
    for line in known.filter(|line| *line > source.len() || source.len() > LONGEST_WHOLE) {
        let around = if line > source.len() { 0 } else { around };
        let (first, last) =
            (line.saturating_sub(around).max(1), line.saturating_add(around).min(source.len().max(line)));
        match ranges.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
            _ => ranges.push((first, last)),
        }
    }
    let text = |line: u32| source.line(line).unwrap_or_default();
    ranges.into_iter().map(|(first, last)| json!([first, (first..=last).map(text).collect::<Vec<_>>()])).collect()
}
