//! The report for a terminal or a pipe.

mod head;

use std::fmt::Write;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::printable::printable;
use crate::profile::{Count, Extent, FunctionRow, Inlined, LibraryRow, Line, Shares, SourceLines};
use crate::report::{Group, Report, grouped};
use crate::source::SourceText;
use crate::symbols::Kind;

/// How it looks, and how much of it there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style<'a> {
    /// Columns; without it lines are as long as they are.
    pub width: Option<usize>,
    /// Whether to use colour.
    pub colour: bool,
    /// Show all functions and lines, not only hot ones.
    pub all: bool,
    /// The shares of each thread.
    pub threads: bool,
    /// The shares of each process.
    pub processes: bool,
    /// The shares of each machine.
    pub hosts: bool,
    /// Only functions with lines in files whose path contains this, whatever they take.
    pub file: Option<&'a str>,
    /// Only functions whose name contains this, whatever they take.
    pub function: Option<&'a str>,
}

impl Style<'_> {
    /// Whether files or functions were asked for.
    fn is_selected(&self) -> bool {
        self.file.is_some() || self.function.is_some()
    }

    /// Whether a file was asked for.
    fn is_named(&self, path: &str) -> bool {
        self.file.is_some_and(|part| path.contains(part))
    }
}

/// Functions that are shown without [`Style::all`].
const MOST_FUNCTIONS: usize = 15;
/// Libraries, and functions of each.
const MOST_LIBRARIES: usize = 8;
const LIBRARY_FUNCTIONS: usize = 3;
/// Functions with less of everything are not shown, compiled ones with less of what was compiled.
const LEAST_PERCENT: f64 = 0.5;
const LEAST_OF_COMPILED: f64 = 1.0;
/// Lines around a line with samples.
const AROUND: u32 = 2;
/// How far above its first sample the head of a function is looked for.
const HEAD_AT_MOST: u32 = 60;
/// From so many columns on there is a place for samples and bars.
pub(crate) const WIDE: usize = 110;
/// Columns of a bar.
const BAR: usize = 8;

/// The whole table.
pub fn to_text(report: &Report, style: Style<'_>) -> String {
    let mut table = Table { report, style, text: String::new() };
    table.head();
    table.functions();
    if style.hosts {
        table.groups("machine", &report.hosts());
    }
    if style.processes {
        table.groups("process", &report.processes());
    }
    if style.threads {
        table.threads();
    }
    table.files();
    table.text
}

struct Table<'a> {
    report: &'a Report,
    style: Style<'a>,
    text: String,
}

