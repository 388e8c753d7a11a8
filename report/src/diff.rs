//! Comparison of two recordings by activity, function and line, in seconds and in shares of all samples.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::activity::is_user_source;
use crate::profile::{Count, FunctionRow, Line, Shares};
use crate::report::{Report, file_name};
use crate::sanitize::sanitize;
use crate::symbols::Kind;
use crate::text::{MIN_WIDE_COLUMNS, truncate, wrap};

/// Smaller changes are hidden unless all are requested.
const MIN_CHANGE_POINTS: f64 = 0.3;
const MAX_ROWS: usize = 20;

/// Shares of an activity, a function or a line in both recordings.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Activity, function, or line as `path:line`.
    pub name: String,
    /// Source text of a line.
    pub source: String,
    /// Self time in percent, before and after.
    pub self_percent: (f64, f64),
    /// Total time in percent, before and after.
    pub total: (f64, f64),
    /// Self time in seconds, before and after, if both recordings measure time.
    pub seconds: Option<(f64, f64)>,
}

impl Change {
    fn size(&self) -> f64 {
        (self.self_percent.1 - self.self_percent.0).abs().max((self.total.1 - self.total.0).abs())
    }
}

/// Differences between two recordings.
#[derive(Clone, Debug, Default)]
pub struct Difference {
    /// Changes by activity, largest first.
    pub activities: Vec<Change>,
    /// Changes of compiled functions and of the user's Python functions, largest first.
    pub functions: Vec<Change>,
    /// Changes of their lines.
    pub lines: Vec<Change>,
    /// Sources whose hashes differ between the recordings.
    pub changed: Vec<String>,
}

/// Compares two recordings. Lines are matched by path and number, so in a source that was edited between the recordings
/// only functions are comparable.
pub fn diff(before: &Report, after: &Report) -> Difference {
    let activities = compare_rows(before, after, |report| {
        let rows = report.profile.summary.rows().into_iter();
        rows.map(|(activity, count)| (activity.words().to_owned(), Shares { self_count: count, total: count }))
            .collect()
    });
    let functions = compare_rows(before, after, |report| {
        let is_shown = |row: &&FunctionRow| match row.kind {
            Kind::Compiled => true,
            Kind::Python => {
                row.lines.is_some_and(|lines| is_user_source(&report.profile.files[lines.file as usize].path))
            }
            _ => false,
        };
        report.profile.functions.iter().filter(is_shown).map(|row| (row.name.clone(), row.shares)).collect()
    });
    let mut lines = compare_rows(before, after, |report| {
        let is_compiled = |line: &Line| {
            line.functions.iter().any(|row| report.profile.functions[*row as usize].kind == Kind::Compiled)
        };
        let files = report.profile.files.iter();
        files
            .flat_map(|file| file.lines.iter().map(move |line| (&file.path, line)))
            .filter(|(path, (_, row))| is_user_source(path) || is_compiled(row))
            .map(|(path, (line, row))| (format!("{path}:{line}"), row.shares))
            .collect()
    });
    for line in &mut lines {
        line.source = source_text(after, &line.name).or_else(|| source_text(before, &line.name)).unwrap_or_default();
    }
    Difference { activities, functions, lines, changed: changed_sources(before, after) }
}

/// Returns the sources in both recordings whose hashes are known and differ.
fn changed_sources(before: &Report, after: &Report) -> Vec<String> {
    let paths = before.profile.files.iter().map(|file| &file.path);
    let common_paths = paths.filter(|path| after.profile.files.iter().any(|file| file.path == **path));
    let hashes = |report: &Report, path: &String| {
        let mut hashes = report.symbols.source_hashes.get(path).cloned()?;
        hashes.sort();
        Some(hashes)
    };
    let differ = |path: &&String| {
        hashes(before, path)
            .zip(hashes(after, path))
            .is_some_and(|(hashes_before, hashes_after)| hashes_before != hashes_after)
    };
    common_paths.filter(differ).cloned().collect()
}

fn source_text(report: &Report, name: &str) -> Option<String> {
    let (path, line) = name.rsplit_once(':')?;
    let file = report.profile.files.iter().position(|file| file.path == path)?;
    report.sources[file].line(line.parse().ok()?).map(|text| text.trim_start().to_owned())
}

