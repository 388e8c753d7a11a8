//! Reports about compilations: time by function, and the table of `jitlisten compiles`.

use rustc_hash::FxHashMap;
use serde_json::{Value, json};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::compilations::{Compilation, Why};
use crate::report::{Report, duration};
use crate::text::{WIDE, cut, wrapped};

/// All compilations of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compiling {
    /// The function, as a person knows it.
    pub function: String,
    /// The types of its arguments, of the compilation that took longest.
    pub signature: String,
    /// How often.
    pub count: usize,
    /// Nanoseconds of that longest one.
    pub longest: u64,
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
            let all = functions.entry(name.clone()).or_default();
            if all.count == 0 || row.took > all.longest {
                (all.longest, all.signature) = (row.took, row.signature.clone());
            }
            all.function = name;
            (all.count, all.took, all.llvm) = (all.count + 1, all.took + row.took, all.llvm + row.llvm);
        }
        let mut functions: Vec<Compiling> = functions.into_values().collect();
        functions.sort_by(|a, b| b.took.cmp(&a.took).then_with(|| a.function.cmp(&b.function)));
        functions
    }
}

/// When the recording began.
pub(crate) fn start(report: &Report) -> u64 {
    let samples = report.recording.samples.iter().map(|sample| sample.time);
    samples.chain(report.compilations.iter().map(|row| row.begin)).min().unwrap_or_default()
}

/// For programs; times are nanoseconds.
pub fn compilations_to_json(report: &Report) -> Value {
    let start = start(report);
    report.compilations.iter().map(|row| to_json(row, start)).collect()
}

pub(crate) fn to_json(row: &Compilation, start: u64) -> Value {
    json!({
        "function": row.name(), "file": row.file, "line": row.line, "signature": row.signature, "pid": row.pid,
        "tid": row.tid, "depth": row.depth, "when": row.begin.saturating_sub(start), "lasted": row.lasted,
        "took": row.took, "exclusive": row.exclusive,
        "llvm": row.llvm, "size": row.size, "caller": row.caller, "failed": row.failed,
        "cached": row.why == Why::Cached, "why": row.why.words(),
    })
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
    let longest = |of: &dyn Fn(&Compilation) -> String, least: usize| {
        shown.iter().map(|row| of(row).width()).max().unwrap_or_default().max(least)
    };
    let indented = |row: &Compilation| format!("{}{}", "  ".repeat(row.depth.min(4) as usize), row.name());
    let signature = |row: &Compilation| row.signature.clone();
    let figures =
        if is_wide { "    when     took    Numba     LLVM     code  " } else { "    when     took     LLVM  " };
    let [names, signatures, reasons] = columns(
        width.map(|width| width.saturating_sub(figures.len())),
        is_wide,
        [longest(&indented, "function".len()), longest(&signature, "signature".len()), longest(&why, "why".len())],
    );
    let mut text = String::new();
    let mut line = |content: String| {
        text.push_str(&width.map_or_else(|| content.trim_end().to_owned(), |width| cut(content.trim_end(), width)));
        text.push('\n');
    };
    let row_of = |figures: &str, name: &str, signature: &str, why: &str| match is_wide {
        true => {
            format!("{figures}{}  {}  {}", padded(name, names), padded(signature, signatures), padded(why, reasons))
        }
        false => format!("{figures}{}  {}", padded(name, names), padded(why, reasons)),
    };
    line(row_of(figures, "function", "signature", "why"));
    for row in &shown {
        let of_code = |text: String| if row.why == Why::Cached { String::new() } else { text };
        let [when, took] = [row.begin.saturating_sub(start), row.took].map(seconds);
        let [numba, llvm] = [row.took - row.llvm, row.llvm].map(|part| of_code(seconds(part)));
        let figures = match is_wide {
            true => format!("{when:>8} {took:>8} {numba:>8} {llvm:>8} {:>8}  ", of_code(bytes(row.size))),
            false => format!("{when:>8} {took:>8} {llvm:>8}  "),
        };
        line(row_of(&figures, &indented(row), &row.signature, &why(row)));
    }
    if shown.len() < rows.len() {
        line(format!("{} more took less than 0.5 % (use --all)", rows.len() - shown.len()));
    }
    line(String::new());
    for part in wrapped(&summary(report), "; ", width.unwrap_or(usize::MAX)) {
        line(part);
    }
    text
}

/// All of them in a sentence.
pub(crate) fn summary(report: &Report) -> String {
    let rows = &report.compilations;
    let total = rows.iter().filter(|row| row.is_outermost()).map(|row| row.took).sum();
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
pub(crate) fn why(row: &Compilation) -> String {
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

/// Columns of the names, the signatures and the reasons, in so many together: reasons first, which say what to do.
fn columns(space: Option<usize>, has_signatures: bool, wanted: [usize; 3]) -> [usize; 3] {
    const BETWEEN: usize = 2;
    const LONGEST_WHY: usize = 36;
    let Some(space) = space else { return wanted };
    let why = wanted[2].min(LONGEST_WHY).min(space / 2);
    let names = space.saturating_sub(why + BETWEEN);
    if !has_signatures {
        return [wanted[0].min(names), 0, why];
    }
    let both = names.saturating_sub(BETWEEN);
    let name = wanted[0].min((both * 3 / 5).max(both.saturating_sub(wanted[1])));
    [name, wanted[1].min(both - name), why]
}

/// Cut in the middle, where it says the least, or filled with spaces.
fn padded(text: &str, width: usize) -> String {
    let mut shown = text.to_owned();
    if text.width() > width {
        let head = cut(text, (width / 3).max(1));
        let tail: Vec<char> = text.chars().rev().collect();
        let mut left = width - head.width();
        let tail = tail.into_iter().take_while(|character| {
            let wide = character.width().unwrap_or_default();
            let fits = wide <= left;
            left = left.saturating_sub(wide);
            fits
        });
        shown = head + &tail.collect::<Vec<_>>().into_iter().rev().collect::<String>();
    }
    let missing = width.saturating_sub(shown.width());
    format!("{shown}{}", " ".repeat(missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_their_units() {
        assert_eq!([2_000_000, 1_500_000_000].map(seconds), ["2 ms", "1.50 s"]);
        assert_eq!([0, 290, 14_200].map(bytes), ["", "290 B", "14.2 KB"]);
        assert_eq!(padded("numba.core.f", 7) + &padded("x", 3), "n…ore.fx  ");
        assert_eq!(columns(Some(75), true, [60, 40, 34]), [22, 15, 34]);
        assert_eq!(columns(Some(54), false, [60, 40, 34]), [25, 0, 27]);
        assert_eq!(columns(Some(75), true, [10, 11, 12]), [10, 11, 12]);
    }
}
