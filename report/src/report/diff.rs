//! Comparison of two recordings by activity, function and line, in seconds and in shares of all samples.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Report;
use crate::profile::{Count, FunctionRow, Line, Shares};
use crate::symbols::Kind;
use crate::words::{file_name, python_name};

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
    /// Samples before and after.
    pub counts: (Shares, Shares),
    /// True if both recordings measure time, so that the weights of samples are ns.
    pub is_time: bool,
}

/// Number of standard errors within which a difference is noise.
const NOISE_STANDARD_ERRORS: f64 = 2.0;

impl Change {
    /// Returns the growth of the total, in ns or events, and the part of it that may be noise of sampling: two standard
    /// errors, if the number of samples is distributed by Poisson's law.
    pub fn growth(&self) -> (f64, f64) {
        Change::growth_of(self.counts.0.total, self.counts.1.total)
    }

    fn growth_of(before: Count, after: Count) -> (f64, f64) {
        let variance = |count: Count| (count.weight as f64).powi(2) / (count.samples.max(1) as f64);
        let noise = NOISE_STANDARD_ERRORS * (variance(before) + variance(after)).sqrt();
        (after.weight as f64 - before.weight as f64, noise)
    }

    /// Returns true if self or total time differs by more than noise.
    pub(crate) fn exceeds_noise(&self) -> bool {
        let (before, after) = self.counts;
        let pairs = [(before.total, after.total), (before.self_count, after.self_count)];
        pairs
            .into_iter()
            .map(|(before, after)| Change::growth_of(before, after))
            .any(|(growth, noise)| growth.abs() > noise)
    }

    /// Returns total and self time in seconds, each before and after, if both recordings measure time.
    pub(crate) fn seconds(&self) -> Option<[(f64, f64); 2]> {
        let (before, after) = self.counts;
        let seconds = |before: Count, after: Count| (before.weight as f64 / 1e9, after.weight as f64 / 1e9);
        self.is_time.then(|| [seconds(before.total, after.total), seconds(before.self_count, after.self_count)])
    }

    /// Returns the largest change: of seconds if both recordings measure time, or else of percentage points. Of several
    /// with the same total, the one whose own time has changed is the cause.
    pub(crate) fn size(&self) -> (f64, f64) {
        let [total, own] =
            self.seconds().unwrap_or([self.total, self.self_percent]).map(|(before, after)| (after - before).abs());
        (own.max(total), own)
    }
}

/// Differences between two recordings.
#[derive(Clone, Debug, Default)]
pub struct Difference {
    /// Changes by activity, largest first.
    pub activities: Vec<Change>,
    /// Changes of compiled functions and of the user's Python functions, largest first.
    pub functions: Vec<Change>,
    /// Changes of lines in these functions.
    pub lines: Vec<Change>,
    /// Sources whose hashes differ between the recordings.
    pub changed: Vec<String>,
    /// All samples, before and after.
    pub all: (Count, Count),
}

impl Difference {
    /// Returns the change of the whole program.
    pub(crate) fn program(&self) -> Change {
        let whole = |count| Shares { self_count: count, total: count };
        Change {
            name: "the program".to_owned(),
            source: String::new(),
            self_percent: (100.0, 100.0),
            total: (100.0, 100.0),
            counts: (whole(self.all.0), whole(self.all.1)),
            is_time: self.activities.iter().any(|change| change.is_time),
        }
    }

    /// Returns everything that has grown by more than a percentage of all samples before, and by more than noise: the
    /// whole program, activities, functions and lines, the largest growth first.
    pub fn regressions(&self, percent: f64) -> Vec<Change> {
        let limit = self.all.0.weight as f64 * percent / 100.0;
        let program = self.program();
        let rows = [&self.activities, &self.functions, &self.lines].into_iter().flatten();
        let has_grown = |change: &&Change| {
            let (growth, noise) = change.growth();
            growth > limit && growth > noise
        };
        let mut regressions: Vec<Change> = std::iter::once(&program).chain(rows).filter(has_grown).cloned().collect();
        regressions.sort_by(|a, b| b.growth().0.total_cmp(&a.growth().0));
        regressions
    }
}

