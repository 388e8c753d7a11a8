//! Comparison of two recordings for a terminal.

use crate::report::{Change, Report, diff};
use crate::sanitize::sanitize;
use crate::words::file_name;

use super::lines::{Lines, wrap};

/// Minimum change to show, unless all changes are requested: in percentage points, or in percent of the time before.
const MIN_CHANGE: f64 = 0.3;
const MAX_ROWS: usize = 20;

/// Formats the comparison for a terminal. `all` also shows the smallest changes.
pub fn diff_to_text(before: &Report, after: &Report, width: Option<usize>, all: bool) -> String {
    let difference = diff(before, after);
    let mut lines = Lines::new(width, false);
    for (label, report) in [("before", before), ("after", after)] {
        lines.write_wrapped(&format!("{label}: {}", sanitize(&report.title())), " · ", "");
        for note in &report.notes {
            for line in wrap(&sanitize(&format!("note: {note}")), " ", lines.columns().saturating_sub(2).max(20)) {
                lines.write(&format!("  {line}"));
            }
        }
    }
    if before.event() != after.event() {
        lines.write("the recordings count different events: their shares are not comparable");
    }
    for path in &difference.changed {
        let path = sanitize(path);
        let note = format!("note: {path} was changed in between: equal line numbers may be different lines");
        for line in wrap(&note, " ", lines.columns().saturating_sub(2).max(20)) {
            lines.write(&line);
        }
    }
    let limits = Limits { min_seconds: difference.all.0.weight as f64 / 1e9 * MIN_CHANGE / 100.0, all };
    let activities = [&[difference.program()], &difference.activities[..]].concat();
    write_table(&mut lines, "what was done", &activities, &Limits { all: true, ..limits });
    write_table(&mut lines, "function", &difference.functions, &limits);
    write_table(&mut lines, "line", &difference.lines, &limits);
    lines.into_text()
}

/// Which changes are shown.
struct Limits {
    min_seconds: f64,
    all: bool,
}

impl Limits {
    fn show(&self, change: &Change) -> bool {
        let (size, _) = change.size();
        match change.is_time {
            _ if self.all => true,
            true => size >= self.min_seconds && change.exceeds_noise(),
            false => size >= MIN_CHANGE,
        }
    }
}

fn write_table(lines: &mut Lines, heading: &str, changes: &[Change], limits: &Limits) {
    let is_wide = lines.is_wide();
    let in_seconds = changes.iter().any(|change| change.is_time);
    let title = match (in_seconds, is_wide) {
        (true, true) => "  total s: before, after, change |   self s: before, after, change |",
        (true, false) => "  total s: before, after, change |  self s |",
        (false, _) => "  self %: before, after, change | total % |",
    };
    lines.write("");
    lines.write(&format!("{title} {heading}"));
    let max_rows = if limits.all { usize::MAX } else { MAX_ROWS };
    let shown: Vec<&Change> = changes.iter().filter(|change| limits.show(change)).take(max_rows).collect();
    for change in &shown {
        let columns = |(before, after): (f64, f64), digits: usize, width: usize| {
            format!("{before:>width$.digits$} {after:>width$.digits$} {:>+width$.digits$}", after - before)
        };
        let columns = match change.seconds() {
            Some([total, own]) if is_wide => format!("  {} |  {}", columns(total, 2, 10), columns(own, 2, 10)),
            Some([total, own]) => format!("  {} | {:>+7.2}", columns(total, 2, 9), own.1 - own.0),
            None => format!("  {} | {:>+7.1}", columns(change.self_percent, 1, 9), change.total.1 - change.total.0),
        };
        // The file name is enough to identify a line.
        let name = sanitize(file_name(&change.name));
        lines.write(&format!("{columns} | {name}  {}", change.source));
    }
    if shown.is_empty() {
        let limit = if in_seconds { "more than noise".to_owned() } else { format!("{MIN_CHANGE} points") };
        lines.write(&format!("no {heading} differs by {limit}"));
    }
}
