//! Samples accumulated by function and line.

use std::collections::BTreeMap;

use jitlisten_report::{GrowingCompilations, Kind, Recording, Report};

/// Weight of samples in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Weight since the last refresh.
    pub(crate) recent: u64,
    /// Weight since the start or the last reset.
    pub(crate) overall: u64,
}

impl Amount {
    fn add(&mut self, weight: u64) {
        self.recent = self.recent.saturating_add(weight);
        self.overall = self.overall.saturating_add(weight);
    }
}

/// Self weight and total weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) self_time: Amount,
    pub(crate) total: Amount,
}

impl Shares {
    fn clear_recent(&mut self) {
        self.self_time.recent = 0;
        self.total.recent = 0;
    }
}

/// A source line in a function.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineRow {
    pub(crate) shares: Shares,
    pub(crate) text: String,
}

#[derive(Clone, Debug)]
pub(crate) struct FunctionRow {
    pub(crate) kind: Kind,
    pub(crate) shares: Shares,
    pub(crate) lines: BTreeMap<(String, u32), LineRow>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadRow {
    pub(crate) name: String,
    pub(crate) amount: Amount,
}

/// Columns that rows can be sorted by, in the order of the table's columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    SelfRecent,
    TotalRecent,
    SelfOverall,
    TotalOverall,
}

impl Order {
    pub(crate) fn key(self, shares: &Shares) -> (u64, u64, u64) {
        let Shares { self_time, total } = shares;
        match self {
            Order::SelfRecent => (self_time.recent, self_time.overall, total.overall),
            Order::TotalRecent => (total.recent, total.overall, self_time.overall),
            Order::SelfOverall => (self_time.overall, self_time.recent, total.overall),
            Order::TotalOverall => (total.overall, total.recent, self_time.overall),
        }
    }
}

/// Data of the screen: accumulated samples, threads and compilations.
#[derive(Debug, Default)]
pub(crate) struct Table {
    functions: BTreeMap<String, FunctionRow>,
    threads: BTreeMap<u32, ThreadRow>,
    /// Lines of source files, read when a function's source is first shown.
    sources: BTreeMap<String, Vec<String>>,
    pub(crate) all: Amount,
    pub(crate) compiled: Amount,
    pub(crate) without_line: Amount,
    pub(crate) line_zero: Amount,
    /// Weight by library since the last refresh, outside of compiled code.
    pub(crate) outside: Vec<(String, u64)>,
    outside_overall: BTreeMap<String, u64>,
    /// Numba's compilations.
    pub(crate) compilations: GrowingCompilations,
    pub(crate) samples: u64,
    pub(crate) lost: u64,
    pub(crate) refreshes: u64,
}

impl Table {
    pub(crate) fn add_threads(&mut self, recording: &Recording) {
        for row in self.threads.values_mut() {
            row.amount.recent = 0;
        }
        for sample in &recording.samples {
            let Some(thread) = recording.threads.get(sample.thread as usize) else { continue };
            let row = self.threads.entry(thread.tid).or_default();
            row.name.clone_from(&thread.name);
            row.amount.add(sample.weight);
        }
    }

