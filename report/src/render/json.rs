//! Line table as JSON for programs. `docs/lines.schema.json` describes every field.

use serde_json::{Map, Value, json};

use crate::answer::{AnswerRow, Help};
use crate::lookup::source::SourceText;
use crate::loops::Loop;
use crate::profile::{Count, Inlined, Line, Shares, SourceLines};
use crate::recording::Thread;
use crate::report::{Change, Group, Imbalance, Report, diff};

/// Name and version of this program. The key of this value sorts before all others, so it is at the start of the file.
const GENERATOR: &str = concat!("jitlisten ", env!("CARGO_PKG_VERSION"));

/// Version of the format. A field that is removed or changes its meaning makes a new version; a new field does not.
const VERSION: u32 = 1;

/// Returns the whole report as JSON.
pub fn to_json(report: &Report) -> Value {
    let profile = &report.profile;
    json!({
        "$generator": GENERATOR,
        "version": VERSION,
        "samples": profile.all.samples,
        "compiled": profile.compiled.samples,
        "interpreted": profile.interpreted.samples,
        "without_line": profile.without_line.samples,
        "line_zero": profile.line_zero.samples,
        "approximate": profile.approximate.samples,
        "lost": profile.lost,
        "weight": profile.all.weight,
        "event": report.event(),
        "is_time": report.is_time(),
        "host": report.recording.facts.host,
        "command": report.recording.facts.command,
        "elapsed": report.elapsed(),
        "summary": summary(report),
        "answer": answer(report),
        "hottest": hot_lines(report),
        "outside": outside(report),
        "files": files(report),
        "functions": functions(report),
        "threads": threads(report),
        "processes": groups(report, &report.processes(), true),
        "hosts": groups(report, &report.hosts(), false),
        "imbalance": imbalance(report),
        "recordings": report.recording.parts,
        "compilations": compilations_to_json(report),
        "notes": report.notes,
    })
}

/// Returns a comparison as JSON. Each pair is before and after; `growth` and `noise` are of the total, in ns or events.
/// With `fail_over`, `regressions` names everything that has grown by more than this percentage and noise.
pub fn diff_to_json(before: &Report, after: &Report, fail_over: Option<f64>) -> Value {
    let difference = diff(before, after);
    let side = |report: &Report| {
        let all = report.profile.all;
        json!({
            "title": report.title(),
            "event": report.event(),
            "is_time": report.is_time(),
            "samples": all.samples,
            "weight": all.weight,
            "notes": report.notes,
        })
    };
    let row = |change: &Change| {
        let (growth, noise) = change.growth();
        let (before, after) = (change.counts.0, change.counts.1);
        json!({
            "name": change.name,
            "source": change.source,
            "self": [before.self_count.samples, after.self_count.samples],
            "self_weight": [before.self_count.weight, after.self_count.weight],
            "self_percent": [change.self_percent.0, change.self_percent.1],
            "total": [before.total.samples, after.total.samples],
            "total_weight": [before.total.weight, after.total.weight],
            "total_percent": [change.total.0, change.total.1],
            "growth": growth,
            "noise": noise,
        })
    };
    let rows = |changes: &[Change]| changes.iter().map(row).collect::<Vec<_>>();
    json!({
        "$generator": GENERATOR,
        "before": side(before),
        "after": side(after),
        "activities": rows(&difference.activities),
        "functions": rows(&difference.functions),
        "lines": rows(&difference.lines),
        "changed_sources": difference.changed,
        "fail_over": fail_over,
        "regressions": fail_over.map(|percent| rows(&difference.regressions(percent))),
    })
}

/// Returns the compilations as JSON. Times are in ns.
pub fn compilations_to_json(report: &Report) -> Value {
    let start = report.start_time();
    report.compilations.iter().map(|row| row.to_value(start)).collect()
}

/// Returns the samples by activity. Each sample counts once.
fn summary(report: &Report) -> Value {
    let summary = &report.profile.summary;
    let count_value =
        |count: Count| json!({"samples": count.samples, "weight": count.weight, "percent": percent(report, count)});
    let named = |names: &[(String, Count)]| -> Map<String, Value> {
        names.iter().map(|(name, count)| (name.clone(), count_value(*count))).collect()
    };
    json!({
        "compiled": count_value(summary.compiled),
        "interpreted": count_value(summary.interpreted),
        "libraries": named(&summary.libraries),
        "compiling": count_value(summary.compiling),
        "compiling_in_llvm": count_value(summary.in_llvm),
        "first_use": count_value(summary.first_use),
        "loading": count_value(summary.loading),
        "ending": count_value(summary.ending),
        "importing": named(&summary.importing),
        "collecting": count_value(summary.collecting),
        "waiting": named(&summary.waiting),
    })
}

/// Width for the words that describe a row.
const OF_IT_COLUMNS: usize = 60;

