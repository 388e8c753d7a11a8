//! Report for a terminal or a pipe.

mod head;

use std::fmt::Write;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::profile::{Count, Extent, FunctionRow, Inlined, LibraryRow, Line, Shares, SourceLines};
use crate::report::{Group, Report, group_digits};
use crate::sanitize::sanitize;
use crate::source::SourceText;
use crate::symbols::Kind;

/// Appearance and extent of the report.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style<'a> {
    /// Width in columns; lines are not truncated without it.
    pub width: Option<usize>,
    /// Use colours.
    pub colour: bool,
    /// Show all functions and lines, not only hot ones.
    pub all: bool,
    /// Show the shares of each thread.
    pub threads: bool,
    /// Show the shares of each process.
    pub processes: bool,
    /// Show the shares of each machine.
    pub hosts: bool,
    /// Show only functions with lines in files whose path contains this, regardless of their share.
    pub file: Option<&'a str>,
    /// Show only functions whose name contains this, regardless of their share.
    pub function: Option<&'a str>,
}

impl Style<'_> {
    /// Returns true if files or functions are selected.
    fn is_selected(&self) -> bool {
        self.file.is_some() || self.function.is_some()
    }

    /// Returns true if the file is selected by its path.
    fn is_named(&self, path: &str) -> bool {
        self.file.is_some_and(|part| path.contains(part))
    }
}

/// Limit on functions without [`Style::all`].
const MAX_FUNCTIONS: usize = 15;
/// Limit on libraries without [`Style::all`].
const MAX_LIBRARIES: usize = 8;
/// Limit on the functions named for each library.
const MAX_LIBRARY_FUNCTIONS: usize = 3;
/// Minimum share of a function in all samples.
const MIN_PERCENT: f64 = 0.5;
/// Minimum share of a compiled function in the samples of compiled code.
const MIN_COMPILED_PERCENT: f64 = 1.0;
/// Context lines around a line with samples.
const CONTEXT_LINES: u32 = 2;
/// Maximum distance of a function's `def` from its first sample.
const MAX_DEF_DISTANCE_LINES: u32 = 60;
/// Minimum width for the columns of samples and bars.
pub(crate) const MIN_WIDE_COLUMNS: usize = 110;
/// Width of a bar in columns.
const BAR_COLUMNS: usize = 8;

/// Returns the whole report.
pub fn to_text(report: &Report, style: Style<'_>) -> String {
    let mut table = Table { report, style, text: String::new() };
    table.write_head();
    table.write_functions();
    if style.hosts {
        table.write_groups("machine", &report.hosts());
    }
    if style.processes {
        table.write_groups("process", &report.processes());
    }
    if style.threads {
        table.write_threads();
    }
    table.write_files();
    table.text
}

struct Table<'a> {
    report: &'a Report,
    style: Style<'a>,
    text: String,
}