impl Table<'_> {
    fn line(&mut self, text: &str) {
        self.coloured(text, "");
    }

    /// A line of the output, cut to the width.
    fn coloured(&mut self, text: &str, colour: &str) {
        let text = text.trim_end();
        let cut = match self.style.width {
            Some(width) => cut(text, width),
            None => text.to_owned(),
        };
        if self.style.colour && !colour.is_empty() {
            let _ = writeln!(self.text, "\x1b[{colour}m{cut}\x1b[0m");
        } else {
            let _ = writeln!(self.text, "{cut}");
        }
    }

    fn percent(&self, count: Count) -> String {
        percent(count.percent_of(self.report.profile.all))
    }

    fn functions(&mut self) {
        let (report, style) = (self.report, self.style);
        let is_named = style.is_selected();
        let [yours, theirs] = shown_functions(report, style);
        self.line("");
        self.titles(if is_named { "functions" } else { "your functions" }, "1");
        yours.iter().for_each(|row| self.function(row));
        if yours.is_empty() {
            self.line(match report.profile.all.samples {
                0 => "no samples",
                _ if is_named => "no function of such a file or name",
                _ if report.profile.functions.iter().any(is_listed) => "no hot function of yours (use --all)",
                _ => "no function has a name; below perf, run the program by `jitlisten run`",
            });
        }
        if is_named {
            return;
        }
        let hidden = report.profile.functions.iter().filter(|row| is_listed(row) && report.is_yours(row));
        let hidden = hidden.count().saturating_sub(yours.len());
        if hidden != 0 && !yours.is_empty() {
            self.coloured(&format!("{hidden} more functions with smaller shares (use --all)"), "2");
        }
        self.libraries();
        if style.all && !theirs.is_empty() {
            self.line("");
            self.titles("functions of libraries", "1");
            theirs.iter().for_each(|row| self.function(row));
        }
    }

    fn function(&mut self, row: &FunctionRow) {
        self.line(&printable(&format!("{} | {}", self.columns(&row.shares), row.name)));
        let is_hot = row.shares.own.percent_of(self.report.profile.all) >= LEAST_PERCENT;
        let compilations = match self.style.all {
            true => &row.compilations,
            false if is_hot => row.several_compilations(),
            false => &[],
        };
        for (name, shares) in compilations.iter().filter(|_| row.compilations.len() > 1) {
            self.coloured(&printable(&format!("{} |   {name}", self.columns(shares))), "2");
        }
    }

    /// What is not the user's: a row for each library, with its hottest functions.
    fn libraries(&mut self) {
        let profile = &self.report.profile;
        let is_hot_code = |(function, count): &(u32, Count)| {
            profile.functions[*function as usize].kind == Kind::Compiled
                && count.percent_of(profile.summary.compiled) >= LEAST_OF_COMPILED
        };
        let is_shown = |row: &&LibraryRow| {
            let is_hot = row.shares.own.percent_of(profile.all) >= LEAST_PERCENT;
            self.style.all || is_hot || row.functions.iter().any(is_hot_code)
        };
        let most = if self.style.all { usize::MAX } else { MOST_LIBRARIES };
        let rows: Vec<&LibraryRow> = profile.libraries.iter().filter(is_shown).take(most).collect();
        if rows.is_empty() {
            return;
        }
        let names: Vec<String> = rows.iter().map(|row| printable(&row.name)).collect();
        let columns = names.iter().map(|name| name.width()).max().unwrap_or_default();
        self.line("");
        self.titles("libraries, with their functions", "1");
        for (row, name) in rows.iter().zip(&names) {
            let mut functions = row.functions.clone();
            functions.sort_by_key(|(function, _)| profile.functions[*function as usize].kind != Kind::Compiled);
            let functions = functions.iter().take(LIBRARY_FUNCTIONS).map(|(function, count)| {
                let function = &profile.functions[*function as usize].name;
                // prange kernel core.py:856 in stumpy.core._mass
                let function = function.split(" in ").next().unwrap_or(function);
                let short = function.strip_prefix(row.name.as_str()).and_then(|rest| rest.strip_prefix('.'));
                format!("{} {}", short.unwrap_or(function), self.short(*count))
            });
            let functions = functions.collect::<Vec<_>>().join(" · ");
            let text = format!("{} | {name:<columns$}  {functions}", self.columns(&row.shares));
            self.line(&printable(&text));
        }
    }

    /// Whether there is a place for samples and bars.
    fn is_wide(&self) -> bool {
        self.style.width.is_none_or(|width| width >= WIDE)
    }

    fn titles(&mut self, what: &str, colour: &str) {
        let samples = if self.is_wide() { "   samples" } else { "" };
        self.coloured(&format!("  self %  total %{samples} | {what}"), colour);
    }

    fn columns(&self, shares: &Shares) -> String {
        let columns = format!("{} {}", self.percent(shares.own), self.percent(shares.total));
        if self.is_wide() { format!("{columns} {:>9}", grouped(shares.own.samples)) } else { columns }
    }

    /// As wide as [`columns`](Table::columns).
    fn no_columns(&self) -> String {
        " ".repeat(self.columns(&Shares::default()).width())
    }

    fn groups(&mut self, what: &str, groups: &[Group]) {
        self.line("");
        self.coloured(&format!("  self %  in compiled code   samples | {what}"), "1");
        let several = self.report.hosts().len() > 1;
        for group in groups {
            let (name, host) = (printable(&group.name), printable(&group.host));
            let which = match group.pid {
                0 => host,
                pid => format!("{name} (process {pid}{})", on_host(several, &group.host)),
            };
            let compiled = percent(group.compiled.percent_of(group.all));
            let threads = format!("{} thread{}", group.threads, if group.threads == 1 { "" } else { "s" });
            self.line(&format!(
                "{} {compiled:>18} {:>9} | {which}, {threads}",
                self.percent(group.all),
                grouped(group.all.samples),
            ));
        }
    }

    fn threads(&mut self) {
        self.line("");
        self.coloured("  self %  in compiled code   samples | thread", "1");
        let mut rows: Vec<_> = self.report.profile.threads.iter().collect();
        rows.sort_by(|a, b| b.all.cmp(&a.all).then(a.thread.tid.cmp(&b.thread.tid)));
        let several = self.report.hosts().len() > 1;
        for row in rows {
            let thread = &row.thread;
            let name = printable(&thread.name);
            let compiled = percent(row.compiled.percent_of(row.all));
            self.line(&format!(
                "{} {compiled:>18} {:>9} | {name} (process {}, thread {}{})",
                self.percent(row.all),
                grouped(row.all.samples),
                thread.pid,
                thread.tid,
                on_host(several, &thread.host)
            ));
        }
    }

    /// The user's first.
    fn files(&mut self) {
        let report = self.report;
        let mut files: Vec<_> = report.profile.files.iter().zip(&report.sources).enumerate().collect();
        files.sort_by_key(|(_, (file, _))| !report.is_users(&file.path));
        let shown = shown_functions(report, self.style).concat();
        for (number, (file, source)) in files {
            let blocks = self.blocks(number as u32, source, &shown);
            // Of the interpreter's own modules there is nothing to show but numbers of lines.
            let is_named = self.style.is_named(&file.path);
            if blocks.is_empty() || file.path.starts_with("<frozen ") && !self.style.all && !is_named {
                continue;
            }
            self.line("");
            self.coloured(&printable(&file.path), "1");
            if let Some(note) = &source.note {
                self.coloured(&printable(&format!("note: this file {note}")), "33");
            }
            self.titles(" line | source", "2");
            for (at, block) in blocks.iter().enumerate() {
                if at != 0 {
                    self.coloured(&format!("{} |     ⋮ |", self.no_columns()), "2");
                }
                for line in block.clone() {
                    self.source_line(file.lines.get(&line), line, source);
                    self.loops_at(&file.path, line);
                }
            }
        }
    }

    /// The ranges of a file's lines to show, in order, not touching.
    fn blocks(&self, file: u32, source: &SourceText, shown: &[&FunctionRow]) -> Vec<std::ops::RangeInclusive<u32>> {
        let SourceLines { path, lines } = &self.report.profile.files[file as usize];
        let is_meant = self.style.function.is_none() && self.style.file.is_none_or(|part| path.contains(part));
        if self.style.all && is_meant {
            return joined(lines.keys().map(|line| around(*line, source)).collect());
        }
        let mut blocks = Vec::new();
        for row in shown {
            let Some(Extent { first, last, .. }) = row.lines.filter(|at| at.file == file) else { continue };
            if lines.contains_key(&0) {
                blocks.push(0..=0);
            }
            let head = head_of(row, first, source);
            blocks.push(head..=head);
            for (line, _) in lines.range(first..=last).filter(|(_, line)| self.style.all || self.is_hot(line)) {
                blocks.push(around((*line).max(head), source));
            }
        }
        joined(blocks)
    }

    fn is_hot(&self, line: &Line) -> bool {
        let summary = &self.report.profile.summary;
        line.shares.total.percent_of(self.report.profile.all) >= 0.1
            || line.shares.own.percent_of(summary.compiled) >= LEAST_OF_COMPILED
    }

    fn source_line(&mut self, line: Option<&Line>, number: u32, source: &SourceText) {
        let text = source.line(number).unwrap_or_default();
        let text = if number == 0 { "(code of no line)" } else { text };
        let Some(line) = line else {
            return self.line(&format!("{} | {number:>5} | {text}", self.no_columns()));
        };
        let share = line.shares.own.percent_of(self.report.profile.all);
        let columns = self.columns(&line.shares);
        // A tenth and more of its self has the line of the instructions around.
        let mark = if line.approximate.weight > line.shares.own.weight / 10 { '~' } else { ' ' };
        self.coloured(&self.with_bar(&format!("{columns} | {number:>5}{mark}| {text}"), share), heat(share));
        if self.style.threads {
            self.line_threads(line);
        }
        self.inlined(&line.inlined, 1);
    }

    /// What helps the loops whose hottest line this is, and with [`Style::all`] what the others do.
    fn loops_at(&mut self, path: &str, line: u32) {
        let mut rows: Vec<(String, &str)> = Vec::new();
        for of in self.report.loops().iter().filter(|of| of.line == line && of.path == path) {
            for advice in &of.advice {
                rows.push((format!("⚑ {}: {}", of.name_at_line(), advice.text), "35"));
            }
            if let (true, true, Some(vector)) = (self.style.all, of.advice.is_empty(), of.vector()) {
                rows.push((format!("✓ {}: {vector}", of.name_at_line()), "32"));
            }
        }
        // Each compilation of a function has its own loops.
        rows.dedup();
        for (text, colour) in rows {
            let before = format!("{} |       |   ", self.no_columns());
            let columns = self.style.width.map_or(usize::MAX, |width| width.saturating_sub(before.width() + 2).max(20));
            for (at, part) in wrapped(&printable(&text), " ", columns).iter().enumerate() {
                let indent = if at == 0 { "" } else { "  " };
                self.coloured(&format!("{before}{indent}{part}"), colour);
            }
        }
    }

    /// Eighths of blocks at the end of a row, where the width leaves them a place.
    fn with_bar(&self, row: &str, share: f64) -> String {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let Some(width) = self.style.width.filter(|width| *width >= WIDE) else { return row.to_owned() };
        let eighths = (share / 100.0 * (BAR * 8) as f64).round() as usize;
        let bar = format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8]);
        if eighths == 0 {
            return row.to_owned();
        }
        let space = width - BAR - 1;
        let row = cut(row.trim_end(), space);
        let fill = " ".repeat(space.saturating_sub(row.width()));
        format!("{row}{fill} {bar}")
    }

    fn line_threads(&mut self, line: &Line) {
        for (thread, shares) in &line.by_thread {
            let Some(row) = self.report.profile.threads.get(*thread as usize) else { continue };
            let name = printable(&self.report.thread_name(&row.thread));
            self.coloured(&format!("{} |       |   thread {name}", self.columns(shares)), "2");
        }
    }

    fn inlined(&mut self, calls: &[Inlined], depth: usize) {
        for call in calls {
            let profile = &self.report.profile;
            let share = call.shares.total.percent_of(profile.all);
            if !self.style.all
                && share < 0.1
                && call.shares.total.percent_of(profile.summary.compiled) < LEAST_OF_COMPILED
            {
                continue;
            }
            let file = call.file.map(|file| file as usize);
            let path = file.map_or("", |file| self.report.profile.files[file].path.as_str());
            let path = path.rsplit('/').next().unwrap_or_default();
            let text = file.and_then(|file| self.report.sources[file].line(call.line)).unwrap_or_default().trim_start();
            let name = &self.report.profile.functions[call.function as usize].name;
            let short = name.rsplit('.').next().unwrap_or(name);
            let indent = "  ".repeat(depth);
            let place = match call.line {
                0 => "(code of no line)".to_owned(),
                line => format!("{path}:{line}  {text}"),
            };
            let row = format!("{} |       | {indent}↳ {short} {place}", self.columns(&call.shares));
            self.coloured(&printable(&row), "36");
            if depth < 12 {
                self.inlined(&call.inlined, depth + 1);
            }
        }
    }
}