fn answer(report: &Report) -> Value {
    let answer = report.answer();
    let count_value = |count: Count| {
        let percent = rounded(count.percent_of(answer.all));
        json!({"samples": count.samples, "weight": count.weight, "percent": percent})
    };
    let named = |parts: &[(String, Count)]| -> Map<String, Value> {
        parts.iter().map(|(word, count)| (word.clone(), count_value(*count))).collect()
    };
    let row = |row: &AnswerRow| {
        let callers = row.callers.iter().map(|(path, line)| json!({"path": path, "line": line}));
        json!({
            "depth": row.depth,
            "kind": row.kind.name(),
            "path": row.path,
            "line": row.line,
            "more_lines": row.more_lines,
            "callers": callers.collect::<Vec<_>>(),
            "function": row.function,
            "source": row.source,
            "total": row.total.samples,
            "total_weight": row.total.weight,
            "total_percent": rounded(row.total.percent_of(answer.all)),
            "parts": named(&row.parts),
            "calls": named(&row.calls),
            "of_it": row.of_it(OF_IT_COLUMNS),
            "compilations": row.compilations,
            "advice": row.advice,
        })
    };
    let help = |help: &Help| {
        let mut value = count_value(help.count);
        value["rule"] = json!(help.rule);
        value["text"] = json!(help.text);
        value["path"] = json!(help.position.as_ref().map(|(path, _)| path));
        value["line"] = json!(help.position.as_ref().map(|(_, line)| line));
        value
    };
    let mut elsewhere = count_value(answer.elsewhere);
    elsewhere["parts"] = json!(named(&answer.elsewhere_parts));
    json!({
        "samples": answer.all.samples,
        "weight": answer.all.weight,
        "idle": report.profile.idle.samples,
        "idle_weight": report.profile.idle.weight,
        "run_queue": report.run_queue_ns(),
        "unrecorded_children": report.unrecorded_children_ns(),
        "shares": named(&answer.shares),
        "rows": answer.rows.iter().map(row).collect::<Vec<_>>(),
        "elsewhere": elsewhere,
        "helps": answer.helps.iter().map(help).collect::<Vec<_>>(),
    })
}

fn hot_lines(report: &Report) -> Vec<Value> {
    let rows = report.profile.hottest(usize::MAX);
    rows.iter()
        .map(|line| {
            let (file, number) = (line.position.0 as usize, line.position.1);
            json!({
                "path": report.profile.files[file].path,
                "line": number,
                "source": report.sources[file].line(number),
                "kind": if line.compiled { "compiled" } else { "python" },
                "self": line.self_count.samples,
                "self_weight": line.self_count.weight,
                "self_percent": percent(report, line.self_count),
                "total": line.total.samples,
                "total_percent": percent(report, line.total),
                "in_c": line.in_c.samples,
            })
        })
        .collect()
}

fn outside(report: &Report) -> Vec<Value> {
    let rows = report.profile.outside.iter();
    rows.map(|(name, count)| json!({"name": name, "samples": count.samples, "percent": percent(report, *count)}))
        .collect()
}

/// Returns the percentage of the total weight.
fn percent(report: &Report, count: Count) -> f64 {
    rounded(count.percent_of(report.profile.all))
}

/// Rounds to three decimals.
fn rounded(percent: f64) -> f64 {
    (percent * 1000.0).round() / 1000.0
}

fn files(report: &Report) -> Vec<Value> {
    let files = report.profile.files.iter().zip(&report.sources);
    let value = |(file, source): (&SourceLines, &SourceText)| {
        let lines = file.lines.iter().map(|(number, line)| {
            let mut value = line_value(report, *number, line, source.line(*number));
            let loops = report.loops_at(&file.path, *number);
            value["loops"] = loops.map(|hot_loop| loop_value(report, hot_loop)).collect();
            value
        });
        let mut value = json!({"path": file.path, "lines": lines.collect::<Vec<_>>()});
        if let Some(note) = &source.note {
            value["note"] = json!(note);
        }
        value
    };
    files.map(value).collect()
}

fn line_value(report: &Report, number: u32, line: &Line, source: Option<&str>) -> Value {
    let fields = json!({
        "line": number,
        "approximate": line.approximate.samples,
        "self_weight": line.shares.self_count.weight,
        "in_c": line.in_c.samples,
        "source": source,
        "inlined": inlined(report, &line.inlined),
    });
    let mut value = with_shares(report, &line.shares, fields);
    if !line.by_thread.is_empty() {
        let threads = line.by_thread.iter().filter_map(|(thread, parts)| {
            let Thread { pid, tid, host, .. } = &report.profile.threads.get(*thread as usize)?.thread;
            Some(with_shares(report, parts, json!({"pid": pid, "tid": tid, "host": host})))
        });
        value["threads"] = threads.collect();
    }
    value
}