impl Table<'_> {
    fn write_line(&mut self, text: &str) {
        self.write_coloured(text, "");
    }

    /// Writes a line of the report, truncated to the width.
    fn write_coloured(&mut self, text: &str, colour: &str) {
        let text = text.trim_end();
        let truncated = match self.style.width {
            Some(width) => truncate(text, width),
            None => text.to_owned(),
        };
        if self.style.colour && !colour.is_empty() {
            let _ = writeln!(self.text, "\x1b[{colour}m{truncated}\x1b[0m");
        } else {
            let _ = writeln!(self.text, "{truncated}");
        }
    }

    fn percent(&self, count: Count) -> String {
        percent(count.percent_of(self.report.profile.all))
    }

    fn write_functions(&mut self) {
        let (report, style) = (self.report, self.style);
        let is_selected = style.is_selected();
        let [yours, theirs] = shown_functions(report, style);
        self.write_line("");
        self.write_titles(if is_selected { "functions" } else { "your functions" }, "1");
        yours.iter().for_each(|row| self.write_function(row));
        if yours.is_empty() {
            self.write_line(match report.profile.all.samples {
                0 => "no samples",
                _ if is_selected => "no function of such a file or name",
                _ if report.profile.functions.iter().any(is_listed) => "no hot function of yours (use --all)",
                _ => "no function has a name; below perf, run the program by `jitlisten run`",
            });
        }
        if is_selected {
            return;
        }
        let hidden = report.profile.functions.iter().filter(|row| is_listed(row) && report.is_user_function(row));
        let hidden = hidden.count().saturating_sub(yours.len());
        if hidden != 0 && !yours.is_empty() {
            self.write_coloured(&format!("{hidden} more functions with smaller shares (use --all)"), "2");
        }
        self.write_libraries();
        if style.all && !theirs.is_empty() {
            self.write_line("");
            self.write_titles("functions of libraries", "1");
            theirs.iter().for_each(|row| self.write_function(row));
        }
    }

    fn write_function(&mut self, row: &FunctionRow) {
        self.write_line(&sanitize(&format!("{} | {}", self.columns(&row.shares), row.name)));
        let is_hot = row.shares.self_count.percent_of(self.report.profile.all) >= MIN_PERCENT;
        let compilations = match self.style.all {
            true => &row.compilations,
            false if is_hot => row.several_compilations(),
            false => &[],
        };
        for (name, shares) in compilations.iter().filter(|_| row.compilations.len() > 1) {
            self.write_coloured(&sanitize(&format!("{} |   {name}", self.columns(shares))), "2");
        }
    }

    /// Writes a row for each library, with its hottest functions.
    fn write_libraries(&mut self) {
        let profile = &self.report.profile;
        let is_hot_code = |(function, count): &(u32, Count)| {
            profile.functions[*function as usize].kind == Kind::Compiled
                && count.percent_of(profile.summary.compiled) >= MIN_COMPILED_PERCENT
        };
        let is_shown = |row: &&LibraryRow| {
            let is_hot = row.shares.self_count.percent_of(profile.all) >= MIN_PERCENT;
            self.style.all || is_hot || row.functions.iter().any(is_hot_code)
        };
        let max_rows = if self.style.all { usize::MAX } else { MAX_LIBRARIES };
        let rows: Vec<&LibraryRow> = profile.libraries.iter().filter(is_shown).take(max_rows).collect();
        if rows.is_empty() {
            return;
        }
        let names: Vec<String> = rows.iter().map(|row| sanitize(&row.name)).collect();
        let columns = names.iter().map(|name| name.width()).max().unwrap_or_default();
        self.write_line("");
        self.write_titles("libraries, with their functions", "1");
        for (row, name) in rows.iter().zip(&names) {
            let mut functions = row.functions.clone();
            functions.sort_by_key(|(function, _)| profile.functions[*function as usize].kind != Kind::Compiled);
            let functions = functions.iter().take(MAX_LIBRARY_FUNCTIONS).map(|(function, count)| {
                let function = &profile.functions[*function as usize].name;
                // Example: prange kernel core.py:856 in stumpy.core._mass
                let function = function.split(" in ").next().unwrap_or(function);
                let short_name = function.strip_prefix(row.name.as_str()).and_then(|rest| rest.strip_prefix('.'));
                format!("{} {}", short_name.unwrap_or(function), self.short_amount(*count))
            });
            let functions = functions.collect::<Vec<_>>().join(" · ");
            let text = format!("{} | {name:<columns$}  {functions}", self.columns(&row.shares));
            self.write_line(&sanitize(&text));
        }
    }

    /// Returns true if there is room for samples and bars.
    fn is_wide(&self) -> bool {
        self.style.width.is_none_or(|width| width >= MIN_WIDE_COLUMNS)
    }

    fn write_titles(&mut self, heading: &str, colour: &str) {
        let samples = if self.is_wide() { "   samples" } else { "" };
        self.write_coloured(&format!("  self %  total %{samples} | {heading}"), colour);
    }

    fn columns(&self, shares: &Shares) -> String {
        let columns = format!("{} {}", self.percent(shares.self_count), self.percent(shares.total));
        if self.is_wide() { format!("{columns} {:>9}", group_digits(shares.self_count.samples)) } else { columns }
    }

    /// Returns blanks as wide as [`columns`](Table::columns).
    fn blank_columns(&self) -> String {
        " ".repeat(self.columns(&Shares::default()).width())
    }

    fn write_groups(&mut self, heading: &str, groups: &[Group]) {
        self.write_line("");
        self.write_coloured(&format!("  self %  in compiled code   samples | {heading}"), "1");
        let has_hosts = self.report.hosts().len() > 1;
        for group in groups {
            let (name, host) = (sanitize(&group.name), sanitize(&group.host));
            let name_and_process = match group.pid {
                0 => host,
                pid => format!("{name} (process {pid}{})", host_suffix(has_hosts, &group.host)),
            };
            let compiled = percent(group.compiled.percent_of(group.all));
            let threads = format!("{} thread{}", group.threads, if group.threads == 1 { "" } else { "s" });
            self.write_line(&format!(
                "{} {compiled:>18} {:>9} | {name_and_process}, {threads}",
                self.percent(group.all),
                group_digits(group.all.samples),
            ));
        }
    }

    fn write_threads(&mut self) {
        self.write_line("");
        self.write_coloured("  self %  in compiled code   samples | thread", "1");
        let mut rows: Vec<_> = self.report.profile.threads.iter().collect();
        rows.sort_by(|a, b| b.all.cmp(&a.all).then(a.thread.tid.cmp(&b.thread.tid)));
        let has_hosts = self.report.hosts().len() > 1;
        for row in rows {
            let thread = &row.thread;
            let name = sanitize(&thread.name);
            let compiled = percent(row.compiled.percent_of(row.all));
            self.write_line(&format!(
                "{} {compiled:>18} {:>9} | {name} (process {}, thread {}{})",
                self.percent(row.all),
                group_digits(row.all.samples),
                thread.pid,
                thread.tid,
                host_suffix(has_hosts, &thread.host)
            ));
        }
    }

    /// Writes the sources, the user's files first.
    fn write_files(&mut self) {
        let report = self.report;
        let mut files: Vec<_> = report.profile.files.iter().zip(&report.sources).enumerate().collect();
        files.sort_by_key(|(_, (file, _))| !report.is_user_source(&file.path));
        let functions_to_show = shown_functions(report, self.style).concat();
        for (index, (file, source)) in files {
            let blocks = self.blocks(index as u32, source, &functions_to_show);
            // The interpreter's own modules have no text, only line numbers.
            let is_named = self.style.is_named(&file.path);
            if blocks.is_empty() || file.path.starts_with("<frozen ") && !self.style.all && !is_named {
                continue;
            }
            self.write_line("");
            self.write_coloured(&sanitize(&file.path), "1");
            if let Some(note) = &source.note {
                self.write_coloured(&sanitize(&format!("note: this file {note}")), "33");
            }
            self.write_titles(" line | source", "2");
            for (index, block) in blocks.iter().enumerate() {
                if index != 0 {
                    self.write_coloured(&format!("{} |     ⋮ |", self.blank_columns()), "2");
                }
                for line in block.clone() {
                    self.write_source_line(file.lines.get(&line), line, source);
                    self.write_loops(&file.path, line);
                }
            }
        }
    }

    /// Returns the line ranges of a file to show, sorted, and merged if they nearly touch.
    fn blocks(
        &self,
        file: u32,
        source: &SourceText,
        functions_to_show: &[&FunctionRow],
    ) -> Vec<std::ops::RangeInclusive<u32>> {
        let SourceLines { path, lines } = &self.report.profile.files[file as usize];
        let is_shown = self.style.function.is_none() && self.style.file.is_none_or(|part| path.contains(part));
        if self.style.all && is_shown {
            return merge_ranges(lines.keys().map(|line| context_range(*line, source)).collect());
        }
        let mut blocks = Vec::new();
        for row in functions_to_show {
            let Some(Extent { first, last, .. }) = row.lines.filter(|lines| lines.file == file) else { continue };
            if lines.contains_key(&0) {
                blocks.push(0..=0);
            }
            let def_line = find_def_line(row, first, source);
            blocks.push(def_line..=def_line);
            for (line, _) in lines.range(first..=last).filter(|(_, line)| self.style.all || self.is_hot(line)) {
                blocks.push(context_range((*line).max(def_line), source));
            }
        }
        merge_ranges(blocks)
    }

    fn is_hot(&self, line: &Line) -> bool {
        let summary = &self.report.profile.summary;
        line.shares.total.percent_of(self.report.profile.all) >= 0.1
            || line.shares.self_count.percent_of(summary.compiled) >= MIN_COMPILED_PERCENT
    }

    fn write_source_line(&mut self, line: Option<&Line>, number: u32, source: &SourceText) {
        let text = source.line(number).unwrap_or_default();
        let text = if number == 0 { "(code of no line)" } else { text };
        let Some(line) = line else {
            return self.write_line(&format!("{} | {number:>5} | {text}", self.blank_columns()));
        };
        let share = line.shares.self_count.percent_of(self.report.profile.all);
        let columns = self.columns(&line.shares);
        // `~` marks lines of which at least a tenth of the self time was inferred from surrounding instructions.
        let marker = if line.approximate.weight > line.shares.self_count.weight / 10 { '~' } else { ' ' };
        self.write_coloured(
            &self.append_bar(&format!("{columns} | {number:>5}{marker}| {text}"), share),
            heat_colour(share),
        );
        if self.style.threads {
            self.write_line_threads(line);
        }
        self.write_inlined(&line.inlined, 1);
    }

    /// Writes the advice for loops whose hottest line this is; with [`Style::all`], also how the other loops run.
    fn write_loops(&mut self, path: &str, line: u32) {
        let mut rows: Vec<(String, &str)> = Vec::new();
        for hot_loop in self.report.loops().iter().filter(|hot_loop| hot_loop.line == line && hot_loop.path == path) {
            for advice in &hot_loop.advice {
                rows.push((format!("⚑ {}: {}", hot_loop.name_at_line(), advice.text), "35"));
            }
            if let (true, true, Some(vector)) = (self.style.all, hot_loop.advice.is_empty(), hot_loop.describe_vector())
            {
                rows.push((format!("✓ {}: {vector}", hot_loop.name_at_line()), "32"));
            }
        }
        // Each compilation of a function has its own loops, which may have equal text.
        rows.dedup();
        for (text, colour) in rows {
            let prefix = format!("{} |       |   ", self.blank_columns());
            let columns = self.style.width.map_or(usize::MAX, |width| width.saturating_sub(prefix.width() + 2).max(20));
            for (index, part) in wrap(&sanitize(&text), " ", columns).iter().enumerate() {
                let indent = if index == 0 { "" } else { "  " };
                self.write_coloured(&format!("{prefix}{indent}{part}"), colour);
            }
        }
    }

    /// Appends a bar in eighths of a block, if the width has room for it.
    fn append_bar(&self, row: &str, share: f64) -> String {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let Some(width) = self.style.width.filter(|width| *width >= MIN_WIDE_COLUMNS) else { return row.to_owned() };
        let eighths = (share / 100.0 * (BAR_COLUMNS * 8) as f64).round() as usize;
        let bar = format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8]);
        if eighths == 0 {
            return row.to_owned();
        }
        let space = width - BAR_COLUMNS - 1;
        let row = truncate(row.trim_end(), space);
        let fill = " ".repeat(space.saturating_sub(row.width()));
        format!("{row}{fill} {bar}")
    }

    fn write_line_threads(&mut self, line: &Line) {
        for (thread, shares) in &line.by_thread {
            let Some(row) = self.report.profile.threads.get(*thread as usize) else { continue };
            let name = sanitize(&self.report.thread_name(&row.thread));
            self.write_coloured(&format!("{} |       |   thread {name}", self.columns(shares)), "2");
        }
    }

    fn write_inlined(&mut self, calls: &[Inlined], depth: usize) {
        for call in calls {
            let profile = &self.report.profile;
            let share = call.shares.total.percent_of(profile.all);
            if !self.style.all
                && share < 0.1
                && call.shares.total.percent_of(profile.summary.compiled) < MIN_COMPILED_PERCENT
            {
                continue;
            }
            let file = call.file.map(|file| file as usize);
            let path = file.map_or("", |file| self.report.profile.files[file].path.as_str());
            let path = path.rsplit('/').next().unwrap_or_default();
            let text = file.and_then(|file| self.report.sources[file].line(call.line)).unwrap_or_default().trim_start();
            let name = &self.report.profile.functions[call.function as usize].name;
            let short_name = name.rsplit('.').next().unwrap_or(name);
            let indent = "  ".repeat(depth);
            let position = match call.line {
                0 => "(code of no line)".to_owned(),
                line => format!("{path}:{line}  {text}"),
            };
            let row = format!("{} |       | {indent}↳ {short_name} {position}", self.columns(&call.shares));
            self.write_coloured(&sanitize(&row), "36");
            if depth < 12 {
                self.write_inlined(&call.inlined, depth + 1);
            }
        }
    }
}

