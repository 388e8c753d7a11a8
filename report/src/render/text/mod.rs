//! Report for a terminal or a pipe.

mod answer;
mod compilations;
mod diff;
mod head;
mod lines;
mod sources;
mod why;

pub use compilations::compilations_to_text;
pub use diff::diff_to_text;
pub use why::{SourceLine, why_to_text};

use unicode_width::UnicodeWidthStr as _;

use crate::profile::{Count, FunctionRow, LibraryRow, Shares};
use crate::report::{Group, Imbalance, Report};
use crate::sanitize::sanitize;
use crate::symbols::Kind;
use crate::words::{file_name, group_digits, plural, precise_duration};

use lines::Lines;

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
    /// Show only functions with lines in files whose path contains this string, regardless of their share.
    pub file: Option<&'a str>,
    /// Show only functions whose name contains this string, regardless of their share.
    pub function: Option<&'a str>,
    /// How the program ended, if it failed.
    pub failure: Option<&'a str>,
    /// Commands that show more of the recording.
    pub next_step: Option<&'a str>,
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

/// Maximum number of functions without [`Style::all`].
const MAX_FUNCTIONS: usize = 15;
/// Maximum number of libraries without [`Style::all`].
const MAX_LIBRARIES: usize = 8;
/// Maximum number of functions named for each library.
const MAX_LIBRARY_FUNCTIONS: usize = 3;
/// Maximum number of the slowest and of the fastest processes without [`Style::all`].
const MAX_PROCESSES: usize = 10;
/// Maximum number of unbalanced lines without [`Style::all`].
const MAX_IMBALANCES: usize = 10;
/// Minimum share of a function in all samples.
const MIN_PERCENT: f64 = 2.0;
/// Minimum share of a compiled function in the samples of compiled code.
const MIN_COMPILED_PERCENT: f64 = 1.0;
/// Returns the whole report.
pub fn to_text(report: &Report, style: Style<'_>) -> String {
    let mut table = Table { report, style, lines: Lines::new(style.width, style.colour) };
    table.write_answer();
    if !style.is_selected() {
        table.write_summary();
    }
    if style.all {
        table.write_hottest();
    }
    table.write_functions();
    if style.hosts {
        table.write_groups("machine", &report.hosts());
    }
    if style.processes {
        table.write_processes();
    }
    if style.threads {
        table.write_threads();
    }
    table.write_files();
    table.lines.into_text()
}

struct Table<'a> {
    report: &'a Report,
    style: Style<'a>,
    lines: Lines,
}