/// Compares two recordings. Lines are matched by path and number, so in a source that was edited between the recordings
/// only functions are comparable. Two checkouts of a program have the same files.
pub fn diff(before: &Report, after: &Report) -> Difference {
    let moved = moved_files(before, after);
    let activities = compare_rows(before, after, |report| {
        let rows = report.profile.summary.rows().into_iter();
        rows.map(|(activity, count)| (activity.words().to_owned(), Shares { self_count: count, total: count }))
            .collect()
    });
    let functions = compare_rows(before, after, |report| {
        let is_shown = |row: &&FunctionRow| match row.kind {
            Kind::Compiled => true,
            Kind::Python => {
                row.lines.is_some_and(|lines| report.is_user_source(&report.profile.files[lines.file as usize].path))
            }
            _ => false,
        };
        // Python functions of several files may have one name.
        let name = |row: &FunctionRow| match row.lines.filter(|_| row.kind == Kind::Python) {
            Some(lines) => python_name(&row.name, &report.profile.files[lines.file as usize].path),
            None => row.name.clone(),
        };
        report.profile.functions.iter().filter(is_shown).map(|row| (name(row), row.shares)).collect()
    });
    let mut lines = compare_rows(before, after, |report| {
        let is_compiled = |line: &Line| {
            line.functions.iter().any(|row| report.profile.functions[*row as usize].kind == Kind::Compiled)
        };
        let common_path = |path: &'_ str| match moved.get(path).filter(|_| std::ptr::eq(report, before)) {
            Some(after) => (*after).to_owned(),
            None => path.to_owned(),
        };
        let files = report.profile.files.iter();
        files
            .flat_map(|file| file.lines.iter().map(move |line| (&file.path, line)))
            .filter(|(path, (_, row))| report.is_user_source(path) || is_compiled(row))
            .map(|(path, (line, row))| (format!("{}:{line}", common_path(path)), row.shares))
            .collect()
    });
    for line in &mut lines {
        line.source = source_text(after, &line.name).or_else(|| source_text(before, &line.name)).unwrap_or_default();
    }
    let all = (before.profile.all, after.profile.all);
    Difference { activities, functions, lines, changed: changed_sources(before, after, &moved), all }
}

/// Returns the files of the first recording that only have another directory in the second, with that path. Each is the
/// only one of its name.
fn moved_files<'a>(before: &'a Report, after: &'a Report) -> FxHashMap<&'a str, &'a str> {
    let paths = |report: &'a Report| report.profile.files.iter().map(|file| file.path.as_str());
    let only_in = |report: &'a Report, other: &'a Report| {
        let others: FxHashSet<&str> = paths(other).collect();
        let mut by_name: FxHashMap<&str, Vec<&str>> = FxHashMap::default();
        for path in paths(report).filter(|path| !others.contains(path)) {
            by_name.entry(file_name(path)).or_default().push(path);
        }
        by_name
    };
    let (mut moved, found) = (FxHashMap::default(), only_in(after, before));
    for (name, paths) in only_in(before, after) {
        if let ([path], Some([other])) = (&paths[..], found.get(name).map(Vec::as_slice)) {
            moved.insert(*path, *other);
        }
    }
    moved
}

/// Returns the sources in both recordings whose hashes are known and differ.
fn changed_sources(before: &Report, after: &Report, moved: &FxHashMap<&str, &str>) -> Vec<String> {
    let hashes = |report: &Report, path: &str| {
        let mut hashes = report.symbols.source_hashes.get(path).cloned()?;
        hashes.sort();
        Some(hashes)
    };
    let paths = before.profile.files.iter().map(|file| file.path.as_str());
    let pairs = paths.map(|path| (path, moved.get(path).copied().unwrap_or(path)));
    let differ = |(before_path, after_path): &(&str, &str)| {
        hashes(before, before_path)
            .zip(hashes(after, after_path))
            .is_some_and(|(hashes_before, hashes_after)| hashes_before != hashes_after)
    };
    pairs.filter(differ).map(|(_, path)| path.to_owned()).collect()
}

fn source_text(report: &Report, name: &str) -> Option<String> {
    let (path, line) = name.rsplit_once(':')?;
    let file = report.profile.files.iter().position(|file| file.path == path)?;
    report.sources[file].line(line.parse().ok()?).map(|text| text.trim_start().to_owned())
}

fn compare_rows(before: &Report, after: &Report, rows: impl Fn(&Report) -> Vec<(String, Shares)>) -> Vec<Change> {
    let mut counts_by_name: BTreeMap<String, (Shares, Shares)> = BTreeMap::new();
    for (name, shares) in rows(before) {
        counts_by_name.entry(name).or_default().0.add(shares);
    }
    for (name, shares) in rows(after) {
        counts_by_name.entry(name).or_default().1.add(shares);
    }
    let (all_before, all_after) = (before.profile.all, after.profile.all);
    let percent = |before: Count, after: Count| (before.percent_of(all_before), after.percent_of(all_after));
    let is_time = before.is_time() && after.is_time();
    let change = |(name, counts): (String, (Shares, Shares))| Change {
        name,
        source: String::new(),
        self_percent: percent(counts.0.self_count, counts.1.self_count),
        total: percent(counts.0.total, counts.1.total),
        counts,
        is_time,
    };
    let changes = counts_by_name.into_iter().map(change);
    let mut changes: Vec<Change> = changes.filter(|change| change.total != (0.0, 0.0)).collect();
    let order = |a: &Change, b: &Change| {
        let ((size, own), (other, other_own)) = (a.size(), b.size());
        other.total_cmp(&size).then(other_own.total_cmp(&own)).then_with(|| a.name.cmp(&b.name))
    };
    changes.sort_by(order);
    changes
}