/// Splits a text into lines of at most `columns`, at the separators between its parts.
pub(crate) fn wrap(text: &str, separator: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split(separator) {
        match lines.last_mut() {
            Some(line) if line.width().saturating_add(separator.width()).saturating_add(part.width()) <= columns => {
                line.push_str(separator);
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

/// Truncates a text to a width in columns. Some characters occupy two.
pub(crate) fn truncate(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut used_columns = 1;
    let fits = |character: &char| {
        used_columns += character.width().unwrap_or_default();
        used_columns <= columns
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// Returns ` on HOST` if there are several machines.
fn host_suffix(has_several: bool, host: &str) -> String {
    if has_several { format!(" on {}", sanitize(host)) } else { String::new() }
}

fn percent(percent: f64) -> String {
    format!("{percent:>6.1} %")
}

fn heat_colour(share: f64) -> &'static str {
    match share {
        10.0.. => "1;31",
        3.0.. => "33",
        _ => "",
    }
}

fn is_listed(row: &FunctionRow) -> bool {
    matches!(row.kind, Kind::Compiled | Kind::Python) || row.lines.is_some()
}

/// Returns the functions of a table: the user's, and those of libraries. Without `all`, only hot ones that are the
/// user's or compiled.
fn shown_functions<'a>(report: &'a Report, style: Style<'a>) -> [Vec<&'a FunctionRow>; 2] {
    let (all, compiled) = (report.profile.all, report.profile.summary.compiled);
    let is_selected = style.is_selected();
    let is_shown = |row: &&FunctionRow| {
        if is_selected {
            let path = row.lines.map(|lines| report.profile.files[lines.file as usize].path.as_str());
            return style.function.is_none_or(|part| row.name.contains(part))
                && style.file.is_none_or(|name_part| path.is_some_and(|path| path.contains(name_part)));
        }
        let is_hot = row.shares.total.percent_of(all) >= MIN_PERCENT;
        let is_hot_code =
            row.kind == Kind::Compiled && row.shares.self_count.percent_of(compiled) >= MIN_COMPILED_PERCENT;
        // Python's own files and installed packages are summarised in the rows of libraries.
        style.all || is_hot_code || is_hot && (row.kind == Kind::Compiled || report.is_user_function(row))
    };
    let rows = report.profile.functions.iter().filter(|row| is_listed(row)).filter(is_shown);
    let (yours, theirs): (Vec<_>, Vec<_>) = rows.partition(|row| is_selected || report.is_user_function(row));
    let max_rows = if style.all { usize::MAX } else { MAX_FUNCTIONS };
    [yours, theirs].map(|rows| rows.into_iter().take(max_rows).collect())
}

fn context_range(line: u32, source: &SourceText) -> std::ops::RangeInclusive<u32> {
    if line == 0 || source.is_empty() {
        return line..=line;
    }
    let last = line.saturating_add(CONTEXT_LINES).min(source.len().max(line));
    line.saturating_sub(CONTEXT_LINES).max(1)..=last
}

/// Returns the line of the function's `def`, which is above its first line with samples.
fn find_def_line(row: &FunctionRow, first: u32, source: &SourceText) -> u32 {
    let name = row.name.rsplit('.').next().unwrap_or(&row.name);
    let is_def = |line: &u32| {
        let text = source.line(*line).unwrap_or_default().trim_start();
        let text = text.strip_prefix("async ").unwrap_or(text);
        let rest = text.strip_prefix("def ").and_then(|rest| rest.trim_start().strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start().starts_with('('))
    };
    (first.saturating_sub(MAX_DEF_DISTANCE_LINES).max(1)..=first).rev().find(is_def).unwrap_or(first)
}

fn merge_ranges(mut blocks: Vec<std::ops::RangeInclusive<u32>>) -> Vec<std::ops::RangeInclusive<u32>> {
    blocks.sort_by_key(|block| *block.start());
    let mut merged: Vec<std::ops::RangeInclusive<u32>> = Vec::new();
    for block in blocks {
        match merged.last_mut() {
            Some(last) if *block.start() <= last.end().saturating_add(2) => {
                *last = *last.start()..=*last.end().max(block.end());
            }
            _ => merged.push(block),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_of_two_columns_count_as_two() {
        assert_eq!(truncate("# 速度を測る", 12), "# 速度を測る");
        assert_eq!(truncate("# 速度を測る", 11), "# 速度を測…");
        assert_eq!(truncate("# 速度を測る", 10), "# 速度を…");
        assert_eq!(truncate("abc", 2), "a…");
    }
}
