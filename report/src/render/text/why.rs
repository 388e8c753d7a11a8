//! Explanation of why a line is slow: its loops, advice, and instructions with samples.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use crate::loops::{Loop, MIN_PERCENT, MIN_SAMPLES};
use crate::profile::{Count, SourceLines};
use crate::report::Report;
use crate::sanitize::sanitize;
use crate::symbols::Kind;
use crate::words::{file_name, group_digits, plural};

/// Requested source line, such as `prog.py:16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// Path, or the end of one.
    pub path: String,
    /// Line number. Without one, the reply names the lines that have loops.
    pub line: Option<u32>,
}

impl FromStr for SourceLine {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<SourceLine, Self::Err> {
        let split = text.rsplit_once(':').and_then(|(path, line)| Some((path, line.parse().ok()?)));
        Ok(match split {
            Some((path, line)) => SourceLine { path: path.to_owned(), line: Some(line) },
            None => SourceLine { path: text.to_owned(), line: None },
        })
    }
}

/// Maximum number of instructions shown per loop; the rest are omitted.
const MAX_INSTRUCTIONS: usize = 400;
/// Maximum number of source lines shown per loop; the rest are omitted.
const MAX_SOURCE_LINES: u32 = 20;
/// Maximum number of files or lines that an error message suggests.
const MAX_SUGGESTIONS: usize = 8;

/// Describes the loops of a line.
///
/// # Errors
/// If the line has no loop, returns a message that suggests files or lines to request instead.
pub fn why_to_text(report: &Report, request: &SourceLine) -> Result<String, String> {
    let file = find_file(report, &request.path)?;
    let Some(line) = request.line else {
        let example = loops_in(report, &file.path).first().map_or(1, |hot_loop| hot_loop.line);
        return Err(format!("name a line, as in {}:{example}{}", request.path, other_lines(report, &file.path)));
    };
    let is_requested = |hot_loop: &&Loop| {
        hot_loop.path == file.path && hot_loop.line == line
            || hot_loop.lines.iter().any(|source_line| *source_line == (file.path.clone(), line))
    };
    let matches: Vec<&Loop> = report.loops().iter().filter(is_requested).collect();
    if matches.is_empty() {
        return Err(no_loop(report, file, line));
    }
    let mut text = String::new();
    for (index, hot_loop) in matches.iter().enumerate() {
        if index != 0 {
            text.push('\n');
        }
        write_loop(report, hot_loop, &mut text);
    }
    Ok(text)
}

/// Finds the file that a path refers to: an exact match, or the only file whose path ends with it.
fn find_file<'a>(report: &'a Report, path: &str) -> Result<&'a SourceLines, String> {
    let files = &report.profile.files;
    let full_path = Path::new(path).canonicalize().unwrap_or_default();
    if let Some(file) = files.iter().find(|file| file.path == path || Path::new(&file.path) == full_path) {
        return Ok(file);
    }
    let suffix = path.trim_start_matches("./");
    let matches: Vec<&SourceLines> = files.iter().filter(|file| Path::new(&file.path).ends_with(suffix)).collect();
    match matches.as_slice() {
        [file] => Ok(file),
        [] => {
            let mut names: Vec<&str> = report.loops().iter().map(|hot_loop| hot_loop.path.as_str()).collect();
            names.extend(files.iter().map(|file| file.path.as_str()).filter(|path| report.is_user_source(path)));
            Err(match list_names(&names) {
                None => format!("no samples in {path}, nor in any file of yours"),
                Some(names) => format!("no samples in {path}; there are samples in {names}"),
            })
        }
        _ => {
            let names: Vec<&str> = matches.iter().map(|file| file.path.as_str()).collect();
            Err(format!("{path} may be {}", list_names(&names).unwrap_or_default()))
        }
    }
}

/// Lists the first names, without duplicates.
fn list_names(names: &[&str]) -> Option<String> {
    let mut unique: Vec<&str> = Vec::new();
    for name in names {
        if !unique.contains(name) {
            unique.push(name);
        }
        if unique.len() > MAX_SUGGESTIONS {
            break;
        }
    }
    let more = if unique.len() > MAX_SUGGESTIONS { ", ..." } else { "" };
    unique.truncate(MAX_SUGGESTIONS);
    (!unique.is_empty()).then(|| unique.join(", ") + more)
}

fn loops_in<'a>(report: &'a Report, path: &str) -> Vec<&'a Loop> {
    report.loops().iter().filter(|hot_loop| hot_loop.path == path).collect()
}

fn other_lines(report: &Report, path: &str) -> String {
    let lines: Vec<String> = loops_in(report, path).iter().map(|hot_loop| hot_loop.line.to_string()).collect();
    match list_names(&lines.iter().map(String::as_str).collect::<Vec<_>>()) {
        Some(lines) => format!("; lines with a loop: {lines}"),
        None => String::new(),
    }
}

