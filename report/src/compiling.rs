//! What Numba compiled, for people and programs: who took how long, and the table of `jitlisten compiles`.

use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use crate::compilations::{Compilation, Why};
use crate::report::{Report, duration};
use crate::text::cut;

/// From so many columns on, a compilation is one line.
const WIDE: usize = 150;

/// All compilations of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiling {
    /// The function, as a person knows it.
    pub function: String,
    /// How often.
    pub count: usize,
    /// Nanoseconds, with all that was compiled for it.
    pub took: u64,
    /// Of these, in LLVM.
    pub llvm: u64,
}

impl Report {
    /// Who was compiled, the longest first. What is compiled for another function is part of that.
    pub fn compiling_by_function(&self) -> Vec<Compiling> {
        let mut functions: FxHashMap<String, Compiling> = FxHashMap::default();
        for row in self.compilations.iter().filter(|row| row.is_outermost()) {
            let name = row.name();
            let all = functions.entry(name.clone()).or_insert(Compiling { function: name, count: 0, took: 0, llvm: 0 });
            (all.count, all.took, all.llvm) = (all.count + 1, all.took + row.took, all.llvm + row.llvm);
        }
        let mut functions: Vec<Compiling> = functions.into_values().collect();
        functions.sort_by(|a, b| b.took.cmp(&a.took).then_with(|| a.function.cmp(&b.function)));
        functions
    }
}

/// When the recording began.
fn start(report: &Report) -> u64 {
    let samples = report.recording.samples.iter().map(|sample| sample.time);
    samples.chain(report.compilations.iter().map(|row| row.begin)).min().unwrap_or_default()
}

/// For programs; times are nanoseconds.
pub fn compilations_to_json(report: &Report) -> Value {
    let start = start(report);
    let row = |row: &Compilation| {
        json!({
            "function": row.name(), "file": row.file, "line": row.line, "signature": row.signature, "pid": row.pid, "tid": row.tid,
            "depth": row.depth, "when": row.begin.saturating_sub(start), "lasted": row.lasted, "took": row.took, "exclusive": row.exclusive,
            "llvm": row.llvm, "size": row.size, "caller": row.caller, "failed": row.failed,
            "cached": row.why == Why::Cached, "why": row.why.words(),
        })
    };
    report.compilations.iter().map(row).collect()
}

/// The table, a row for each that took half a percent of all compilation, or with `all` for each.
pub fn compilations_to_text(report: &Report, width: Option<usize>, all: bool) -> String {
    let rows = &report.compilations;
    if rows.is_empty() {
        return "no compilations: Numba compiled nothing, or the recording was made by perf or with --no-lines\n"
            .to_owned();
    }
    let outermost = || rows.iter().filter(|row| row.is_outermost());
    let total: u64 = outermost().map(|row| row.took).sum();
    let is_shown = |row: &Compilation| all || row.took * 200 >= total;
    let shown: Vec<&Compilation> = rows.iter().filter(|row| is_shown(row)).collect();
    let is_wide = width.is_none_or(|width| width >= WIDE);
    let start = start(report);
    let columns = |limit: usize, wanted: &dyn Fn(&Compilation) -> usize| {
        shown.iter().map(|row| wanted(row)).max().unwrap_or_default().clamp(8, limit)
    };
    let indented = |row: &Compilation| format!("{}{}", "  ".repeat(row.depth.min(4) as usize), row.name());
    let name_width = columns(if width.is_none() { 60 } else { 32 }, &|row| indented(row).width());
    let signature_width = columns(if width.is_none() { 80 } else { 26 }, &|row| row.signature.width());
    let mut text = String::new();
    let mut line = |content: String| {
        text.push_str(&width.map_or_else(|| content.trim_end().to_owned(), |width| cut(content.trim_end(), width)));
        text.push('\n');
    };
    let figures = "    when     took    Numba     LLVM     code  ";
    line(match is_wide {
        true => format!("{figures}{}  {}  why", padded("function", name_width), padded("signature", signature_width)),
        false => format!("{figures}function, why, signature"),
    });
    for row in &shown {
        let [when, took, numba, llvm] =
            [row.begin.saturating_sub(start), row.took, row.took - row.llvm, row.llvm].map(seconds);
        let figures = match row.why {
            Why::Cached => format!("{when:>8} {took:>8} {:>8} {:>8} {:>8}  ", "", "", ""),
            _ => format!("{when:>8} {took:>8} {numba:>8} {llvm:>8} {:>8}  ", bytes(row.size)),
        };
        let name = padded(&indented(row), name_width);
        if is_wide {
            line(format!("{figures}{name}  {}  {}", padded(&row.signature, signature_width), why(row)));
        } else {
            line(format!("{figures}{}", indented(row)));
            let rest: Vec<String> =
                [why(row), row.signature.clone()].into_iter().filter(|part| !part.is_empty()).collect();
            line(format!("{:9}{}", "", rest.join("; ")));
        }
    }
    if shown.len() < rows.len() {
        line(format!("{} more took less than half a percent of this: --all shows them", rows.len() - shown.len()));
    }
    line(String::new());
    line(summary(report, total));
    text
}

