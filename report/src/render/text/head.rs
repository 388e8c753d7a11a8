//! Time by activity, and with [`Style::all`](super::Style::all) the hottest lines of the whole program.

use unicode_width::UnicodeWidthStr as _;

use super::lines::{truncate, wrap};
use super::{Table, heat_colour, percent};
use crate::loops::Loop;
use crate::profile::activity::Activity;
use crate::profile::hottest::HotLine;
use crate::profile::{Count, SourcePosition};
use crate::recording::compilations::{Compilation, Why};
use crate::sanitize::sanitize;
use crate::words::{duration, file_name, group_digits, plural};

const MAX_HOT_LINES: usize = 30;
const MAX_NAMED_LIBRARIES: usize = 4;
/// Maximum number of compiled functions; those with less than 1/50 of the compile time are omitted.
const MAX_COMPILED_FUNCTIONS: usize = 5;
const COMPILED_SHARE_DIVISOR: u64 = 50;
/// Time off the processor is reported if it exceeds 1/20 of the elapsed time.
const IDLE_SHARE_DIVISOR: u64 = 20;
/// Minimum share of C functions in a line's time that is mentioned.
pub(super) const MIN_C_PERCENT: f64 = 20.0;
/// Maximum width of `file:line`.
const MAX_POSITION_COLUMNS: usize = 32;