/// Returns a loop of machine code, which is listed at its hottest line.
fn loop_value(report: &Report, hot_loop: &Loop) -> Value {
    let calls = hot_loop.calls.iter().map(|(name, count)| json!({"name": name, "samples": count.samples}));
    let advice = hot_loop.advice.iter().map(|advice| {
        json!({
            "rule": advice.rule,
            "text": advice.text(),
            "cause": advice.cause,
            "change": advice.change,
            "gain": advice.gain.map(|gain| [gain.lower, gain.upper]),
            "changes_results": advice.changes_results,
        })
    });
    let remarks = hot_loop.remarks.iter();
    let remarks = remarks.map(|remark| json!({"name": remark.name, "line": remark.line, "text": remark.text}));
    json!({
        "function": hot_loop.function,
        "first": hot_loop.first,
        "last": hot_loop.last,
        "self": hot_loop.self_count.samples,
        "total": hot_loop.total.samples,
        "total_percent": percent(report, hot_loop.total),
        "ran": if hot_loop.facts.is_vectorised() { "vector" } else { "scalar" },
        "width": hot_loop.facts.width,
        "lanes": hot_loop.facts.lanes(),
        "packed": hot_loop.facts.packed,
        "scalar": hot_loop.facts.scalar,
        "gathers": hot_loop.facts.gathers + hot_loop.facts.scatters,
        "divisions": hot_loop.facts.divisions,
        "integer_divisions": hot_loop.facts.integer_divisions,
        "conversions": hot_loop.facts.conversions,
        "spills": hot_loop.facts.spills,
        "exits": hot_loop.facts.exits,
        "exceptions": hot_loop.facts.exceptions,
        "versions": hot_loop.versions.iter().map(|version| json!({
            "ran": if version.facts.is_vectorised() { "vector" } else { "scalar" },
            "width": version.facts.width,
            "lanes": version.facts.lanes(),
            "total": version.total.samples,
        })).collect::<Vec<_>>(),
        "summary": hot_loop.facts.summary(),
        "calls": calls.collect::<Vec<_>>(),
        "llvm": remarks.collect::<Vec<_>>(),
        "advice": advice.collect::<Vec<_>>(),
    })
}

fn inlined(report: &Report, calls: &[Inlined]) -> Value {
    let calls = calls.iter().map(|call| {
        let file = call.file.map(|file| file as usize);
        let fields = json!({
            "function": report.profile.functions[call.function as usize].name,
            "path": file.map(|file| &report.profile.files[file].path),
            "line": call.line,
            "source": file.and_then(|file| report.sources[file].line(call.line)),
            "inlined": inlined(report, &call.inlined),
        });
        with_shares(report, &call.shares, fields)
    });
    calls.collect()
}

/// Adds self and total time to an object.
fn with_shares(report: &Report, shares: &Shares, mut value: Value) -> Value {
    value["self"] = json!(shares.self_count.samples);
    value["total"] = json!(shares.total.samples);
    value["self_percent"] = json!(percent(report, shares.self_count));
    value["total_percent"] = json!(percent(report, shares.total));
    value
}

fn functions(report: &Report) -> Vec<Value> {
    let rows = report.profile.functions.iter();
    rows.map(|row| {
        let compilations = row.compilations.iter();
        let compilations = compilations.map(|(name, parts)| with_shares(report, parts, json!({"name": name})));
        let compilations = compilations.collect::<Vec<_>>();
        let fields = json!({"name": row.name, "kind": row.kind.name(), "compilations": compilations});
        with_shares(report, &row.shares, fields)
    })
    .collect()
}

fn threads(report: &Report) -> Vec<Value> {
    let rows = report.profile.threads.iter();
    rows.map(|row| {
        json!({
            "pid": row.thread.pid,
            "tid": row.thread.tid,
            "name": row.thread.name,
            "host": row.thread.host,
            "rank": row.thread.rank,
            "process": row.thread.process,
            "samples": row.all.samples,
            "compiled": row.compiled.samples,
            "percent": percent(report, row.all),
        })
    })
    .collect()
}

/// Returns the lines and functions whose time differs between processes, if the report is by thread.
fn imbalance(report: &Report) -> Value {
    fn with_times<T>(row: &Imbalance<T>, mut value: Value) -> Value {
        let Group { pid, host, rank, label, .. } = &row.slowest;
        value["gain"] = json!(row.gain());
        value["min"] = json!(row.min);
        value["mean"] = json!(row.mean);
        value["max"] = json!(row.max);
        value["slowest"] = json!({"pid": pid, "host": host, "rank": rank, "label": label});
        value
    }
    let lines = report.imbalanced_lines();
    let lines = lines.iter().map(|row| {
        let (file, line) = row.subject;
        with_times(row, json!({"path": report.profile.files[file as usize].path, "line": line}))
    });
    let functions = report.imbalanced_functions();
    let functions = functions.iter().map(|row| {
        let function = &report.profile.functions[row.subject];
        with_times(row, json!({"name": function.name, "kind": function.kind.name()}))
    });
    json!({"lines": lines.collect::<Vec<_>>(), "functions": functions.collect::<Vec<_>>()})
}

fn groups(report: &Report, groups: &[Group], are_processes: bool) -> Vec<Value> {
    let value = |group: &Group| {
        let mut value = json!({
            "host": group.host,
            "threads": group.threads,
            "samples": group.all.samples,
            "compiled": group.compiled.samples,
            "percent": percent(report, group.all),
        });
        if are_processes {
            value["pid"] = json!(group.pid);
            value["name"] = json!(group.name);
            value["rank"] = json!(group.rank);
            value["label"] = json!(group.label);
        }
        value
    };
    groups.iter().map(value).collect()
}
