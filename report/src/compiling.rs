//! Reports on compilations: time by function, and the table of `jitlisten compiles`.

use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::compilations::{Compilation, Why};
use crate::report::{Report, duration};
use crate::text::{MIN_WIDE_COLUMNS, truncate, wrap};

/// Compilations of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompiledFunction {
    /// Function name for reports.
    pub function: String,
    /// Argument types of the compilation that took longest.
    pub signature: String,
    /// Number of compilations.
    pub count: usize,
    /// CPU time of the longest compilation in ns.
    pub longest: u64,
    /// CPU time of all compilations in ns, including nested ones.
    pub cpu_ns: u64,
    /// CPU time in LLVM in ns; part of `cpu_ns`.
    pub llvm: u64,
}

impl Report {
    /// Returns the compiled functions, ordered by time. Nested compilations count towards the outermost function.
    pub fn compiling_by_function(&self) -> Vec<CompiledFunction> {
        let mut functions: FxHashMap<String, CompiledFunction> = FxHashMap::default();
        for row in self.compilations.iter().filter(|row| row.is_outermost()) {
            let name = row.name();
            let total = functions.entry(name.clone()).or_default();
            if total.count == 0 || row.cpu_ns > total.longest {
                (total.longest, total.signature) = (row.cpu_ns, row.signature.clone());
            }
            total.function = name;
            (total.count, total.cpu_ns, total.llvm) =
                (total.count + 1, total.cpu_ns + row.cpu_ns, total.llvm + row.llvm);
        }
        let mut functions: Vec<CompiledFunction> = functions.into_values().collect();
        functions.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.function.cmp(&b.function)));
        functions
    }
}

/// Returns the start of the recording.
pub(crate) fn start_time(report: &Report) -> u64 {
    let samples = report.recording.samples.iter().map(|sample| sample.time);
    samples.chain(report.compilations.iter().map(|row| row.begin)).min().unwrap_or_default()
}

/// Returns the compilations as JSON. Times are in ns.
pub fn compilations_to_json(report: &Report) -> Value {
    let start_time = start_time(report);
    report.compilations.iter().map(|row| to_json(row, start_time)).collect()
}

pub(crate) fn to_json(row: &Compilation, start: u64) -> Value {
    json!({
        "function": row.name(), "file": row.file, "line": row.line, "signature": row.signature, "pid": row.pid,
        "tid": row.tid, "depth": row.depth, "when": row.begin.saturating_sub(start), "lasted": row.lasted,
        "took": row.cpu_ns, "exclusive": row.exclusive,
        "llvm": row.llvm, "size": row.size, "caller": row.caller, "failed": row.failed,
        "cached": row.why == Why::Cached, "why": row.why.words(),
    })
}

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
    let is_wide = width.is_none_or(|width| width >= MIN_WIDE_COLUMNS);
    let start_time = start_time(report);
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
            max_width(&reason_text, "why".len()),
        ],
    );
    let mut text = String::new();
    let mut line = |content: String| {
        text.push_str(
            &width.map_or_else(|| content.trim_end().to_owned(), |width| truncate(content.trim_end(), width)),
        );
        text.push('\n');
    };
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
    line(format_row(figures, "function", "signature", "why"));
    for row in &shown {
        let unless_cached = |text: String| if row.why == Why::Cached { String::new() } else { text };
        let [when, took] = [row.begin.saturating_sub(start_time), row.cpu_ns].map(format_seconds);
        let [numba, llvm] = [row.cpu_ns - row.llvm, row.llvm].map(|part| unless_cached(format_seconds(part)));
        let figures = match is_wide {
            true => format!("{when:>8} {took:>8} {numba:>8} {llvm:>8} {:>8}  ", unless_cached(format_bytes(row.size))),
            false => format!("{when:>8} {took:>8} {llvm:>8}  "),
        };
        line(format_row(&figures, &indented(row), &row.signature, &reason_text(row)));
    }
    if shown.len() < rows.len() {
        line(format!("{} more took less than 0.5 % (use --all)", rows.len() - shown.len()));
    }
    line(String::new());
    for part in wrap(&summary(report), "; ", width.unwrap_or(usize::MAX)) {
        line(part);
    }
    text
}