fn no_loop(report: &Report, file: &SourceLines, line: u32) -> String {
    let position = format!("{}:{line}", file_name(&file.path));
    let suggestion = other_lines(report, &file.path);
    let Some(row) = file.lines.get(&line).filter(|line| line.shares.total.samples != 0) else {
        return format!("no samples at {position}{suggestion}");
    };
    let samples = plural(row.shares.total.samples as usize, "sample");
    let is_compiled = |function: &u32| report.profile.functions[*function as usize].kind == Kind::Compiled;
    if !row.functions.iter().any(is_compiled) {
        return format!(
            "no loop at {position}: it has {samples}, as a line of Python, which is not compiled{suggestion}"
        );
    }
    format!(
        "no loop at {position}: it has {samples}, and only loops with at least {MIN_SAMPLES} samples and {MIN_PERCENT} % \
         of compiled code are known{suggestion}"
    )
}

fn write_loop(report: &Report, hot_loop: &Loop, text: &mut String) {
    let percent = |count: Count, all: Count| format!("{:.1} %", count.percent_of(all));
    let total = report.profile.all;
    let inlined = if hot_loop.is_inlined { "inlined into " } else { "" };
    let _ = writeln!(
        text,
        "{} ({}), {inlined}{}",
        hot_loop.name(),
        file_name(&hot_loop.loop_path),
        sanitize(&hot_loop.function)
    );
    let samples = plural(hot_loop.total.samples as usize, "sample");
    let _ = writeln!(
        text,
        "{samples}, {} of all; without calls {}",
        percent(hot_loop.total, total),
        percent(hot_loop.self_count, total)
    );
    for advice in &hot_loop.advice {
        let _ = writeln!(text, "{} {}: {}", advice.mark(), advice.rule, sanitize(&advice.text()));
    }
    if hot_loop.advice.is_empty() {
        let _ = writeln!(text, "{}", sanitize(&hot_loop.verdict().to_string()));
    }
    text.push('\n');
    for (name, row) in hot_loop.rows() {
        let _ = writeln!(text, "  {name:<15} {}", sanitize(&row));
    }
    text.push('\n');
    write_source(report, hot_loop, text);
    let _ = writeln!(text, "   of it  samples   line  instruction");
    let mut previous: Option<u64> = None;
    for instruction in hot_loop.instructions.iter().take(MAX_INSTRUCTIONS) {
        // There is a nested loop or an exit between the two instructions.
        if previous.is_some_and(|previous| instruction.address > previous.saturating_add(MAX_INSTRUCTION_BYTES)) {
            let _ = writeln!(text, "                        ⋮");
        }
        previous = Some(instruction.address);
        let (share, count) = match instruction.total.samples {
            0 => (String::new(), String::new()),
            count => (percent(instruction.total, hot_loop.total), group_digits(count)),
        };
        let line = if instruction.line == 0 { String::new() } else { instruction.line.to_string() };
        let calls = instruction.calls.first().map_or(String::new(), |(name, _)| format!("  → {}", sanitize(name)));
        let _ = writeln!(text, "{share:>8} {count:>8}  {line:>5}  {}{calls}", instruction.text);
    }
    if let Some(more) = hot_loop.instructions.len().checked_sub(MAX_INSTRUCTIONS).filter(|more| *more != 0) {
        let _ = writeln!(text, "{more} instructions more");
    }
}

/// Maximum length of an x86-64 instruction.
const MAX_INSTRUCTION_BYTES: u64 = 15;

fn write_source(report: &Report, hot_loop: &Loop, text: &mut String) {
    let files = report.profile.files.iter().zip(&report.sources);
    let Some((file, source)) = files.into_iter().find(|(file, _)| file.path == hot_loop.loop_path) else { return };
    let lines = hot_loop.first..=hot_loop.last.min(hot_loop.first.saturating_add(MAX_SOURCE_LINES - 1));
    for number in lines {
        let self_count =
            file.lines.get(&number).map(|line| line.shares.self_count).filter(|self_count| !self_count.is_zero());
        let share = self_count
            .map_or(String::new(), |self_count| format!("{:.1} %", self_count.percent_of(report.profile.all)));
        let _ =
            writeln!(text, "{share:>8} {number:>5}  {}", sanitize(source.line(number).unwrap_or_default()).trim_end());
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_number_follows_the_last_colon() {
        let parsed = |text: &str| text.parse::<SourceLine>().map(|line| (line.path, line.line)).unwrap();
        assert_eq!(parsed("a/prog.py:16"), ("a/prog.py".to_owned(), Some(16)));
        assert_eq!(parsed("prog.py"), ("prog.py".to_owned(), None));
        assert_eq!(parsed("c:prog.py:x"), ("c:prog.py:x".to_owned(), None));
    }
}
