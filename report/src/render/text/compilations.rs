//! Table of `jitlisten compiles`.

use unicode_width::UnicodeWidthStr as _;

use crate::recording::compilations::{Compilation, Why};
use crate::report::Report;
use crate::words::precise_duration;

use super::lines::{Lines, truncate_middle};

/// Returns the table with the compilations that took at least half a percent of the total, or all of them with `all`.
pub fn compilations_to_text(report: &Report, width: Option<usize>, all: bool) -> String {
    let rows = &report.compilations;
    if rows.is_empty() {
        return "no compilations: Numba compiled nothing, or the recording was made by perf or with --no-lines\n"
            .to_owned();
    }
    let outermost = || rows.iter().filter(|row| row.is_outermost());
    let total: u64 = outermost().map(|row| row.cpu_ns).sum();
    let is_shown = |row: &Compilation| all || row.cpu_ns * 200 >= total;
    let shown: Vec<&Compilation> = rows.iter().filter(|row| is_shown(row)).collect();
    let mut lines = Lines::new(width, false);
    let is_wide = lines.is_wide();
    let start_time = report.start_time();
    let max_width = |cell: &dyn Fn(&Compilation) -> String, min_width: usize| {
        shown.iter().map(|row| cell(row).width()).max().unwrap_or_default().max(min_width)
    };
    let indented = |row: &Compilation| format!("{}{}", "  ".repeat(row.depth.min(4) as usize), row.name());
    let signature = |row: &Compilation| row.signature.clone();
    let figures =
        if is_wide { "    when     took    Numba     LLVM     code  " } else { "    when     took     LLVM  " };
    let [names, signatures, reasons] = column_widths(
        width.map(|width| width.saturating_sub(figures.len())),
        is_wide,
        [
            max_width(&indented, "function".len()),
            max_width(&signature, "signature".len()),
            max_width(&Compilation::reason, "why".len()),
        ],
    );
    let format_row = |figures: &str, name: &str, signature: &str, reason: &str| match is_wide {
        true => {
            format!(
                "{figures}{}  {}  {}",
                pad_or_truncate(name, names),
                pad_or_truncate(signature, signatures),
                pad_or_truncate(reason, reasons)
            )
        }
        false => format!("{figures}{}  {}", pad_or_truncate(name, names), pad_or_truncate(reason, reasons)),
    };
    lines.write(&format_row(figures, "function", "signature", "why"));
    for row in &shown {
        let unless_cached = |text: String| if row.why == Why::Cached { String::new() } else { text };
        let [when, took] = [row.begin.saturating_sub(start_time), row.cpu_ns].map(precise_duration);
        let [numba, llvm] = [row.cpu_ns.saturating_sub(row.llvm + row.first_use), row.llvm]
            .map(|part| unless_cached(precise_duration(part)));
        let figures = match is_wide {
            true => format!("{when:>8} {took:>8} {numba:>8} {llvm:>8} {:>8}  ", unless_cached(format_bytes(row.size))),
            false => format!("{when:>8} {took:>8} {llvm:>8}  "),
        };
        lines.write(&format_row(&figures, &indented(row), &row.signature, &short_reason(row.reason(), reasons)));
    }
    if shown.len() < rows.len() {
        lines.write(&format!("{} more took less than 0.5 % (use --all)", rows.len() - shown.len()));
    }
    lines.write("");
    lines.write_wrapped(&report.compiling_summary(), "; ", "");
    lines.into_text()
}

fn format_bytes(count: u64) -> String {
    match count {
        0 => String::new(),
        1..1000 => format!("{count} B"),
        _ => format!("{:.1} KB", count as f64 / 1e3),
    }
}

/// Returns the widths of the name, signature and reason columns. The reason gets its width first, because it is the
/// most useful column.
fn column_widths(total_width: Option<usize>, has_signatures: bool, widths: [usize; 3]) -> [usize; 3] {
    const COLUMN_GAP_COLUMNS: usize = 2;
    const MAX_REASON_COLUMNS: usize = 36;
    let Some(total_width) = total_width else { return widths };
    let reason_width = widths[2].min(MAX_REASON_COLUMNS).min(total_width / 2);
    let name_space = total_width.saturating_sub(reason_width + COLUMN_GAP_COLUMNS);
    if !has_signatures {
        return [widths[0].min(name_space), 0, reason_width];
    }
    let available = name_space.saturating_sub(COLUMN_GAP_COLUMNS);
    let name_width = widths[0].min((available * 3 / 5).max(available.saturating_sub(widths[1])));
    [name_width, widths[1].min(available - name_width), reason_width]
}

/// Leaves out the parts of a reason for which there is no space: first the last, the time of Numba's first use, then the
/// first, the caller. The middle one says why the function was compiled.
fn short_reason(mut reason: String, columns: usize) -> String {
    if reason.width() > columns
        && let Some((rest, _)) = reason.rsplit_once("; Numba's first use")
    {
        reason = rest.to_owned();
    }
    match reason.split_once("; ") {
        Some((_, cause)) if reason.width() > columns => cause.to_owned(),
        _ => reason,
    }
}

/// Pads text with spaces, or truncates it in the middle.
fn pad_or_truncate(text: &str, width: usize) -> String {
    let text = truncate_middle(text, width);
    let missing = width.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_units() {
        assert_eq!([2_000_000, 1_500_000_000].map(precise_duration), ["2 ms", "1.50 s"]);
        assert_eq!([0, 290, 14_200].map(format_bytes), ["", "290 B", "14.2 KB"]);
        assert_eq!(pad_or_truncate("numba.core.f", 7) + &pad_or_truncate("x", 3), "n…ore.fx  ");
        let reason =
            |columns| short_reason("for a.py:9; cache=True not set; Numba's first use 9 ms".to_owned(), columns);
        assert_eq!([40, 20].map(reason), ["for a.py:9; cache=True not set", "cache=True not set"]);
        assert_eq!(column_widths(Some(75), true, [60, 40, 34]), [22, 15, 34]);
        assert_eq!(column_widths(Some(54), false, [60, 40, 34]), [25, 0, 27]);
        assert_eq!(column_widths(Some(75), true, [10, 11, 12]), [10, 11, 12]);
    }
}