/// A text in lines of at most so many columns, broken between its parts.
pub(crate) fn wrapped(text: &str, between: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split(between) {
        match lines.last_mut() {
            Some(line) if line.width().saturating_add(between.width()).saturating_add(part.width()) <= columns => {
                line.push_str(between);
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// As much of a text as has a place in so many columns. Some characters take two.
pub(crate) fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used = 1;
    let fits = |character: &char| {
        used += character.width().unwrap_or_default();
        used <= columns
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// The machine, where there are several.
fn on_host(several: bool, host: &str) -> String {
    if several { format!(" on {}", printable(host)) } else { String::new() }
}

fn percent(percent: f64) -> String {
    format!("{percent:>6.1} %")
}

fn heat(share: f64) -> &'static str {
    match share {
        10.0.. => "1;31",
        3.0.. => "33",
        _ => "",
    }
}

fn is_listed(row: &FunctionRow) -> bool {
    matches!(row.kind, Kind::Compiled | Kind::Python) || row.lines.is_some()
}

/// The functions of a table, the user's and those of libraries: all, or the user's and those that were compiled, as
/// far as they are hot.
fn shown_functions<'a>(report: &'a Report, style: Style<'a>) -> [Vec<&'a FunctionRow>; 2] {
    let (all, compiled) = (report.profile.all, report.profile.summary.compiled);
    let is_named = style.is_selected();
    let is_shown = |row: &&FunctionRow| {
        if is_named {
            let path = row.lines.map(|at| report.profile.files[at.file as usize].path.as_str());
            return style.function.is_none_or(|part| row.name.contains(part))
                && style.file.is_none_or(|part| path.is_some_and(|path| path.contains(part)));
        }
        let is_hot = row.shares.total.percent_of(all) >= LEAST_PERCENT;
        let is_hot_code = row.kind == Kind::Compiled && row.shares.own.percent_of(compiled) >= LEAST_OF_COMPILED;
        // Of what Python's own files and installed packages interpret, a row for each library says enough.
        style.all || is_hot_code || is_hot && (row.kind == Kind::Compiled || report.is_yours(row))
    };
    let rows = report.profile.functions.iter().filter(|row| is_listed(row)).filter(is_shown);
    let (yours, theirs): (Vec<_>, Vec<_>) = rows.partition(|row| is_named || report.is_yours(row));
    let most = if style.all { usize::MAX } else { MOST_FUNCTIONS };
    [yours, theirs].map(|rows| rows.into_iter().take(most).collect())
}

fn around(line: u32, source: &SourceText) -> std::ops::RangeInclusive<u32> {
    if line == 0 || source.is_empty() {
        return line..=line;
    }
    let last = line.saturating_add(AROUND).min(source.len().max(line));
    line.saturating_sub(AROUND).max(1)..=last
}

/// The line with the function's `def`, looked for above its first line with samples.
fn head_of(row: &FunctionRow, first: u32, source: &SourceText) -> u32 {
    let name = row.name.rsplit('.').next().unwrap_or(&row.name);
    let is_head = |line: &u32| {
        let text = source.line(*line).unwrap_or_default().trim_start();
        let text = text.strip_prefix("async ").unwrap_or(text);
        let rest = text.strip_prefix("def ").and_then(|rest| rest.trim_start().strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start().starts_with('('))
    };
    (first.saturating_sub(HEAD_AT_MOST).max(1)..=first).rev().find(is_head).unwrap_or(first)
}

fn joined(mut blocks: Vec<std::ops::RangeInclusive<u32>>) -> Vec<std::ops::RangeInclusive<u32>> {
    blocks.sort_by_key(|block| *block.start());
    let mut joined: Vec<std::ops::RangeInclusive<u32>> = Vec::new();
    for block in blocks {
        match joined.last_mut() {
            Some(last) if *block.start() <= last.end().saturating_add(2) => {
                *last = *last.start()..=*last.end().max(block.end());
            }
            _ => joined.push(block),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_two_columns_count_as_two() {
        assert_eq!(cut("# 速度を測る", 12), "# 速度を測る");
        assert_eq!(cut("# 速度を測る", 11), "# 速度を測…");
        assert_eq!(cut("# 速度を測る", 10), "# 速度を…");
        assert_eq!(cut("abc", 2), "a…");
    }
}