impl Table<'_> {
    fn percent(&self, count: Count) -> String {
        percent(count.percent_of(self.report.profile.all))
    }

    fn write_functions(&mut self) {
        let (report, style) = (self.report, self.style);
        let is_selected = style.is_selected();
        let [yours, theirs] = shown_functions(report, style);
        self.lines.write("");
        self.write_titles(if is_selected { "functions" } else { "your functions" }, "1");
        yours.iter().for_each(|row| self.write_function(row));
        if yours.is_empty() {
            self.lines.write(match report.profile.all.samples {
                0 => "no samples",
                _ if is_selected => "no function of such a file or name",
                _ if report.profile.functions.iter().any(FunctionRow::is_listed) => "no hot function of yours (-a)",
                _ => "no function of yours has samples; below perf, names need `jitlisten run`",
            });
        }
        if is_selected {
            return;
        }
        let hidden = report.profile.functions.iter().filter(|row| row.is_listed() && report.is_user_function(row));
        let hidden = hidden.count().saturating_sub(yours.len());
        if hidden != 0 && !yours.is_empty() {
            self.lines.write_coloured(&format!("{} with smaller shares (-a)", plural(hidden, "more function")), "2");
        }
        self.write_calls();
        self.write_libraries();
        if style.all && !theirs.is_empty() {
            self.lines.write("");
            self.write_titles("functions of libraries", "1");
            theirs.iter().for_each(|row| self.write_function(row));
        }
    }

    fn write_function(&mut self, row: &FunctionRow) {
        self.lines.write(&sanitize(&format!("{} | {}", self.columns(&row.shares), row.name)));
        let is_hot = row.shares.self_count.percent_of(self.report.profile.all) >= MIN_PERCENT;
        let compilations = match self.style.all {
            true => &row.compilations,
            false if is_hot => row.several_compilations(),
            false => &[],
        };
        for (name, shares) in compilations.iter().filter(|_| row.compilations.len() > 1) {
            let name = if self.style.all { name.clone() } else { self.lines.shorten(name) };
            self.lines.write_coloured(&sanitize(&format!("{} |   {name}", self.columns(shares))), "2");
        }
    }

    /// Writes the C functions that compiled code called, with everything that they called.
    fn write_calls(&mut self) {
        let (all, style) = (self.report.profile.all, self.style);
        let is_shown = |count: &Count| style.all || count.percent_of(all) >= MIN_PERCENT;
        let calls: Vec<&(String, Count)> =
            self.report.answer().calls.iter().filter(|(_, count)| is_shown(count)).collect();
        let max_rows = if style.all { usize::MAX } else { MAX_FUNCTIONS };
        if calls.is_empty() {
            return;
        }
        self.lines.write("");
        let samples = if self.lines.is_wide() { "   samples" } else { "" };
        self.lines.write_coloured(&format!("          total %{samples} | C functions that compiled code called"), "1");
        for (name, count) in calls.into_iter().take(max_rows) {
            let samples =
                if self.lines.is_wide() { format!(" {:>9}", group_digits(count.samples)) } else { String::new() };
            self.lines.write(&sanitize(&format!("         {}{samples} | {name}", self.percent(*count))));
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
        self.lines.write("");
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
            self.lines.write(&sanitize(&text));
        }
    }

    fn write_titles(&mut self, heading: &str, colour: &str) {
        let samples = if self.lines.is_wide() { "   samples" } else { "" };
        self.lines.write_coloured(&format!("  self %  total %{samples} | {heading}"), colour);
    }

    fn columns(&self, shares: &Shares) -> String {
        let columns = format!("{} {}", self.percent(shares.self_count), self.percent(shares.total));
        if self.lines.is_wide() { format!("{columns} {:>9}", group_digits(shares.self_count.samples)) } else { columns }
    }

    /// Returns as many blanks as [`columns`](Table::columns) are wide.
    fn blank_columns(&self) -> String {
        " ".repeat(self.columns(&Shares::default()).width())
    }

    /// Writes the slowest and the fastest processes, and the lines and functions whose time differs between them.
    fn write_processes(&mut self) {
        let processes = self.report.processes();
        if self.style.all || processes.len() <= 2 * MAX_PROCESSES + 1 {
            self.write_groups("process", &processes);
        } else {
            let (slowest, rest) = processes.split_at(MAX_PROCESSES);
            let (middle, fastest) = rest.split_at(rest.len() - MAX_PROCESSES);
            self.write_groups("process", slowest);
            let shares =
                [&middle[0], &middle[middle.len() - 1]].map(|group| group.all.percent_of(self.report.profile.all));
            let count = group_digits(middle.len() as u64);
            self.lines
                .write(&format!("{count} more processes with {:.1} % to {:.1} % (use --all)", shares[0], shares[1]));
            self.write_group_rows(fastest);
        }
        let report = self.report;
        self.write_imbalances("self time of a line", &report.imbalanced_lines(), |(file, line)| {
            format!("{}:{line}", file_name(&report.profile.files[*file as usize].path))
        });
        self.write_imbalances("total time of a function", &report.imbalanced_functions(), |function| {
            report.name_with_file(&report.profile.functions[*function])
        });
    }

    fn write_imbalances<T>(&mut self, subject: &str, rows: &[Imbalance<T>], name: impl Fn(&T) -> String) {
        if rows.is_empty() {
            return;
        }
        self.lines.write("");
        let amount = |weight: u64| {
            if self.report.is_time() { precise_duration(weight) } else { group_digits(weight) }
        };
        let title =
            format!("{:>10} {:>10} {:>10} {:>10} | {subject}, and its slowest process", "gain", "min", "mean", "max");
        self.lines.write_coloured(&title, "1");
        for row in rows.iter().take(if self.style.all { usize::MAX } else { MAX_IMBALANCES }) {
            let slowest = match row.slowest.label.as_str() {
                "" => format!("process {}", row.slowest.pid),
                label => sanitize(label),
            };
            let columns =
                [row.gain(), row.min, row.mean, row.max].map(|weight| format!("{:>10}", amount(weight))).join(" ");
            self.lines.write(&format!("{columns} | {}  {slowest}", sanitize(&name(&row.subject))));
        }
    }

    fn write_groups(&mut self, heading: &str, groups: &[Group]) {
        self.lines.write("");
        self.lines.write_coloured(&format!("  self %  in compiled code   samples | {heading}"), "1");
        self.write_group_rows(groups);
    }

    fn write_group_rows(&mut self, groups: &[Group]) {
        let has_hosts = self.report.hosts().len() > 1;
        for group in groups {
            let (name, host) = (sanitize(&group.name), sanitize(&group.host));
            let name_and_process = match group.pid {
                0 => host,
                pid => {
                    let name = if group.label.is_empty() { name } else { sanitize(&group.label) };
                    format!("{name} (process {pid}{})", host_suffix(has_hosts, &group.host))
                }
            };
            let compiled = percent(group.compiled.percent_of(group.all));
            let threads = plural(group.threads, "thread");
            self.lines.write(&format!(
                "{} {compiled:>18} {:>9} | {name_and_process}, {threads}",
                self.percent(group.all),
                group_digits(group.all.samples),
            ));
        }
    }

    fn write_threads(&mut self) {
        self.lines.write("");
        self.lines.write_coloured("  self %  in compiled code   samples | thread", "1");
        let threads = &self.report.profile.threads;
        let mut rows: Vec<_> = threads.iter().filter(|row| row.ran).collect();
        rows.sort_by(|a, b| b.all.cmp(&a.all).then(a.thread.tid.cmp(&b.thread.tid)));
        let has_hosts = self.report.hosts().len() > 1;
        for row in rows {
            let thread = &row.thread;
            let name = sanitize(&thread.name);
            let compiled = percent(row.compiled.percent_of(row.all));
            let process = match thread.process_label() {
                label if label.is_empty() => String::new(),
                label => format!("{}, ", sanitize(&label)),
            };
            self.lines.write(&format!(
                "{} {compiled:>18} {:>9} | {name} ({process}process {}, thread {}{})",
                self.percent(row.all),
                group_digits(row.all.samples),
                thread.pid,
                thread.tid,
                host_suffix(has_hosts, &thread.host)
            ));
        }
        let idle = || threads.iter().filter(|row| !row.ran && !row.idle.is_zero());
        if idle().next().is_some() {
            let samples = group_digits(idle().map(|row| row.idle.samples).sum());
            let count = plural(idle().count(), "idle thread");
            self.lines.write(&format!("{:>8} {:>18} {samples:>9} | {count}, outside the 100 %", "", ""));
        }
    }
}

/// Returns ` on HOST` if there are several machines.
fn host_suffix(has_several: bool, host: &str) -> String {
    if has_several && !host.is_empty() { format!(" on {}", sanitize(host)) } else { String::new() }
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

/// Returns the functions of a table: the user's, and those of libraries. Without `all`, only hot functions that belong
/// to the user or are compiled.
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
    let rows = report.profile.functions.iter().filter(|row| row.is_listed()).filter(is_shown);
    let (yours, theirs): (Vec<_>, Vec<_>) = rows.partition(|row| is_selected || report.is_user_function(row));
    let max_rows = if style.all { usize::MAX } else { MAX_FUNCTIONS };
    [yours, theirs].map(|rows| rows.into_iter().take(max_rows).collect())
}