/// Summarises all compilations in one sentence.
pub(crate) fn summary(report: &Report) -> String {
    let rows = &report.compilations;
    let total = rows.iter().filter(|row| row.is_outermost()).map(|row| row.cpu_ns).sum();
    let count = |matches: &dyn Fn(&Compilation) -> bool| rows.iter().filter(|row| matches(row)).count();
    let plural = |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let llvm: u64 = rows.iter().filter(|row| row.is_outermost()).map(|row| row.llvm).sum();
    // Cycles of perf have no unit of time, and wall-clock time covers several threads.
    let all = Some(report.profile.all.weight).filter(|_| report.is_time() && !report.recording.is_wall());
    let total_suffix = all.map(|all| format!(" of {}", format_seconds(all))).unwrap_or_default();
    let mut parts = vec![format!(
        "{}, {}{} (LLVM {})",
        plural(count(&Compilation::is_outermost), "compilation"),
        format_seconds(total),
        total_suffix,
        format_seconds(llvm),
    )];
    let nested = count(&|row| row.depth > 0 && row.why != Why::Cached);
    if nested > 0 {
        parts.push(format!("{nested} more inside of them"));
    }
    let cached = count(&|row| row.why == Why::Cached);
    if cached > 0 {
        let took: u64 = rows.iter().filter(|row| row.why == Why::Cached).map(|row| row.exclusive).sum();
        parts.push(format!("{cached} from the cache ({})", format_seconds(took)));
    }
    let recompiled = count(&|row| row.why == Why::NoLines);
    if recompiled > 0 {
        let whose = if recompiled == 1 { "its cache entry has" } else { "their cache entries have" };
        parts.push(format!("{recompiled} compiled again: {whose} no lines"));
    }
    parts.join("; ")
}

/// Describes why a function was compiled, and for which call.
pub(crate) fn reason_text(row: &Compilation) -> String {
    let file_name = |caller: &String| caller.rsplit('/').next().unwrap_or_default().to_owned();
    let called = row.caller.as_ref().map(|caller| format!("for {}", file_name(caller)));
    let reason = match row.depth {
        // Nested compilations are never cached separately, so the missing option is not a reason.
        1.. if row.why == Why::NotCached => "",
        _ => row.why.words(),
    };
    let failed = row.failed.then(|| "failed".to_owned());
    let parts = [failed, called, Some(reason.to_owned())].into_iter().flatten().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}

fn format_seconds(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000_000_000 => duration(nanoseconds),
        _ => format!("{:.2} s", nanoseconds as f64 / 1e9),
    }
}

fn format_bytes(count: u64) -> String {
    match count {
        0 => String::new(),
        1..1000 => format!("{count} B"),
        _ => format!("{:.1} KB", count as f64 / 1e3),
    }
}

/// Returns the widths of the name, signature and reason columns. The reason comes first because it says what to do.
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

/// Pads text with spaces, or shortens it in the middle, its least informative part.
fn pad_or_truncate(text: &str, width: usize) -> String {
    let mut padded_text = text.to_owned();
    if text.width() > width {
        let head = truncate(text, (width / 3).max(1));
        let tail: Vec<char> = text.chars().rev().collect();
        let mut remaining = width - head.width();
        let tail = tail.into_iter().take_while(|character| {
            let columns = character.width().unwrap_or_default();
            let fits = columns <= remaining;
            remaining = remaining.saturating_sub(columns);
            fits
        });
        padded_text = head + &tail.collect::<Vec<_>>().into_iter().rev().collect::<String>();
    }
    let missing = width.saturating_sub(padded_text.width());
    format!("{padded_text}{}", " ".repeat(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_units() {
        assert_eq!([2_000_000, 1_500_000_000].map(format_seconds), ["2 ms", "1.50 s"]);
        assert_eq!([0, 290, 14_200].map(format_bytes), ["", "290 B", "14.2 KB"]);
        assert_eq!(pad_or_truncate("numba.core.f", 7) + &pad_or_truncate("x", 3), "n…ore.fx  ");
        assert_eq!(column_widths(Some(75), true, [60, 40, 34]), [22, 15, 34]);
        assert_eq!(column_widths(Some(54), false, [60, 40, 34]), [25, 0, 27]);
        assert_eq!(column_widths(Some(75), true, [10, 11, 12]), [10, 11, 12]);
    }
}
