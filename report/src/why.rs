//! Why one line is slow: the loops that ran for it, what helps, and their instructions with samples.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use crate::loops::{Loop, MIN_PERCENT, MIN_SAMPLES};
use crate::printable::printable;
use crate::profile::{Count, SourceLines};
use crate::report::{Report, counted, file_name, grouped};

/// What a person asks for: `prog.py:16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLine {
    /// The end of a path.
    pub path: String,
    /// Without it, the answer is which lines have loops.
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

/// Instructions of a loop that are shown, and lines of its source.
const MOST_INSTRUCTIONS: usize = 400;
const MOST_LINES: u32 = 20;
/// Files and lines that are named where something else was asked for.
const MOST_NAMED: usize = 8;

/// The loops of a line.
///
/// # Errors
/// If there is no loop, a sentence that says what the recording has instead.
pub fn why_to_text(report: &Report, asked: &SourceLine) -> Result<String, String> {
    let file = find_file(report, &asked.path)?;
    let Some(line) = asked.line else {
        let example = loops_in(report, &file.path).first().map_or(1, |of| of.line);
        return Err(format!("name a line, as in {}:{example}{}", asked.path, other_lines(report, &file.path)));
    };
    let is_asked = |of: &&Loop| {
        of.path == file.path && of.line == line || of.lines.iter().any(|place| *place == (file.path.clone(), line))
    };
    let found: Vec<&Loop> = report.loops().iter().filter(is_asked).collect();
    if found.is_empty() {
        return Err(no_loop(report, file, line));
    }
    let mut text = String::new();
    for (at, of) in found.iter().enumerate() {
        if at != 0 {
            text.push('\n');
        }
        one(report, of, &mut text);
    }
    Ok(text)
}

/// The file of the recording that a path means: the whole one, or the end of exactly one.
fn find_file<'a>(report: &'a Report, path: &str) -> Result<&'a SourceLines, String> {
    let files = &report.profile.files;
    let whole = Path::new(path).canonicalize().unwrap_or_default();
    if let Some(file) = files.iter().find(|file| file.path == path || Path::new(&file.path) == whole) {
        return Ok(file);
    }
    let end = path.trim_start_matches("./");
    let found: Vec<&SourceLines> = files.iter().filter(|file| Path::new(&file.path).ends_with(end)).collect();
    match found.as_slice() {
        [file] => Ok(file),
        [] => {
            let mut named: Vec<&str> = report.loops().iter().map(|of| of.path.as_str()).collect();
            named.extend(files.iter().map(|file| file.path.as_str()).filter(|path| report.is_users(path)));
            Err(match some(&named) {
                None => format!("no samples in {path}, nor in any file of yours"),
                Some(named) => format!("no samples in {path}; there are samples in {named}"),
            })
        }
        _ => {
            let named: Vec<&str> = found.iter().map(|file| file.path.as_str()).collect();
            Err(format!("{path} may be {}", some(&named).unwrap_or_default()))
        }
    }
}

/// The first few, each once.
fn some(names: &[&str]) -> Option<String> {
    let mut named: Vec<&str> = Vec::new();
    for name in names {
        if !named.contains(name) {
            named.push(name);
        }
        if named.len() > MOST_NAMED {
            break;
        }
    }
    let more = if named.len() > MOST_NAMED { ", ..." } else { "" };
    named.truncate(MOST_NAMED);
    (!named.is_empty()).then(|| named.join(", ") + more)
}

fn loops_in<'a>(report: &'a Report, path: &str) -> Vec<&'a Loop> {
    report.loops().iter().filter(|of| of.path == path).collect()
}

fn other_lines(report: &Report, path: &str) -> String {
    let lines: Vec<String> = loops_in(report, path).iter().map(|of| of.line.to_string()).collect();
    match some(&lines.iter().map(String::as_str).collect::<Vec<_>>()) {
        Some(lines) => format!("; lines with a loop: {lines}"),
        None => String::new(),
    }
}