fn compare_rows(before: &Report, after: &Report, rows: impl Fn(&Report) -> Vec<(String, Shares)>) -> Vec<Change> {
    let mut changes_by_name: BTreeMap<String, Change> = BTreeMap::new();
    let percents = |report: &Report, shares: &Shares| {
        let percent = |count: Count| count.percent_of(report.profile.all);
        (percent(shares.self_count), percent(shares.total))
    };
    let seconds = (before.is_time() && after.is_time()).then_some((0.0, 0.0));
    let change = |name: &String| Change {
        name: name.clone(),
        source: String::new(),
        self_percent: (0.0, 0.0),
        total: (0.0, 0.0),
        seconds,
    };
    let in_seconds = |shares: &Shares| shares.self_count.weight as f64 / 1e9;
    for (name, shares) in rows(before) {
        let entry = changes_by_name.entry(name.clone()).or_insert_with(|| change(&name));
        (entry.self_percent.0, entry.total.0) = percents(before, &shares);
        entry.seconds.iter_mut().for_each(|seconds| seconds.0 = in_seconds(&shares));
    }
    for (name, shares) in rows(after) {
        let entry = changes_by_name.entry(name.clone()).or_insert_with(|| change(&name));
        (entry.self_percent.1, entry.total.1) = percents(after, &shares);
        entry.seconds.iter_mut().for_each(|seconds| seconds.1 = in_seconds(&shares));
    }
    let mut changes: Vec<Change> = changes_by_name.into_values().filter(|change| change.total != (0.0, 0.0)).collect();
    changes.sort_by(|a, b| b.size().total_cmp(&a.size()).then_with(|| a.name.cmp(&b.name)));
    changes
}

/// Formats the comparison for a terminal. `all` also shows the smallest changes.
pub fn diff_to_text(before: &Report, after: &Report, width: Option<usize>, all: bool) -> String {
    let difference = diff(before, after);
    let mut text = String::new();
    let columns = width.unwrap_or(usize::MAX);
    for (label, report) in [("before", before), ("after", after)] {
        let title = format!("{label}: {}", sanitize(&report.title()));
        for line in wrap(&title, " · ", columns) {
            let _ = writeln!(text, "{line}");
        }
        for note in &report.notes {
            for line in wrap(&sanitize(&format!("note: {note}")), " ", columns.saturating_sub(2).max(20)) {
                let _ = writeln!(text, "  {line}");
            }
        }
    }
    if before.event() != after.event() {
        let _ = writeln!(text, "the recordings count different events: their shares are not comparable");
    }
    for path in &difference.changed {
        let path = sanitize(path);
        let _ = writeln!(text, "note: {path} was changed in between: equal line numbers may be different lines");
    }
    write_table(&mut text, "what was done", &difference.activities, width, true);
    write_table(&mut text, "function", &difference.functions, width, all);
    write_table(&mut text, "line", &difference.lines, width, all);
    text
}

fn write_table(text: &mut String, heading: &str, changes: &[Change], width: Option<usize>, all: bool) {
    let is_wide = width.is_none_or(|width| width >= MIN_WIDE_COLUMNS);
    let in_seconds = changes.iter().any(|change| change.seconds.is_some());
    let title = match (is_wide, in_seconds) {
        (true, true) => "   seconds: before, after, change |  self %: before, after, change | total % |",
        (true, false) => "  self %: before, after, change | total % |",
        (false, true) => " seconds: before, after, change |  points |",
        (false, false) => "  self %: before, after, change | total % |",
    };
    let _ = writeln!(text, "\n{}", truncate_to(&format!("{title} {heading}"), width));
    let shown_changes = changes.iter().filter(|change| all || change.size() >= MIN_CHANGE_POINTS).take(if all {
        usize::MAX
    } else {
        MAX_ROWS
    });
    let mut count = 0;
    for change in shown_changes {
        count += 1;
        let columns = |(before, after): (f64, f64), digits: usize, width: usize| {
            format!("{before:>width$.digits$} {after:>width$.digits$} {:>+width$.digits$}", after - before)
        };
        let seconds = change.seconds.map(|pair| columns(pair, 2, if is_wide { 10 } else { 9 }));
        let (self_percent, total) = (columns(change.self_percent, 1, 9), change.total.1 - change.total.0);
        let shares = match (is_wide, seconds) {
            (true, Some(seconds)) => format!(" {seconds} |   {self_percent} | {total:>+7.1} |"),
            (false, Some(seconds)) => {
                format!("   {seconds} | {:>+7.1} |", change.self_percent.1 - change.self_percent.0)
            }
            (_, None) => format!("  {self_percent} | {total:>+7.1} |"),
        };
        // The file name is enough to identify a line.
        let name = sanitize(file_name(&change.name));
        let _ = writeln!(text, "{}", truncate_to(&format!("{shares} {name}  {}", change.source), width).trim_end());
    }
    if count == 0 {
        let _ = writeln!(text, "no {heading} differs by {MIN_CHANGE_POINTS} points");
    }
}

fn truncate_to(row: &str, width: Option<usize>) -> String {
    width.map_or_else(|| row.to_owned(), |width| truncate(row, width))
}