impl Table<'_> {
    /// Writes the time by activity, with details.
    pub(super) fn write_summary(&mut self) {
        self.lines.write("");
        let event = self.report.event().trim_end_matches(":u");
        let samples = format!("{} of {event}", plural(self.report.profile.all.samples as usize, "sample"));
        self.lines.write_coloured(&format!("  {:>7}        %  activity ({})", self.unit(), sanitize(&samples)), "1");
        let profile = &self.report.profile;
        let summary = &profile.summary;
        let mut rows = summary.rows();
        rows.sort_by_key(|row| std::cmp::Reverse(row.1));
        for (activity, count) in rows.iter().filter(|(_, count)| !count.is_zero()) {
            let separator = if *activity == Activity::Compiled { ", " } else { " · " };
            let remark = match activity {
                Activity::Compiled => self.compiled_remark(),
                Activity::Compiling => self.compiling_remark(),
                Activity::Library => self.top_names(&summary.libraries),
                Activity::Importing => self.top_names(&summary.importing),
                Activity::Waiting => self.top_names(&summary.waiting),
                Activity::Interpreted => self.c_below_python(),
                Activity::Collecting | Activity::FirstUse | Activity::Loading | Activity::Ending => String::new(),
            };
            let label = activity.words();
            let row = format!("{} {}  {label:<21}  ", self.seconds(*count), self.percent(*count));
            self.write_wrapped(&row, &remark, separator);
            if *activity == Activity::Compiling {
                self.write_compiled_functions();
            }
        }
        if let Some(idle) = self.idle_ns() {
            self.lines.write(&format!(
                "{:>9} {:8}  {:<18}  --wall shows where",
                duration(idle),
                "",
                "off the processor"
            ));
        }
        for (ns, label) in self.report.outside_ns() {
            self.write_wrapped(&format!("{:>9} {:8}  ", duration(ns), ""), label, ", ");
        }
        // Recompilations are reported even if they were too short for a sample.
        let recompiled = self.report.compilations.iter().filter(|row| row.why == Why::NoLines).count();
        if recompiled > 0 && !self.report.no_compile {
            let (noun, entry) =
                if recompiled == 1 { ("function", "its entry") } else { ("functions", "their entries") };
            let row = format!("{recompiled} {noun} compiled again: {entry} in Numba's cache had no lines");
            self.lines.write(&format!("{:>18}  {row}", ""));
        }
        if profile.lost != 0 {
            self.lines
                .write_coloured(&format!("{:>18}  samples lost by the recorder", group_digits(profile.lost)), "33");
        }
    }

    /// Writes a row whose text continues below its start if the line is too short: split between items, or between
    /// words if an item is too long.
    pub(super) fn write_wrapped(&mut self, row: &str, text: &str, separator: &str) {
        let columns = self.lines.columns().saturating_sub(row.width()).max(16);
        let items = wrap(&sanitize(text), separator, columns);
        for (index, line) in items.iter().flat_map(|items| wrap(items, " ", columns)).enumerate() {
            let begin = if index == 0 { row.to_owned() } else { " ".repeat(row.width()) };
            self.lines.write(&(begin + &line));
        }
    }

    /// Describes compiled code without a line or with an inferred one.
    fn compiled_remark(&self) -> String {
        let profile = &self.report.profile;
        let rows = [
            (profile.without_line, "without a line table"),
            (profile.line_zero, "line 0: the compiler names no line"),
            (profile.approximate, "~ by the instructions around"),
        ];
        let share = |count: Count| percent(count.percent_of(profile.summary.compiled)).trim().to_owned();
        let rows = rows.iter().filter(|(count, _)| !count.is_zero());
        let rows: Vec<String> = rows.map(|(count, label)| format!("{} of it {label}", share(*count))).collect();
        rows.join(", ")
    }

    fn c_below_python(&self) -> String {
        match self.top_names(&self.report.answer().c_below_python) {
            names if names.is_empty() => names,
            names => format!("of it {names}"),
        }
    }

    fn compiling_remark(&self) -> String {
        let summary = &self.report.profile.summary;
        let mut parts = vec![format!("LLVM {}", self.short_amount(summary.in_llvm))];
        // Recordings of perf do not contain the compilations.
        let is_known = !self.report.compilations.is_empty();
        let hottest_line = summary.compiling_for.first().filter(|_| !is_known && !summary.compiling.is_zero());
        parts.extend(hottest_line.map(|(hottest_line, count)| {
            format!("for {} {}", self.format_position(*hottest_line), self.short_amount(*count))
        }));
        let uses_numba =
            || self.report.symbols.functions.iter().any(|function| function.module.starts_with("libllvmlite"));
        if !is_known && uses_numba() {
            parts.push("a second run differs where code is cached".to_owned());
        }
        parts.join(" · ")
    }

    /// Reports which functions a second run will load from Numba's cache, and which ones it will compile again.
    fn write_next_run(&mut self) {
        let rows = || self.report.compilations.iter().filter(|row| row.is_outermost() && !row.failed);
        // Numbers of functions and of loops of ufuncs, and the time of both.
        let total_if = |is_cached: bool| {
            let matches = |row: &&Compilation| if is_cached { row.why.is_stored() } else { row.why.is_repeated() };
            rows().filter(matches).fold((0, 0, 0), |(functions, loops, took), row| {
                let (is_function, is_loop) = (usize::from(!row.is_loop), usize::from(row.is_loop));
                (functions + is_function, loops + is_loop, took + row.compiling_ns())
            })
        };
        let owners = self.report.profile.activities.owners();
        let is_forgotten = |row: &Compilation| row.why == Why::NotCached && owners.package(&row.file).is_none();
        let reason = if rows().any(is_forgotten) { "; cache=True not set" } else { "" };
        for ((functions, loops, took), source) in [(total_if(true), "from the cache"), (total_if(false), "again")] {
            let count = match (functions, loops) {
                (0, 0) => continue,
                (0, _) => plural(loops, "ufunc loop"),
                _ => plural(functions, "compilation"),
            };
            let reason = match source {
                "again" if reason.is_empty() && functions == 0 => "; Numba never caches these",
                "again" => reason,
                _ => "",
            };
            self.lines.write(&format!("{:>18}  next run: {count} {source} ({}){reason}", "", duration(took)));
        }
    }

    /// Reports the functions that took longest to compile, including nested compilations.
    fn write_compiled_functions(&mut self) {
        let functions = self.report.compiling_by_function();
        let total: u64 = functions.iter().map(|function| function.cpu_ns).sum();
        for function in functions
            .iter()
            .take(MAX_COMPILED_FUNCTIONS)
            .filter(|function| function.cpu_ns >= total / COMPILED_SHARE_DIVISOR)
        {
            let times = if function.count <= 1 { String::new() } else { format!(", and {} more", function.count - 1) };
            let row =
                format!("{:>18}  {:<18}  ", duration(function.cpu_ns), format!("LLVM {}", duration(function.llvm)));
            let name = format!("{}{}", function.function, function.signature);
            let name = if self.style.all { name } else { self.lines.shorten(&name) } + &times;
            self.lines.write_coloured(&sanitize(&format!("{row}{name}")), "2");
        }
        self.write_next_run();
    }

    /// Formats seconds if samples measure time, otherwise percent of the total.
    pub(super) fn short_amount(&self, count: Count) -> String {
        match self.report.is_time() {
            true => duration(count.weight),
            false => self.percent(count).trim().to_owned(),
        }
    }

    fn top_names(&self, names: &[(String, Count)]) -> String {
        let text =
            names.iter().take(MAX_NAMED_LIBRARIES).map(|(name, count)| format!("{name} {}", self.short_amount(*count)));
        let mut text = text.collect::<Vec<_>>().join(" · ");
        if names.len() > MAX_NAMED_LIBRARIES {
            text.push_str(" · …");
        }
        text
    }

    /// Returns the elapsed time that the busiest thread waited.
    pub(super) fn idle_ns(&self) -> Option<u64> {
        let report = self.report;
        if report.recording.is_wall() || !report.is_time() || report.no_compile || report.processes().len() != 1 {
            return None;
        }
        let elapsed = report.elapsed()?;
        let busiest = report.profile.threads.iter().map(|row| row.all.weight).max()?;
        let idle = elapsed.checked_sub(busiest.saturating_add(report.recording.facts.busiest_run_queue_ns))?;
        (idle > elapsed / IDLE_SHARE_DIVISOR).then_some(idle)
    }

    pub(super) fn write_hottest(&mut self) {
        let lines = self.report.profile.hottest(MAX_HOT_LINES);
        if lines.is_empty() {
            return;
        }
        let positions: Vec<String> = lines.iter().map(|line| self.format_position(line.position)).collect();
        let columns = max_columns(&positions);
        self.lines.write("");
        let total = if self.lines.is_wide() { "  total %" } else { "" };
        self.lines.write_coloured(&format!("  {:>7}   self %{total}  hottest lines", self.unit()), "1");
        for (line, position) in lines.iter().zip(&positions) {
            let HotLine { self_count, total, .. } = *line;
            let total = if self.lines.is_wide() { format!(" {}", self.percent(total)) } else { String::new() };
            let kind = if line.compiled { "compiled" } else { "Python" };
            let row = format!(
                "{} {}{total}  {position:<columns$}  {kind:<8}  ",
                self.seconds(self_count),
                self.percent(self_count)
            );
            let colour = heat_colour(self_count.percent_of(self.report.profile.all));
            let row = self.append_source(&row, line.position, &self.remark(line));
            self.lines.write_coloured(&row, colour);
        }
    }

    fn unit(&self) -> &'static str {
        if self.report.is_time() { "seconds" } else { "" }
    }

    fn seconds(&self, count: Count) -> String {
        if self.report.is_time() { format!("{:>9}", duration(count.weight)) } else { format!("{:>9}", "") }
    }

    /// Returns the position of a line, as in `prog.py:12`. For generated code without a file, adds the user line that
    /// ran it.
    pub(super) fn format_position(&self, (file, line): SourcePosition) -> String {
        let path = self.report.profile.files.get(file as usize).map_or("", |file| file.path.as_str());
        let position = format!("{}:{line}", sanitize(file_name(path)));
        let line = self.report.profile.files.get(file as usize).and_then(|file| file.lines.get(&line));
        if let Some(caller) = line.and_then(|line| line.generated_by) {
            return format!("{position} by {}", self.format_position(caller));
        }
        position
    }

    /// Returns remarks on a line: time in C functions, and a flag for advice.
    fn remark(&self, line: &HotLine) -> String {
        let share = line.in_c.percent_of(line.self_count);
        let in_c_remark = if share >= MIN_C_PERCENT { format!("{share:.0} % in C") } else { String::new() };
        [in_c_remark.as_str(), self.flag(line).trim()]
            .iter()
            .filter(|word| !word.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Returns ⚑ if there is advice for a loop at the line, otherwise a blank.
    pub(super) fn flag(&self, line: &HotLine) -> &'static str {
        let path = &self.report.profile.files[line.position.0 as usize].path;
        if self.report.loops_at(path, line.position.1).any(Loop::has_change) { "⚑" } else { " " }
    }

    /// Appends the source of a line, which is truncated so that the remark fits at the end.
    pub(super) fn append_source(&self, row: &str, (file, line): SourcePosition, remark: &str) -> String {
        let source_line =
            |(file, line): SourcePosition| self.report.sources.get(file as usize).and_then(|source| source.line(line));
        // Generated code has no file, so show the user line that ran it.
        let generated_by = || self.report.profile.files.get(file as usize)?.lines.get(&line)?.generated_by;
        let source = source_line((file, line)).or_else(|| source_line(generated_by()?)).unwrap_or_default();
        let source = if line == 0 { "(code of no line)" } else { source.trim() };
        let source = sanitize(source);
        let width_of = unicode_width::UnicodeWidthStr::width;
        let remark = if remark.is_empty() { String::new() } else { format!("  {remark}") };
        match self.style.width {
            Some(width) if width >= width_of(row) + width_of(remark.as_str()) + 12 => {
                format!("{row}{}{remark}", truncate(&source, width - width_of(row) - width_of(remark.as_str())))
            }
            _ => format!("{row}{source}{remark}"),
        }
    }
}

fn max_columns(positions: &[String]) -> usize {
    positions
        .iter()
        .map(|position| unicode_width::UnicodeWidthStr::width(position.as_str()))
        .max()
        .unwrap_or(0)
        .min(MAX_POSITION_COLUMNS)
}
