//! First screen: head, tree of the user's lines, hottest lines, what helps, notes, next step.

use unicode_width::UnicodeWidthStr as _;

use super::head::MIN_C_PERCENT;
use super::lines::{truncate, truncate_middle, wrap};
use super::{Table, heat_colour};
use crate::answer::Answer;
use crate::file_names::FileNames;
use crate::profile::Count;
use crate::render::rows::{ShownRow, shown_rows};
use crate::sanitize::sanitize;
use crate::words::{duration, group_digits, plural};

/// Columns of time, share and flag before a row's line.
const LEFT_COLUMNS: usize = 17;
/// Maximum width of the last column, in a narrow and in a wide terminal.
const MAX_PARTS_COLUMNS: (usize, usize) = (25, 36);
const WIDE_COLUMNS: usize = 100;
/// Maximum width of a row's line without a terminal.
const MAX_PIPE_COLUMNS: usize = 100;
/// Minimum share of an activity in the head.
const MIN_SHARE_PERCENT: f64 = 1.0;
/// Minimum share of an activity in a head that would be too long.
const SMALL_SHARE_PERCENT: f64 = 5.0;
/// Minimum share of the row for time below no line of the user.
const MIN_ELSEWHERE_PERCENT: f64 = 5.0;
/// Maximum numbers of lines of the beginning and of the end of one sentence, and of notes.
const MAX_BEGINNING_LINES: usize = 3;
const MAX_END_LINES: usize = 2;
const MAX_NOTES: usize = 3;