    /// Adds a report of the samples since the last refresh.
    pub(crate) fn add(&mut self, report: &Report, with_sources: bool) {
        let profile = &report.profile;
        for amount in [&mut self.all, &mut self.compiled, &mut self.without_line, &mut self.line_zero] {
            amount.recent = 0;
        }
        for row in self.functions.values_mut() {
            row.shares.clear_recent();
            row.lines.values_mut().for_each(|line| line.shares.clear_recent());
        }
        self.refreshes += 1;
        self.samples += profile.all.samples;
        self.lost += profile.lost;
        self.all.add(profile.all.weight);
        self.compiled.add(profile.compiled.weight);
        self.without_line.add(profile.without_line.weight);
        self.line_zero.add(profile.line_zero.weight);
        self.outside = profile.outside.iter().map(|(name, count)| (name.clone(), count.weight)).collect();
        for (name, weight) in &self.outside {
            let sum = self.outside_overall.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*weight);
        }
        for function in &profile.functions {
            let row = self.function_row_mut(&report.name_with_file(function), function.kind);
            row.shares.self_time.add(function.shares.self_count.weight);
            row.shares.total.add(function.shares.total.weight);
        }
        self.add_lines(report, with_sources);
    }

    /// Sets the recent amounts to those of the whole run, after the program has ended.
    pub(crate) fn end(&mut self) {
        let amounts = [&mut self.all, &mut self.compiled, &mut self.without_line, &mut self.line_zero].into_iter();
        let amounts = amounts.chain(self.threads.values_mut().map(|row| &mut row.amount));
        let functions = self.functions.values_mut();
        let shares = functions.flat_map(|row| {
            let lines = row.lines.values_mut().map(|line| &mut line.shares);
            std::iter::once(&mut row.shares).chain(lines)
        });
        for amount in amounts.chain(shares.flat_map(|shares| [&mut shares.self_time, &mut shares.total])) {
            amount.recent = amount.overall;
        }
        self.outside = self.outside_overall.iter().map(|(name, weight)| (name.clone(), *weight)).collect();
        self.outside.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    }

    fn function_row_mut(&mut self, name: &str, kind: Kind) -> &mut FunctionRow {
        self.functions.entry(name.to_owned()).or_insert_with(|| FunctionRow {
            kind,
            shares: Shares::default(),
            lines: BTreeMap::new(),
        })
    }

    fn add_lines(&mut self, report: &Report, with_sources: bool) {
        let profile = &report.profile;
        for (file, source) in profile.files.iter().zip(&report.sources) {
            if with_sources && !self.sources.contains_key(&file.path) {
                let lines = (1..=source.len()).map(|line| source.line(line).unwrap_or_default().to_owned());
                self.sources.insert(file.path.clone(), lines.collect());
            }
            for (number, line) in &file.lines {
                let text = source.line(*number).unwrap_or_default().trim();
                for function in line.functions.iter().filter_map(|function| profile.functions.get(*function as usize)) {
                    let row = self.function_row_mut(&report.name_with_file(function), function.kind);
                    let row = row.lines.entry((file.path.clone(), *number)).or_default();
                    // Of a line with several functions, such as comprehensions, each has at most its own time.
                    let (line, own) = (line.shares, function.shares);
                    row.shares.self_time.add(line.self_count.weight.min(own.self_count.weight));
                    row.shares.total.add(line.total.weight.min(own.total.weight));
                    if row.text != text {
                        text.clone_into(&mut row.text);
                    }
                }
            }
        }
    }

    /// Returns the functions, sorted. Library functions are included only on request.
    pub(crate) fn sorted_functions(&self, order: Order, libraries: bool) -> Vec<(&String, &FunctionRow)> {
        let is_visible =
            |row: &FunctionRow| libraries || matches!(row.kind, Kind::Compiled | Kind::Python) || !row.lines.is_empty();
        let mut rows: Vec<_> = self.functions.iter().filter(|(_, row)| is_visible(row)).collect();
        rows.sort_by(|a, b| order.key(&b.1.shares).cmp(&order.key(&a.1.shares)).then_with(|| a.0.cmp(b.0)));
        rows
    }

    pub(crate) fn find_function(&self, name: &str) -> Option<&FunctionRow> {
        self.functions.get(name)
    }

    /// Returns the threads, busiest first.
    pub(crate) fn thread_rows(&self) -> Vec<(u32, &ThreadRow)> {
        let mut rows: Vec<_> = self.threads.iter().map(|(tid, row)| (*tid, row)).collect();
        rows.sort_by(|a, b| (b.1.amount.overall, a.0).cmp(&(a.1.amount.overall, b.0)));
        rows
    }

    /// Returns the lines of a source file, if the file was read.
    pub(crate) fn source(&self, path: &str) -> Option<&[String]> {
        self.sources.get(path).map(Vec::as_slice)
    }

    /// Discards all samples, but keeps threads and compilations.
    pub(crate) fn reset(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        let compilations = std::mem::take(&mut self.compilations);
        *self = Table { threads, compilations, ..Table::default() };
        for row in self.threads.values_mut() {
            row.amount = Amount::default();
        }
    }
}

impl FunctionRow {
    pub(crate) fn sorted_lines(&self, order: Order) -> Vec<(&(String, u32), &LineRow)> {
        let mut rows: Vec<_> = self.lines.iter().collect();
        rows.sort_by(|a, b| order.key(&b.1.shares).cmp(&order.key(&a.1.shares)).then_with(|| a.0.cmp(b.0)));
        rows
    }

    /// Returns the lines with a nonzero amount in the column. If all amounts are zero, as in a function that only calls
    /// others, returns the line with the largest total.
    pub(crate) fn nonzero_lines(&self, order: Order) -> Vec<(&(String, u32), &LineRow)> {
        let has_amount = |order: Order, row: &LineRow| order.key(&row.shares).0 != 0;
        let mut rows = self.sorted_lines(order);
        rows.retain(|(_, row)| has_amount(order, row));
        if rows.is_empty() {
            let order = if matches!(order, Order::SelfRecent | Order::TotalRecent) {
                Order::TotalRecent
            } else {
                Order::TotalOverall
            };
            rows = self.sorted_lines(order).into_iter().filter(|(_, row)| has_amount(order, row)).take(1).collect();
        }
        rows
    }
}
