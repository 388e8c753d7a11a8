//! The first screen: the summary, and the hottest lines of the whole program.

use super::{Table, cut, heat, percent, wrapped};
use crate::activity::Activity;
use crate::compilations::{Compilation, Why};
use crate::hottest::{CallingLine, HotLine, calling, hottest};
use crate::printable::printable;
use crate::profile::{Count, Place};
use crate::report::{counted, duration, file_name, grouped};

/// Hottest lines that are shown.
const HOTTEST: usize = 10;
/// Lines of the user's that called what took long elsewhere.
const CALLING: usize = 5;
/// Libraries that are named.
const LIBRARIES: usize = 4;
/// Functions that were compiled, and how much of all compiling is worth a row.
const COMPILED: usize = 5;
const LEAST_COMPILED: u64 = 50;
/// Less of the time that passed was not without a processor.
const LEAST_IDLE: u64 = 20;
/// Columns of `file:line`, at most.
const WIDEST_PLACE: usize = 32;

impl Table<'_> {
    pub(super) fn head(&mut self) {
        let report = self.report;
        let columns = self.style.width.unwrap_or(usize::MAX);
        for line in wrapped(&printable(&report.title()), " · ", columns) {
            self.coloured(&line, "1");
        }
        let command = report.recording.facts.command.join(" ");
        if self.style.all && !command.is_empty() {
            self.coloured(&printable(&format!("recorded by: {command}")), "2");
        }
        for note in &report.notes {
            for (at, line) in wrapped(&printable(note), " ", columns.saturating_sub(6).max(20)).iter().enumerate() {
                self.coloured(&format!("{} {line}", if at == 0 { "note:" } else { "     " }), "33");
            }
        }
        self.summary();
        self.hottest();
        self.calling();
    }

    fn summary(&mut self) {
        self.line("");
        let profile = &self.report.profile;
        let summary = &profile.summary;
        let mut rows = summary.rows();
        rows.sort_by_key(|row| std::cmp::Reverse(row.1));
        for (activity, count) in rows.iter().filter(|(_, count)| !count.is_zero()) {
            let more = match activity {
                Activity::Compiled => self.of_compiled(),
                Activity::Compiling => self.of_compiling(),
                Activity::Library => self.named(&summary.libraries),
                Activity::Importing => self.named(&summary.importing),
                Activity::Waiting => self.named(&summary.waiting),
                Activity::Interpreted | Activity::Collecting => String::new(),
            };
            let what = activity.words();
            let row = format!("{} {}  {what:<18}  {more}", self.seconds(*count), self.percent(*count));
            self.line(&printable(&row));
            if *activity == Activity::Compiling {
                self.compiled_functions();
            }
        }
        if let Some(idle) = self.idle() {
            self.line(&format!("{:>9} {:8}  {:<18}  --wall shows where", duration(idle), "", "off the processor"));
        }
        // Also where that was too short for a sample.
        let again = self.report.compilations.iter().filter(|row| row.why == Why::NoLines).count();
        if again > 0 && !self.report.no_compile {
            let (what, whose) = if again == 1 { ("function", "its entry") } else { ("functions", "their entries") };
            let row = format!("{again} {what} compiled again: {whose} in Numba's cache had no lines");
            self.line(&format!("{:>18}  {row}", ""));
        }
        if profile.lost != 0 {
            self.coloured(&format!("{:>18}  samples lost by the recorder", grouped(profile.lost)), "33");
        }
    }

    /// What of compiled code has no line, or one that is inferred.
    fn of_compiled(&self) -> String {
        let profile = &self.report.profile;
        let rows = [
            (profile.without_line, "without a line table"),
            (profile.line_zero, "line 0: the compiler names no line"),
            (profile.approximate, "~ by the instructions around"),
        ];
        let of_it = |count: Count| percent(count.percent_of(profile.compiled)).trim().to_owned();
        let rows = rows.iter().filter(|(count, _)| !count.is_zero());
        let rows: Vec<String> = rows.map(|(count, what)| format!("{} of it {what}", of_it(*count))).collect();
        rows.join(", ")
    }

    fn of_compiling(&self) -> String {
        let summary = &self.report.profile.summary;
        let mut said = vec![format!("LLVM {}", self.short(summary.in_llvm))];
        // Of a recording that does not say what was compiled.
        let is_known = !self.report.compilations.is_empty();
        let place = summary.compiling_for.first().filter(|_| !is_known && !summary.compiling.is_zero());
        said.extend(place.map(|(place, count)| format!("for {} {}", self.place(*place), self.short(*count))));
        if !is_known {
            said.push("a second run differs where code is cached".to_owned());
        }
        said.join(" · ")
    }

    /// What a second run will take from Numba's cache, and what it compiles again.
    fn next_run(&mut self) {
        let rows = || self.report.compilations.iter().filter(|row| row.is_outermost() && !row.failed);
        let of = |is_cached: bool| {
            let is_it = |row: &&Compilation| match row.why {
                Why::NewEntry | Why::NoLines => is_cached,
                Why::NotCached | Why::Dynamic | Why::Lifted => !is_cached,
                Why::Cached | Why::Other => false,
            };
            rows().filter(is_it).fold((0, 0), |(count, took), row| (count + 1, took + row.took))
        };
        let reason = if rows().any(|row| row.why == Why::NotCached) { "; cache=True not set" } else { "" };
        for ((count, took), what, reason) in [(of(true), "from the cache", ""), (of(false), "again", reason)] {
            if count > 0 {
                let count = counted(count, "compilation");
                self.line(&format!("{:>18}  next run: {count} {what} ({}){reason}", "", duration(took)));
            }
        }
    }

    /// The functions that took longest to compile, with what is compiled for them.
    fn compiled_functions(&mut self) {
        let functions = self.report.compiling_by_function();
        let all: u64 = functions.iter().map(|one| one.took).sum();
        for one in functions.iter().take(COMPILED).filter(|one| one.took >= all / LEAST_COMPILED) {
            let times = if one.count == 1 { String::new() } else { format!(", and {} more", one.count - 1) };
            let row = format!("{:>18}  {:<18}  ", duration(one.took), format!("LLVM {}", duration(one.llvm)));
            let name = format!("{}{}{times}", one.function, one.signature);
            self.coloured(&printable(&format!("{row}{name}")), "2");
        }
        self.next_run();
    }

    /// Seconds where samples are of time, else percent of everything.
    pub(super) fn short(&self, count: Count) -> String {
        match self.report.is_time() {
            true => duration(count.weight),
            false => self.percent(count).trim().to_owned(),
        }
    }

    fn named(&self, names: &[(String, Count)]) -> String {
        let shown = names.iter().take(LIBRARIES).map(|(name, count)| format!("{name} {}", self.short(*count)));
        let mut shown = shown.collect::<Vec<_>>().join(" · ");
        if names.len() > LIBRARIES {
            shown.push_str(" · …");
        }
        shown
    }

    /// What of the time that passed the busiest thread was not on a processor: it waited, or others ran.
    fn idle(&self) -> Option<u64> {
        let report = self.report;
        if report.recording.is_wall() || !report.is_time() || report.no_compile || report.processes().len() != 1 {
            return None;
        }
        let elapsed = report.elapsed()?;
        let busiest = report.profile.threads.iter().map(|row| row.all.weight).max()?;
        let idle = elapsed.checked_sub(busiest)?;
        (idle > elapsed / LEAST_IDLE).then_some(idle)
    }

    fn hottest(&mut self) {
        let lines = hottest(self.report, if self.style.all { HOTTEST * 3 } else { HOTTEST });
        if lines.is_empty() {
            return;
        }
        let places: Vec<String> = lines.iter().map(|line| self.place(line.place)).collect();
        let columns = columns_of(&places);
        self.line("");
        let total = if self.is_wide() { "  total %" } else { "" };
        self.coloured(&format!("  {:>7}   self %{total}  hottest lines", self.unit()), "1");
        for (line, place) in lines.iter().zip(&places) {
            let HotLine { own, total, .. } = *line;
            let total = if self.is_wide() { format!(" {}", self.percent(total)) } else { String::new() };
            let kind = if line.compiled { "compiled" } else { "Python" };
            let row = format!("{} {}{total}  {place:<columns$}  {kind:<8}  ", self.seconds(own), self.percent(own));
            let colour = heat(own.percent_of(self.report.profile.all));
            let row = self.with_source(&row, line.place, &self.remark(line));
            self.coloured(&row, colour);
        }
    }

    fn calling(&mut self) {
        let lines = calling(self.report, CALLING);
        if lines.is_empty() {
            return;
        }
        let places: Vec<String> = lines.iter().map(|line| self.place(line.place)).collect();
        let columns = columns_of(&places);
        self.line("");
        self.coloured(&format!("  {:>7}        %  your lines, with what they called in libraries", self.unit()), "1");
        for (line, place) in lines.iter().zip(&places) {
            let CallingLine { below, compiling, .. } = *line;
            let row = format!("{} {}  {place:<columns$}  ", self.seconds(below), self.percent(below));
            let share = compiling.percent_of(below);
            let remark = if share >= 10.0 { format!("{share:.0} % compiling") } else { String::new() };
            let row = self.with_source(&row, line.place, &remark);
            self.line(&row);
        }
    }

    fn unit(&self) -> &'static str {
        if self.report.is_time() { "seconds" } else { "" }
    }

    fn seconds(&self, count: Count) -> String {
        if self.report.is_time() { format!("{:>9}", duration(count.weight)) } else { format!("{:>9}", "") }
    }

    /// `prog.py:12`, with the place it was called from where it was generated and has no file.
    fn place(&self, (file, line): Place) -> String {
        let path = self.report.profile.files.get(file as usize).map_or("", |file| file.path.as_str());
        let place = format!("{}:{line}", printable(file_name(path)));
        let line = self.report.profile.files.get(file as usize).and_then(|file| file.lines.get(&line));
        if let Some(caller) = line.and_then(|line| line.generated_by) {
            return format!("{place} by {}", self.place(caller));
        }
        place
    }

    /// What else is to be said of a line.
    fn remark(&self, line: &HotLine) -> String {
        let share = line.in_c.percent_of(line.own);
        let in_c = match share {
            _ if !self.is_wide() => "",
            90.0.. => "nearly all in C",
            40.0.. => "half in C",
            _ => "",
        };
        let path = &self.report.profile.files[line.place.0 as usize].path;
        let mut loops = self.report.loops().iter().filter(|of| of.line == line.place.1 && of.path == *path);
        let flag = if loops.any(|of| !of.advice.is_empty()) { "⚑" } else { "" };
        [in_c, flag].iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ")
    }

    /// A row, then the source of its line, cut so that a remark has its place at the end.
    fn with_source(&self, row: &str, (file, line): Place, remark: &str) -> String {
        let of = |(file, line): Place| self.report.sources.get(file as usize).and_then(|source| source.line(line));
        // Generated code has no file: the line that it ran for.
        let line_of = || self.report.profile.files.get(file as usize)?.lines.get(&line)?.generated_by;
        let source = of((file, line)).or_else(|| of(line_of()?)).unwrap_or_default();
        let source = if line == 0 { "(code of no line)" } else { source.trim() };
        let source = printable(source);
        let columns = unicode_width::UnicodeWidthStr::width;
        let remark = if remark.is_empty() { String::new() } else { format!("  {remark}") };
        match self.style.width {
            Some(width) if width >= columns(row) + columns(remark.as_str()) + 12 => {
                format!("{row}{}{remark}", cut(&source, width - columns(row) - columns(remark.as_str())))
            }
            _ => format!("{row}{source}{remark}"),
        }
    }
}

fn columns_of(places: &[String]) -> usize {
    places
        .iter()
        .map(|place| unicode_width::UnicodeWidthStr::width(place.as_str()))
        .max()
        .unwrap_or(0)
        .min(WIDEST_PLACE)
}
