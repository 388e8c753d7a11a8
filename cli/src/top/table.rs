//! Samples so far, by function and line.

use std::collections::BTreeMap;

use jitlisten_report::{GrowingCompilations, Kind, Recording, Report};

/// How much: in the last second, and since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// Of the last look.
    pub(crate) now: u64,
    /// Since the beginning, or since it was set to zero.
    pub(crate) ever: u64,
}

impl Amount {
    fn add(&mut self, weight: u64) {
        self.now = self.now.saturating_add(weight);
        self.ever = self.ever.saturating_add(weight);
    }
}

/// Self and total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) own: Amount,
    pub(crate) total: Amount,
}

impl Shares {
    fn next(&mut self) {
        self.own.now = 0;
        self.total.now = 0;
    }
}

/// A line of a function.
#[derive(Clone, Debug, Default)]
pub(crate) struct LineRow {
    pub(crate) shares: Shares,
    pub(crate) text: String,
}

/// A function with its lines.
#[derive(Clone, Debug)]
pub(crate) struct FunctionRow {
    pub(crate) kind: Kind,
    pub(crate) shares: Shares,
    /// By file and line.
    pub(crate) lines: BTreeMap<(String, u32), LineRow>,
}

/// A thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadRow {
    pub(crate) name: String,
    pub(crate) amount: Amount,
}

/// What the rows are ordered by: the columns of the table, from the left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    OwnNow,
    TotalNow,
    OwnEver,
    TotalEver,
}

impl Order {
    pub(crate) fn key(self, shares: &Shares) -> (u64, u64, u64) {
        let Shares { own, total } = shares;
        match self {
            Order::OwnNow => (own.now, own.ever, total.ever),
            Order::TotalNow => (total.now, total.ever, own.ever),
            Order::OwnEver => (own.ever, own.now, total.ever),
            Order::TotalEver => (total.ever, total.now, own.ever),
        }
    }
}

/// A function of Python with its file: each module has a `<module>`.
fn named(report: &Report, function: &jitlisten_report::FunctionRow) -> String {
    match (function.kind, function.lines) {
        (Kind::Python, Some(at)) => {
            let path = &report.profile.files[at.file as usize].path;
            let name = path.rsplit('/').next().unwrap_or(path);
            let folder = path.strip_suffix("/__init__.py").and_then(|folder| folder.rsplit('/').next());
            match folder {
                Some(folder) => format!("{} ({folder}/{name})", function.name),
                None => format!("{} ({name})", function.name),
            }
        }
        _ => function.name.clone(),
    }
}

/// The rows.
#[derive(Debug, Default)]
pub(crate) struct Table {
    functions: BTreeMap<String, FunctionRow>,
    threads: BTreeMap<u32, ThreadRow>,
    /// Text of the sources of the function that is looked at.
    sources: BTreeMap<String, Vec<String>>,
    pub(crate) all: Amount,
    pub(crate) compiled: Amount,
    pub(crate) without_line: Amount,
    pub(crate) line_zero: Amount,
    /// Libraries in the last second, and since the beginning.
    pub(crate) outside: Vec<(String, u64)>,
    outside_ever: BTreeMap<String, u64>,
    /// What Numba has compiled.
    pub(crate) compilations: GrowingCompilations,
    pub(crate) samples: u64,
    pub(crate) lost: u64,
    pub(crate) looks: u64,
}

impl Table {
    /// The threads of all samples.
    pub(crate) fn threads(&mut self, recording: &Recording) {
        for row in self.threads.values_mut() {
            row.amount.now = 0;
        }
        for sample in &recording.samples {
            let Some(thread) = recording.threads.get(sample.thread as usize) else { continue };
            let row = self.threads.entry(thread.tid).or_default();
            row.name.clone_from(&thread.name);
            row.amount.add(sample.weight);
        }
    }