fn no_loop(report: &Report, file: &SourceLines, line: u32) -> String {
    let place = format!("{}:{line}", file_name(&file.path));
    let other = other_lines(report, &file.path);
    match file.lines.get(&line).map(|line| line.shares.total.samples).filter(|samples| *samples != 0) {
        None => format!("no samples at {place}{other}"),
        Some(samples) => format!(
            "no loop at {place}: it has {}, and only x86-64 loops with at least {MIN_SAMPLES} samples and \
             {MIN_PERCENT} % of compiled code are known{other}",
            counted(samples as usize, "sample")
        ),
    }
}

fn one(report: &Report, of: &Loop, text: &mut String) {
    let percent = |count: Count, all: Count| format!("{:.1} %", count.percent_of(all));
    let all = report.profile.all;
    let inlined = if of.is_inlined { "inlined into " } else { "" };
    let _ = writeln!(text, "{} ({}), {inlined}{}", of.name(), file_name(&of.loop_path), printable(&of.function));
    let samples = counted(of.total.samples as usize, "sample");
    let _ = writeln!(text, "{samples}, {} of all; without calls {}", percent(of.total, all), percent(of.own, all));
    for advice in &of.advice {
        let _ = writeln!(text, "⚑ {}: {}", advice.rule, advice.text);
    }
    if of.advice.is_empty() {
        let _ = writeln!(text, "✓ nothing to say against it");
    }
    text.push('\n');
    for (name, row) in of.rows() {
        let _ = writeln!(text, "  {name:<15} {}", printable(&row));
    }
    text.push('\n');
    source(report, of, text);
    let _ = writeln!(text, "   of it  samples   line  instruction");
    let mut before: Option<u64> = None;
    for instruction in of.instructions.iter().take(MOST_INSTRUCTIONS) {
        // A loop inside it, or an exit, is between them.
        if before.is_some_and(|before| instruction.address > before.saturating_add(LONGEST_INSTRUCTION)) {
            let _ = writeln!(text, "                        ⋮");
        }
        before = Some(instruction.address);
        let (share, count) = match instruction.total.samples {
            0 => (String::new(), String::new()),
            count => (percent(instruction.total, of.total), grouped(count)),
        };
        let line = if instruction.line == 0 { String::new() } else { instruction.line.to_string() };
        let calls = instruction.calls.first().map_or(String::new(), |(name, _)| format!("  → {}", printable(name)));
        let _ = writeln!(text, "{share:>8} {count:>8}  {line:>5}  {}{calls}", instruction.text);
    }
    if let Some(more) = of.instructions.len().checked_sub(MOST_INSTRUCTIONS).filter(|more| *more != 0) {
        let _ = writeln!(text, "{more} instructions more");
    }
}

/// Of x86-64.
const LONGEST_INSTRUCTION: u64 = 15;

fn source(report: &Report, of: &Loop, text: &mut String) {
    let files = report.profile.files.iter().zip(&report.sources);
    let Some((file, source)) = files.into_iter().find(|(file, _)| file.path == of.loop_path) else { return };
    let shown = of.first..=of.last.min(of.first.saturating_add(MOST_LINES - 1));
    for number in shown {
        let own = file.lines.get(&number).map(|line| line.shares.own).filter(|own| !own.is_zero());
        let share = own.map_or(String::new(), |own| format!("{:.1} %", own.percent_of(report.profile.all)));
        let _ =
            writeln!(text, "{share:>8} {number:>5}  {}", printable(source.line(number).unwrap_or_default()).trim_end());
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_follows_the_last_colon() {
        let of = |text: &str| text.parse::<SourceLine>().map(|line| (line.path, line.line)).unwrap();
        assert_eq!(of("a/prog.py:16"), ("a/prog.py".to_owned(), Some(16)));
        assert_eq!(of("prog.py"), ("prog.py".to_owned(), None));
        assert_eq!(of("c:prog.py:x"), ("c:prog.py:x".to_owned(), None));
    }
}
