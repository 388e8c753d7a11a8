//! The first screen: where all the time went, and the hottest lines of the whole program.

use super::{Table, cut, heat, percent, wrapped};
use crate::activity::Activity;
use crate::compilations::Why;
use crate::hottest::{CallingLine, HotLine, calling, hottest};
use crate::printable::printable;
use crate::profile::{Count, Place};
use crate::report::{duration, file_name, grouped};

/// Hottest lines that are shown.
const HOTTEST: usize = 10;
/// Lines of the user's that called what took long elsewhere.
const CALLING: usize = 5;
/// Libraries that are named.
const LIBRARIES: usize = 4;
/// Functions that were compiled.
const COMPILED: usize = 2;
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
            self.coloured(&printable(&format!("note: {note}")), "33");
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
        }
        if let Some(idle) = self.idle() {
            self.line(&format!("{:>9} {:8}  {:<18}  --wall shows where", duration(idle), "", "off the processor"));
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
        let functions = self.report.compiling_by_function();
        said.extend(functions.iter().take(COMPILED).map(|one| format!("{} {}", one.function, duration(one.took))));
        // Of a recording that does not say what was compiled.
        let place = summary.compiling_for.first().filter(|_| functions.is_empty() && !summary.compiling.is_zero());
        said.extend(place.map(|(place, count)| format!("for {} {}", self.place(*place), self.short(*count))));
        let again = self.report.compilations.iter().filter(|row| row.why == Why::NoLines).count();
        if again > 0 {
            said.push(format!("{again} compiled again: the cache had no lines"));
        }
        said.push("a second run differs where code is cached".to_owned());
        said.join(" · ")
    }

    /// Seconds where samples are of time, else percent of everything.
    fn short(&self, count: Count) -> String {
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
        let source = self.report.sources.get(file as usize).and_then(|source| source.line(line)).unwrap_or_default();
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
