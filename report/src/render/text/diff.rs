//! Comparison of two recordings for a terminal.

use crate::report::{Change, Report, diff};
use crate::sanitize::sanitize;
use crate::words::file_name;

use super::lines::{Lines, wrap};

/// Minimum change in percentage points to show, unless all changes are requested.
const MIN_CHANGE_POINTS: f64 = 0.3;
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
        lines.write(&format!("note: {path} was changed in between: equal line numbers may be different lines"));
    }
    write_table(&mut lines, "what was done", &difference.activities, true);
    write_table(&mut lines, "function", &difference.functions, all);
    write_table(&mut lines, "line", &difference.lines, all);
    lines.into_text()
}

fn write_table(lines: &mut Lines, heading: &str, changes: &[Change], all: bool) {
    let is_wide = lines.is_wide();
    let in_seconds = changes.iter().any(|change| change.seconds.is_some());
    let title = match (is_wide, in_seconds) {
        (true, true) => "   seconds: before, after, change |  self %: before, after, change | total % |",
        (true, false) => "  self %: before, after, change | total % |",
        (false, true) => " seconds: before, after, change | total % |",
        (false, false) => "  self %: before, after, change | total % |",
    };
    lines.write("");
    lines.write(&format!("{title} {heading}"));
    let shown_changes = changes.iter().filter(|change| all || change.size() >= MIN_CHANGE_POINTS);
    let mut is_empty = true;
    for change in shown_changes.take(if all { usize::MAX } else { MAX_ROWS }) {
        is_empty = false;
        let columns = |(before, after): (f64, f64), digits: usize, width: usize| {
            format!("{before:>width$.digits$} {after:>width$.digits$} {:>+width$.digits$}", after - before)
        };
        let seconds = change.seconds.map(|pair| columns(pair, 2, if is_wide { 10 } else { 9 }));
        let (self_percent, total) = (columns(change.self_percent, 1, 9), change.total.1 - change.total.0);
        let shares = match (is_wide, seconds) {
            (true, Some(seconds)) => format!(" {seconds} |   {self_percent} | {total:>+7.1} |"),
            // A caller's own time may not change.
            (false, Some(seconds)) => format!("   {seconds} | {total:>+7.1} |"),
            (_, None) => format!("  {self_percent} | {total:>+7.1} |"),
        };
        // The file name is enough to identify a line.
        let name = sanitize(file_name(&change.name));
        lines.write(&format!("{shares} {name}  {}", change.source));
    }
    if is_empty {
        lines.write(&format!("no {heading} differs by {MIN_CHANGE_POINTS} points"));
    }
}
