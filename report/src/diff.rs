//! Two recordings side by side, by function and by line, in shares of all samples.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::printable::printable;
use crate::profile::{Count, Shares};
use crate::report::{Report, grouped};
use crate::symbols::Kind;
use crate::text::cut;

/// Changes smaller than this many points are left out, unless all are wanted.
const LEAST: f64 = 0.3;
const MOST: usize = 20;

/// One thing in both recordings.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// A function, or a line as `path:line`.
    pub name: String,
    /// The source of a line.
    pub source: String,
    /// Percent of self, before and after.
    pub own: (f64, f64),
    /// Percent of total, before and after.
    pub total: (f64, f64),
}

impl Change {
    fn size(&self) -> f64 {
        (self.own.1 - self.own.0).abs().max((self.total.1 - self.total.0).abs())
    }
}

/// What is different.
#[derive(Clone, Debug, Default)]
pub struct Difference {
    /// Compiled functions, the largest change first.
    pub functions: Vec<Change>,
    /// Their lines.
    pub lines: Vec<Change>,
    /// Sources that were changed between the two recordings, by their hashes.
    pub changed: Vec<String>,
}

/// Compares. Lines are found by path and number, so of a source that was edited in between only the functions can be compared.
pub fn diff(before: &Report, after: &Report) -> Difference {
    let functions = changes(before, after, |report| {
        let rows = report.profile.functions.iter().filter(|row| row.kind == Kind::Compiled);
        rows.map(|row| (row.name.clone(), row.shares)).collect()
    });
    let mut lines = changes(before, after, |report| {
        let files = report.profile.files.iter();
        files
            .flat_map(|file| file.lines.iter().map(|(line, row)| (format!("{}:{line}", file.path), row.shares)))
            .collect()
    });
    for line in &mut lines {
        line.source = source_of(after, &line.name).or_else(|| source_of(before, &line.name)).unwrap_or_default();
    }
    Difference { functions, lines, changed: changed(before, after) }
}

/// Sources of lines in both, whose hashes are known and are not the same ones.
fn changed(before: &Report, after: &Report) -> Vec<String> {
    let paths = before.profile.files.iter().map(|file| &file.path);
    let both = paths.filter(|path| after.profile.files.iter().any(|file| file.path == **path));
    let hashes = |report: &Report, path: &String| {
        let mut hashes = report.symbols.source_hashes.get(path).cloned()?;
        hashes.sort();
        Some(hashes)
    };
    let differ = |path: &&String| hashes(before, path).zip(hashes(after, path)).is_some_and(|(one, two)| one != two);
    both.filter(differ).cloned().collect()
}

fn source_of(report: &Report, name: &str) -> Option<String> {
    let (path, line) = name.rsplit_once(':')?;
    let file = report.profile.files.iter().position(|file| file.path == path)?;
    report.sources[file].line(line.parse().ok()?).map(|text| text.trim_start().to_owned())
}

fn changes(before: &Report, after: &Report, rows: impl Fn(&Report) -> Vec<(String, Shares)>) -> Vec<Change> {
    let mut all: BTreeMap<String, Change> = BTreeMap::new();
    let percents = |report: &Report, shares: &Shares| {
        let percent = |count: Count| count.percent_of(report.profile.all);
        (percent(shares.own), percent(shares.total))
    };
    let change =
        |name: &String| Change { name: name.clone(), source: String::new(), own: (0.0, 0.0), total: (0.0, 0.0) };
    for (name, shares) in rows(before) {
        let entry = all.entry(name.clone()).or_insert_with(|| change(&name));
        (entry.own.0, entry.total.0) = percents(before, &shares);
    }
    for (name, shares) in rows(after) {
        let entry = all.entry(name.clone()).or_insert_with(|| change(&name));
        (entry.own.1, entry.total.1) = percents(after, &shares);
    }
    let mut all: Vec<Change> = all.into_values().collect();
    all.sort_by(|a, b| b.size().total_cmp(&a.size()).then_with(|| a.name.cmp(&b.name)));
    all
}

/// For a terminal; `all` shows the smallest changes, too.
pub fn diff_to_text(before: &Report, after: &Report, width: Option<usize>, all: bool) -> String {
    let difference = diff(before, after);
    let mut text = String::new();
    for (what, report) in [("before", before), ("after", after)] {
        let profile = &report.profile;
        let compiled = profile.compiled.percent_of(profile.all);
        let samples = grouped(profile.all.samples);
        let _ = writeln!(text, "{what}: {samples} samples of {}, {compiled:.1} % in compiled code", report.event());
        for note in &report.notes {
            let _ = writeln!(text, "  note: {}", printable(note));
        }
    }
    if before.event() != after.event() {
        let _ = writeln!(text, "the events differ: shares of different things are compared");
    }
    for path in &difference.changed {
        let path = printable(path);
        let _ = writeln!(text, "note: {path} was changed in between: lines of one number need not be the same line");
    }
    table(&mut text, "function", &difference.functions, width, all);
    table(&mut text, "line", &difference.lines, width, all);
    text
}

fn table(text: &mut String, what: &str, changes: &[Change], width: Option<usize>, all: bool) {
    let _ = writeln!(text, "\n  self %: before, after, change |  total %: before, after, change | {what}");
    let shown = changes.iter().filter(|change| all || change.size() >= LEAST).take(if all { usize::MAX } else { MOST });
    let mut count = 0;
    for change in shown {
        count += 1;
        let columns = |(before, after): (f64, f64)| format!("{before:>8.1} {after:>8.1} {:>+8.1}", after - before);
        let name = printable(&change.name);
        let row =
            format!("    {}    |     {}    | {name}  {}", columns(change.own), columns(change.total), change.source);
        let row = width.map_or_else(|| row.clone(), |width| cut(&row, width));
        let _ = writeln!(text, "{}", row.trim_end());
    }
    if count == 0 {
        let _ = writeln!(text, "no {what} differs by {LEAST} points");
    }
}
