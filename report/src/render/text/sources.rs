//! Sources with the shares of their lines.

use std::ops::RangeInclusive;

use unicode_width::UnicodeWidthStr as _;

use crate::lookup::source::SourceText;
use crate::loops::Verdict;
use crate::profile::{Extent, FunctionRow, Inlined, Line, SourceLines};
use crate::sanitize::sanitize;
use crate::words::file_name;

use super::lines::{MIN_WIDE_COLUMNS, truncate, wrap};
use super::{MIN_COMPILED_PERCENT, Table, heat_colour, shown_functions};

/// Number of context lines around a line with samples.
const CONTEXT_LINES: u32 = 2;
/// Maximum distance of a function's `def` from its first sample.
const MAX_DEF_DISTANCE_LINES: u32 = 60;
/// Width of a bar in columns.
const BAR_COLUMNS: usize = 8;

impl Table<'_> {
    /// Writes the sources, the user's files first.
    pub(super) fn write_files(&mut self) {
        let report = self.report;
        let mut files: Vec<_> = report.profile.files.iter().zip(&report.sources).enumerate().collect();
        files.sort_by_key(|(_, (file, _))| !report.is_user_source(&file.path));
        let functions_to_show = shown_functions(report, self.style).concat();
        for (index, (file, source)) in files {
            let blocks = self.blocks(index as u32, source, &functions_to_show);
            // Frozen modules of the interpreter have no source text, only line numbers.
            let is_named = self.style.is_named(&file.path);
            if blocks.is_empty() || file.path.starts_with("<frozen ") && !self.style.all && !is_named {
                continue;
            }
            self.lines.write("");
            self.lines.write_coloured(&sanitize(&file.path), "1");
            if let Some(note) = &source.note {
                self.lines.write_coloured(&sanitize(&format!("note: this file {note}")), "33");
            }
            self.write_titles(" line | source", "2");
            for (index, block) in blocks.iter().enumerate() {
                if index != 0 {
                    self.lines.write_coloured(&format!("{} |     ⋮ |", self.blank_columns()), "2");
                }
                for line in block.clone() {
                    self.write_source_line(file.lines.get(&line), line, source);
                    self.write_loops(&file.path, line);
                }
            }
        }
    }

    /// Returns the line ranges of a file to show, in order. Ranges with only a small gap are merged.
    fn blocks(&self, file: u32, source: &SourceText, functions_to_show: &[&FunctionRow]) -> Vec<RangeInclusive<u32>> {
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
            return self.lines.write(&format!("{} | {number:>5} | {text}", self.blank_columns()));
        };
        let share = line.shares.self_count.percent_of(self.report.profile.all);
        let columns = self.columns(&line.shares);
        // `~` marks a line if more than a tenth of its self time was inferred from surrounding instructions.
        let marker = if line.approximate.weight > line.shares.self_count.weight / 10 { '~' } else { ' ' };
        self.lines.write_coloured(
            &self.append_bar(&format!("{columns} | {number:>5}{marker}| {text}"), share),
            heat_colour(share),
        );
        if self.style.threads {
            self.write_line_threads(line);
        }
        self.write_inlined(&line.inlined, 1);
    }

    /// Writes the advice for loops whose hottest line is `line`. With [`Style::all`], also describes how the other
    /// loops run.
    fn write_loops(&mut self, path: &str, line: u32) {
        let mut rows: Vec<(String, &str)> = Vec::new();
        for hot_loop in self.report.loops_at(path, line) {
            for advice in &hot_loop.advice {
                let colour = if advice.change.is_some() { "35" } else { "" };
                rows.push((format!("{} {}: {}", advice.mark(), hot_loop.name_at_line(), advice.text()), colour));
            }
            let is_packed = hot_loop.advice.is_empty() && hot_loop.verdict() == Verdict::Packed;
            if let (true, true, Some(vector)) = (self.style.all, is_packed, hot_loop.describe_vector()) {
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
                self.lines.write_coloured(&format!("{prefix}{indent}{part}"), colour);
            }
        }
    }

    /// Appends a bar in eighths of a block, if the width has room for it.
    fn append_bar(&self, row: &str, share: f64) -> String {
        const BAR_EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let Some(width) = self.style.width.filter(|width| *width >= MIN_WIDE_COLUMNS) else { return row.to_owned() };
        let eighths = (share / 100.0 * (BAR_COLUMNS * 8) as f64).round() as usize;
        let bar = format!("{}{}", "█".repeat(eighths / 8), BAR_EIGHTHS[eighths % 8]);
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
            self.lines.write_coloured(&format!("{} |       |   thread {name}", self.columns(shares)), "2");
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
            let path = file.map_or("", |file| file_name(&profile.files[file].path));
            let text = file.and_then(|file| self.report.sources[file].line(call.line)).unwrap_or_default().trim_start();
            let name = &self.report.profile.functions[call.function as usize].name;
            let short_name = name.rsplit('.').next().unwrap_or(name);
            let indent = "  ".repeat(depth);
            let position = match call.line {
                0 => "(code of no line)".to_owned(),
                line => format!("{path}:{line}  {text}"),
            };
            let row = format!("{} |       | {indent}↳ {short_name} {position}", self.columns(&call.shares));
            self.lines.write_coloured(&sanitize(&row), "36");
            if depth < 12 {
                self.write_inlined(&call.inlined, depth + 1);
            }
        }
    }
}

fn context_range(line: u32, source: &SourceText) -> RangeInclusive<u32> {
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

fn merge_ranges(mut blocks: Vec<RangeInclusive<u32>>) -> Vec<RangeInclusive<u32>> {
    blocks.sort_by_key(|block| *block.start());
    let mut merged: Vec<RangeInclusive<u32>> = Vec::new();
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