fn summary(report: &Report, total: u64) -> String {
    let rows = &report.compilations;
    let count = |wanted: &dyn Fn(&Compilation) -> bool| rows.iter().filter(|row| wanted(row)).count();
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let llvm: u64 = rows.iter().filter(|row| row.is_outermost()).map(|row| row.llvm).sum();
    // Of perf's cycles there are no seconds, and wall-clock time is that of several threads.
    let all = Some(report.profile.all.weight).filter(|_| report.is_time() && !report.recording.is_wall());
    let of_all = all.map(|all| format!(" of {}", seconds(all))).unwrap_or_default();
    let mut parts = vec![format!(
        "{}, {}{} (LLVM {})",
        plural(count(&Compilation::is_outermost), "compilation"),
        seconds(total),
        of_all,
        seconds(llvm),
    )];
    let nested = count(&|row| row.depth > 0 && row.why != Why::Cached);
    if nested > 0 {
        parts.push(format!("{nested} more inside of them"));
    }
    let cached = count(&|row| row.why == Why::Cached);
    if cached > 0 {
        let took: u64 = rows.iter().filter(|row| row.why == Why::Cached).map(|row| row.exclusive).sum();
        parts.push(format!("{cached} from the cache ({})", seconds(took)));
    }
    let again = count(&|row| row.why == Why::NoLines);
    if again > 0 {
        let whose = if again == 1 { "its cache entry has" } else { "their cache entries have" };
        parts.push(format!("{again} compiled again: {whose} no lines"));
    }
    parts.join("; ")
}

/// Why, and who called for it.
fn why(row: &Compilation) -> String {
    let short = |caller: &String| caller.rsplit('/').next().unwrap_or_default().to_owned();
    let called = row.caller.as_ref().map(|caller| format!("for {}", short(caller)));
    let why = match row.depth {
        // That it is not cached by itself is the rule for what is compiled for another function.
        1.. if row.why == Why::NotCached => "",
        _ => row.why.words(),
    };
    let failed = row.failed.then(|| "failed".to_owned());
    let parts = [failed, called, Some(why.to_owned())].into_iter().flatten().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}

fn seconds(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000_000_000 => duration(nanoseconds),
        _ => format!("{:.2} s", nanoseconds as f64 / 1e9),
    }
}

fn bytes(count: u64) -> String {
    match count {
        0 => String::new(),
        1..1000 => format!("{count} B"),
        _ => format!("{:.1} KB", count as f64 / 1e3),
    }
}

/// Cut or filled with spaces.
fn padded(text: &str, width: usize) -> String {
    let cut = cut(text, width);
    let missing = width.saturating_sub(cut.width());
    format!("{cut}{}", " ".repeat(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_units() {
        assert_eq!([2_000_000, 1_500_000_000].map(seconds), ["2 ms", "1.50 s"]);
        assert_eq!([0, 290, 14_200].map(bytes), ["", "290 B", "14.2 KB"]);
        assert_eq!(padded("abcdef", 4) + &padded("x", 3), "abc…x  ");
    }
}