    /// A second's samples.
    pub(crate) fn add(&mut self, report: &Report, with_sources: bool) {
        let profile = &report.profile;
        for amount in [&mut self.all, &mut self.compiled, &mut self.without_line, &mut self.line_zero] {
            amount.now = 0;
        }
        for row in self.functions.values_mut() {
            row.shares.next();
            row.lines.values_mut().for_each(|line| line.shares.next());
        }
        self.looks += 1;
        self.samples += profile.all.samples;
        self.lost += profile.lost;
        self.all.add(profile.all.weight);
        self.compiled.add(profile.compiled.weight);
        self.without_line.add(profile.without_line.weight);
        self.line_zero.add(profile.line_zero.weight);
        self.outside = profile.outside.iter().map(|(name, count)| (name.clone(), count.weight)).collect();
        for (name, weight) in &self.outside {
            let sum = self.outside_ever.entry(name.clone()).or_default();
            *sum = sum.saturating_add(*weight);
        }
        for function in &profile.functions {
            let row = self.function(&named(report, function), function.kind);
            row.shares.own.add(function.shares.own.weight);
            row.shares.total.add(function.shares.total.weight);
        }
        self.add_lines(report, with_sources);
    }

    /// The program has ended: everything counts, not only the last second.
    pub(crate) fn end(&mut self) {
        let amounts = [&mut self.all, &mut self.compiled, &mut self.without_line, &mut self.line_zero].into_iter();
        let amounts = amounts.chain(self.threads.values_mut().map(|row| &mut row.amount));
        let functions = self.functions.values_mut();
        let shares = functions.flat_map(|row| {
            let lines = row.lines.values_mut().map(|line| &mut line.shares);
            std::iter::once(&mut row.shares).chain(lines)
        });
        for amount in amounts.chain(shares.flat_map(|shares| [&mut shares.own, &mut shares.total])) {
            amount.now = amount.ever;
        }
        self.outside = self.outside_ever.iter().map(|(name, weight)| (name.clone(), *weight)).collect();
        self.outside.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    }

    fn function(&mut self, name: &str, kind: Kind) -> &mut FunctionRow {
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
                    let row = self.function(&named(report, function), function.kind);
                    let row = row.lines.entry((file.path.clone(), *number)).or_default();
                    row.shares.own.add(line.shares.own.weight);
                    row.shares.total.add(line.shares.total.weight);
                    if row.text != text {
                        text.clone_into(&mut row.text);
                    }
                }
            }
        }
    }

    /// Functions in order, those of libraries only if they are wanted.
    pub(crate) fn functions(&self, order: Order, libraries: bool) -> Vec<(&String, &FunctionRow)> {
        let wanted =
            |row: &FunctionRow| libraries || matches!(row.kind, Kind::Compiled | Kind::Python) || !row.lines.is_empty();
        let mut rows: Vec<_> = self.functions.iter().filter(|(_, row)| wanted(row)).collect();
        rows.sort_by(|a, b| order.key(&b.1.shares).cmp(&order.key(&a.1.shares)).then_with(|| a.0.cmp(b.0)));
        rows
    }

    pub(crate) fn function_of(&self, name: &str) -> Option<&FunctionRow> {
        self.functions.get(name)
    }

    /// Threads, the busiest first.
    pub(crate) fn thread_rows(&self) -> Vec<(u32, &ThreadRow)> {
        let mut rows: Vec<_> = self.threads.iter().map(|(tid, row)| (*tid, row)).collect();
        rows.sort_by(|a, b| (b.1.amount.ever, a.0).cmp(&(a.1.amount.ever, b.0)));
        rows
    }

    /// The text of a source that has been read.
    pub(crate) fn source(&self, path: &str) -> Option<&[String]> {
        self.sources.get(path).map(Vec::as_slice)
    }

    /// Begins anew.
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
    /// Its lines in order.
    pub(crate) fn hottest(&self, order: Order) -> Vec<(&(String, u32), &LineRow)> {
        let mut rows: Vec<_> = self.lines.iter().collect();
        rows.sort_by(|a, b| order.key(&b.1.shares).cmp(&order.key(&a.1.shares)).then_with(|| a.0.cmp(b.0)));
        rows
    }

    /// Those that have something in the column. Where none has, as in a function that only calls: the line that calls
    /// most.
    pub(crate) fn hottest_with_some(&self, order: Order) -> Vec<(&(String, u32), &LineRow)> {
        let has = |order: Order, row: &LineRow| order.key(&row.shares).0 != 0;
        let mut rows = self.hottest(order);
        rows.retain(|(_, row)| has(order, row));
        if rows.is_empty() {
            let order =
                if matches!(order, Order::OwnNow | Order::TotalNow) { Order::TotalNow } else { Order::TotalEver };
            rows = self.hottest(order).into_iter().filter(|(_, row)| has(order, row)).take(1).collect();
        }
        rows
    }
}