impl Table<'_> {
    pub(super) fn write_answer(&mut self) {
        let report = self.report;
        self.write_headline();
        if !self.style.is_selected() {
            let answer = report.answer();
            self.write_shares(answer);
            self.write_rows(answer);
            self.write_hot_lines(answer);
            self.write_helps(answer);
        }
        self.write_notes();
        if let Some(next_step) = self.style.next_step {
            self.lines.write("");
            let separator = if next_step.width() > self.lines.columns() { ": " } else { " · " };
            self.lines.write_wrapped(&sanitize(next_step), separator, "2");
        }
    }

    fn write_headline(&mut self) {
        let mut text = self.report.headline();
        if let Some(failure) = self.style.failure {
            let program = self.report.program();
            text = format!("{program}: {failure}{}", text.strip_prefix(&program).unwrap_or(&text));
        }
        for line in wrap(&sanitize(&text), " · ", self.lines.columns()) {
            self.lines.write_coloured(&line, "1");
        }
        let command = self.report.recording.facts.command.join(" ");
        if self.style.all && !command.is_empty() {
            self.lines.write_coloured(&sanitize(&self.report.title()), "2");
            self.lines.write_coloured(&sanitize(&format!("recorded by: {command}")), "2");
        }
    }

    fn write_shares(&mut self, answer: &Answer) {
        let waiting = self.idle_ns().map(|idle| format!("{} waiting", duration(idle)));
        let hint = waiting.as_ref().map(|waiting| format!("{waiting} (--wall)"));
        let columns = self.lines.columns();
        // If the line is too long, small shares are left out.
        for (min_percent, separator, waiting) in [
            (MIN_SHARE_PERCENT, "  ·  ", &hint),
            (MIN_SHARE_PERCENT, " · ", &hint),
            (MIN_SHARE_PERCENT, " · ", &waiting),
            (SMALL_SHARE_PERCENT, " · ", &waiting),
        ] {
            let shares = answer.shares.iter().map(|(word, count)| (word, count.percent_of(answer.all)));
            let shares = shares.filter(|(_, percent)| *percent >= min_percent);
            let parts = shares.map(|(word, percent)| format!("{word} {percent:.0} %")).chain(waiting.clone());
            let text = sanitize(&parts.collect::<Vec<_>>().join(separator));
            if text.width() <= columns {
                return self.lines.write(&text);
            }
            if min_percent == SMALL_SHARE_PERCENT {
                self.lines.write_wrapped(&text, separator, "");
            }
        }
    }

    fn write_rows(&mut self, answer: &Answer) {
        let is_shown = |count: Count| count.percent_of(answer.all) >= MIN_ELSEWHERE_PERCENT;
        let is_elsewhere_shown = is_shown(answer.elsewhere);
        if answer.rows.is_empty() && !is_elsewhere_shown {
            return;
        }
        let max_parts = if self.lines.columns() < WIDE_COLUMNS { MAX_PARTS_COLUMNS.0 } else { MAX_PARTS_COLUMNS.1 };
        let parts: Vec<String> = answer.rows.iter().map(|row| sanitize(&row.of_it(max_parts))).collect();
        let parts_columns = parts.iter().map(|part| part.width()).max().unwrap_or(0).clamp("% of it".len(), max_parts);
        let width = self.style.width.map(|width| width.saturating_sub(LEFT_COLUMNS + parts_columns + 2).max(16));
        // A long file name leaves space for the line number and some of the source.
        let label_columns = width.unwrap_or(MAX_PIPE_COLUMNS) * 2 / 3;
        let body = |row: ShownRow| {
            let label = truncate_middle(&row.label, label_columns.saturating_sub(row.branches.width()).max(8));
            sanitize(&format!("{}{label}  {}", row.branches, row.text))
        };
        let bodies: Vec<String> = shown_rows(&answer.rows).into_iter().map(body).collect();
        let widest = || bodies.iter().map(|body| body.width()).max().unwrap_or(0).clamp(16, MAX_PIPE_COLUMNS);
        let room = width.unwrap_or_else(widest);
        self.lines.write("");
        let heading = format!("{:>8} {:>5}   {:<room$}  % of it", self.time_title(), "%", "your lines");
        self.lines.write_coloured(&heading, "1");
        for ((row, body), part) in answer.rows.iter().zip(&bodies).zip(&parts) {
            let flag = if row.advice.is_some() { "⚑" } else { " " };
            let body = truncate(body, room);
            let fill = " ".repeat(room.saturating_sub(body.width()));
            let line = format!("{} {flag} {body}{fill}  {}", self.time_and_share(row.total, answer), part);
            self.lines.write_coloured(&line, heat_colour(row.total.percent_of(answer.all) / 4.0));
        }
        let hidden = answer.hidden();
        if is_shown(hidden) {
            self.lines.write(&format!("{}   below other lines of yours", self.time_and_share(hidden, answer)));
        }
        if is_elsewhere_shown {
            let words: Vec<String> = answer
                .elsewhere_parts
                .iter()
                .take(3)
                .enumerate()
                .filter(|(index, (_, count))| *index == 0 || count.percent_of(answer.elsewhere) >= 10.0)
                .map(|(_, (word, count))| match count.percent_of(answer.elsewhere) {
                    95.0.. => word.clone(),
                    share => format!("{word} {share:.0} %"),
                })
                .collect();
            let time = self.time_and_share(answer.elsewhere, answer);
            let text = sanitize(&format!("{time}   below no line of yours: {}", words.join(", ")));
            // Words for which there is no room are left out.
            self.lines.write(&wrap(&text, ", ", self.lines.columns())[0]);
        }
        for (ns, label) in self.report.outside_ns() {
            self.write_wrapped(&format!("{:>8} {:>5}   ", duration(ns), ""), label, ", ");
        }
    }

    fn write_hot_lines(&mut self, answer: &Answer) {
        if answer.hottest.is_empty() {
            return;
        }
        let profile = &self.report.profile;
        let path = |file: u32| profile.files[file as usize].path.as_str();
        let names = FileNames::new(answer.hottest.iter().map(|line| path(line.position.0)));
        self.lines.write("");
        self.lines.write_coloured(&format!("{:>8} {:>5}   hottest lines", "self", "%"), "1");
        for line in &answer.hottest {
            let row = format!("{} {} ", self.time_and_share(line.self_count, answer), self.flag(line));
            let label = match profile.files[line.position.0 as usize].lines.get(&line.position.1) {
                Some(row) if row.generated_by.is_some() => self.format_position(line.position),
                _ => format!("{}:{}", names.name(path(line.position.0)), line.position.1),
            };
            let share = line.in_c.percent_of(line.self_count);
            let remark = if share >= MIN_C_PERCENT { format!("{share:.0} % in C") } else { String::new() };
            let row = self.append_source(&format!("{row}{label}  "), line.position, &remark);
            self.lines.write_coloured(&row, heat_colour(line.self_count.percent_of(answer.all)));
        }
    }

    fn write_helps(&mut self, answer: &Answer) {
        if answer.helps.is_empty() {
            return;
        }
        self.lines.write("");
        self.lines.write_coloured("what helps", "1");
        let columns = self.lines.columns().saturating_sub(11).max(40);
        for help in &answer.helps {
            for (index, line) in without_middle(wrap(&sanitize(&help.text), " ", columns)).iter().enumerate() {
                let time = match (index, self.report.is_time()) {
                    (0, true) => self.time(help.count),
                    (0, false) => format!("{} %", share(help.count, answer)),
                    _ => String::new(),
                };
                self.lines.write(&format!("{time:>8}   {line}"));
            }
        }
    }

    fn write_notes(&mut self) {
        let notes = &self.report.notes;
        if notes.is_empty() {
            return;
        }
        self.lines.write("");
        let max_notes = if self.style.all { usize::MAX } else { MAX_NOTES };
        let columns = self.lines.columns().saturating_sub(6).max(20);
        for note in notes.iter().take(max_notes) {
            for (index, line) in wrap(&sanitize(note), " ", columns).iter().enumerate() {
                self.lines.write_coloured(&format!("{} {line}", if index == 0 { "note:" } else { "     " }), "33");
            }
        }
        if notes.len() > max_notes {
            self.lines.write_coloured(&format!("{} (-a)", plural(notes.len() - max_notes, "more note")), "33");
        }
    }

    fn time_title(&self) -> &'static str {
        if self.report.is_time() { "time" } else { "samples" }
    }

    fn time(&self, count: Count) -> String {
        if self.report.is_time() { duration(count.weight) } else { group_digits(count.samples) }
    }

    fn time_and_share(&self, count: Count, answer: &Answer) -> String {
        format!("{:>8} {:>5}", self.time(count), share(count, answer))
    }
}

/// Formats a share of all time: two digits, or one decimal below 10 %.
fn share(count: Count, answer: &Answer) -> String {
    match count.percent_of(answer.all) {
        percent @ 9.95.. => format!("{percent:.0}"),
        percent => format!("{percent:.1}"),
    }
}

/// Leaves out the middle of a sentence that is too long. Its end says what a change does to results.
fn without_middle(mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > MAX_BEGINNING_LINES + MAX_END_LINES {
        lines.drain(MAX_BEGINNING_LINES..lines.len() - MAX_END_LINES);
        lines[MAX_BEGINNING_LINES - 1].push_str(" …");
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_keeps_its_end() {
        let sentence = |count: u32| (1..=count).map(|line| line.to_string()).collect::<Vec<_>>();
        assert_eq!(without_middle(sentence(5)), sentence(5));
        assert_eq!(without_middle(sentence(8)), ["1", "2", "3 …", "7", "8"]);
    }
}
