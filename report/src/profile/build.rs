//! Builds the profile in one pass over the distinct stacks.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::libraries::{Libraries, frames};
use super::summary::Sums;
use super::tree::{Parent, Trees};
use super::{Count, Detail, Extent, FunctionRow, Inlined, Line, Profile, Shares, SourceLines, ThreadRow, stack_counts};
use crate::activity::{Activities, Activity, StackActivity, is_generated};
use crate::recording::Recording;
use crate::symbols::{Frame, Kind, Symbols, is_entry};

/// A line: source and number.
type Spot = (u32, u32);

/// A caller, the line it calls from, and the callee.
type Edge = (u32, Option<Spot>, u32);

pub(super) fn build(recording: &Recording, symbols: &Symbols, activities: Activities, detail: Detail) -> Profile {
    let mut builder = Builder::new(symbols, &activities, detail);
    let mut by_stack: FxHashMap<u32, Vec<(u32, Count)>> = FxHashMap::default();
    for ((stack, thread), count) in stack_counts(recording) {
        by_stack.entry(stack).or_default().push((thread, count));
    }
    builder.threads = vec![(Count::default(), Count::default()); recording.threads.len()];
    builder.working = vec![false; recording.threads.len()];
    for (stack, threads) in by_stack {
        builder.stack(recording.stacks.get(stack), activities.get(stack), &threads);
    }
    let mut profile = builder.finish(recording);
    profile.activities = activities;
    profile
}

struct Builder<'a> {
    symbols: &'a Symbols,
    activities: &'a Activities,
    sums: Sums,
    libraries: Libraries,
    detail: Detail,
    /// Of each function the number of its row.
    rows: Vec<u32>,
    row_names: Vec<(String, Kind)>,
    profile: Profile,
    lines: FxHashMap<Spot, Line>,
    functions: Vec<Shares>,
    row_shares: Vec<Shares>,
    /// Of each row and thread, if that is wanted.
    row_threads: FxHashMap<(u32, u32), Shares>,
    /// Of a row and one of its sources, with the weight.
    extents: FxHashMap<(u32, u32), (Extent, u64)>,
    outside: FxHashMap<String, Count>,
    edges: FxHashMap<Edge, Count>,
    /// Lines of generated code, and those of the user's that they ran for.
    generated: FxHashMap<(Spot, Spot), Count>,
    trees: Trees,
    threads: Vec<(Count, Count)>,
    working: Vec<bool>,
    seen: Seen,
}

/// What a stack has, each once.
#[derive(Default)]
struct Seen {
    spots: Vec<(Spot, u32)>,
    functions: Vec<u32>,
    edges: Vec<Edge>,
    calls: Vec<u32>,
}

impl Seen {
    fn clear(&mut self) {
        self.spots.clear();
        self.functions.clear();
        self.edges.clear();
        self.calls.clear();
    }

    fn once(&mut self) {
        fn once<T: Ord>(all: &mut Vec<T>) {
            all.sort_unstable();
            all.dedup();
        }
        once(&mut self.spots);
        once(&mut self.functions);
        once(&mut self.edges);
        once(&mut self.calls);
    }
}

impl<'a> Builder<'a> {
    fn new(symbols: &'a Symbols, activities: &'a Activities, detail: Detail) -> Builder<'a> {
        let mut numbers: FxHashMap<(&str, Kind, &str), u32> = FxHashMap::default();
        let (mut rows, mut row_names) = (Vec::new(), Vec::new());
        for function in &symbols.functions {
            // Compilations of one function are in different images.
            let module = if function.kind == Kind::Compiled { "" } else { function.module.as_str() };
            let next = numbers.len() as u32;
            let row = *numbers.entry((&function.base, function.kind, module)).or_insert_with(|| {
                row_names.push((function.base.clone(), function.kind));
                next
            });
            rows.push(row);
        }
        Builder {
            symbols,
            activities,
            sums: Sums::default(),
            libraries: Libraries::default(),
            detail,
            row_shares: vec![Shares::default(); row_names.len()],
            rows,
            row_names,
            profile: Profile::default(),
            lines: FxHashMap::default(),
            functions: vec![Shares::default(); symbols.functions.len()],
            row_threads: FxHashMap::default(),
            extents: FxHashMap::default(),
            outside: FxHashMap::default(),
            edges: FxHashMap::default(),
            generated: FxHashMap::default(),
            trees: Trees::default(),
            threads: Vec::new(),
            working: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn row(&self, frame: &Frame) -> u32 {
        self.rows[frame.function as usize]
    }

    /// Whether the lines of a frame are wanted.
    fn in_table(&self, frame: &Frame) -> bool {
        match self.symbols.function(frame).kind {
            Kind::Compiled => true,
            Kind::Python => frame.line.is_some(),
            Kind::Native => self.detail.native_lines && frame.source.is_some(),
            _ => false,
        }
    }

    fn is_python_line(&self, frame: &Frame) -> bool {
        self.symbols.function(frame).kind == Kind::Python && frame.line.is_some()
    }

    fn spot(&self, frame: &Frame) -> Option<Spot> {
        self.in_table(frame).then_some(frame.source.zip(frame.line)).flatten()
    }

    fn stack(&mut self, locations: &[u32], done: &StackActivity, threads: &[(u32, Count)]) {
        let mut count = Count::default();
        for (thread, part) in threads {
            count += *part;
            self.working[*thread as usize] |= done.owner.is_some();
        }
        self.profile.all += count;
        self.sums.add(done, count);
        self.libraries.add(self.activities, done, frames(self.symbols, locations), &self.rows, count);
        let Some((leaf, callers)) = locations.split_first() else { return };
        self.leaf(*leaf, done, count, threads);
        self.below(done, count);
        self.seen.clear();
        let mut inner = None;
        for location in std::iter::once(leaf).chain(callers) {
            inner = self.location(*location, inner);
        }
        self.seen.once();
        self.add_totals(count, threads);
    }

    /// The line that it is the time of, and that of the user's which called it.
    fn below(&mut self, done: &StackActivity, count: Count) {
        if let Some(spot) = done.user {
            let line = self.lines.entry(spot).or_default();
            line.below += count;
            if done.activity == Activity::Compiling {
                line.below_compiling += count;
            }
        }
        let Some(spot) = done.line else { return };
        let line = self.lines.entry(spot).or_default();
        line.hot += count;
        if done.in_c {
            line.in_c += count;
        }
        if let Some(user) = done.user.filter(|_| is_generated(&self.symbols.sources[spot.0 as usize])) {
            *self.generated.entry((spot, user)).or_default() += count;
        }
    }

    fn add_own(&mut self, frame: &Frame, count: Count, threads: &[(u32, Count)]) {
        self.functions[frame.function as usize].own += count;
        let row = self.row(frame);
        self.row_shares[row as usize].own += count;
        if self.detail.by_thread {
            for (thread, part) in threads {
                self.row_threads.entry((row, *thread)).or_default().own += *part;
            }
        }
    }

    /// Self: the innermost frame of the innermost place, and where an interpreted line called C, that line.
    fn leaf(&mut self, location: u32, done: &StackActivity, count: Count, threads: &[(u32, Count)]) {
        let Some(frame) = self.symbols.frames(location).first() else { return };
        let owner = done.owner.filter(|owner| done.in_c && self.is_python_line(owner) && !self.in_table(frame));
        let frame = owner.as_ref().unwrap_or(frame);
        self.add_own(frame, count, threads);
        let in_table = self.in_table(frame);
        let is_python = self.is_python_line(frame);
        for (thread, part) in threads {
            let (all, compiled) = &mut self.threads[*thread as usize];
            *all += *part;
            if in_table && !is_python {
                *compiled += *part;
            }
        }
        if !in_table {
            *self.outside.entry(outside_name(self.symbols, frame)).or_default() += count;
            return;
        }
        let whole = if is_python { &mut self.profile.interpreted } else { &mut self.profile.compiled };
        *whole += count;
        let Some(spot) = self.spot(frame) else {
            self.profile.without_line += count;
            return;
        };
        if spot.1 == 0 && !is_python {
            self.profile.line_zero += count;
        }
        let by_thread = self.detail.by_thread;
        let line = self.lines.entry(spot).or_default();
        line.shares.own += count;
        if frame.approximate {
            line.approximate += count;
            self.profile.approximate += count;
        }
        if by_thread {
            for (thread, part) in threads {
                line.by_thread.entry(*thread).or_default().own += *part;
            }
        }
        if owner.is_none() {
            self.inlined(location, Some(count));
        }
    }

    /// Notes everything at a location; returns its outermost row, which the next location calls.
    fn location(&mut self, location: u32, mut inner: Option<(u32, bool)>) -> Option<(u32, bool)> {
        for frame in self.symbols.frames(location) {
            let (row, spot, in_table) = (self.row(frame), self.spot(frame), self.in_table(frame));
            self.seen.functions.push(frame.function);
            if let Some(spot) = spot {
                self.seen.spots.push((spot, row));
            }
            if let Some((callee, callee_in_table)) = inner
                && (in_table || callee_in_table)
                // What calls itself through an entry is not recursive.
                && !(row == callee && is_entry(&self.symbols.function(frame).name))
            {
                self.seen.edges.push((row, spot, callee));
            }
            inner = Some((row, in_table));
        }
        self.inlined(location, None);
        inner
    }

    /// The trees below each line of a location: notes their calls, or adds self to the innermost.
    fn inlined(&mut self, location: u32, own: Option<Count>) {
        let frames = self.symbols.frames(location);
        if frames.len() > 16 {
            // Every level has a tree of all below it: of very deep inlining only the outermost is kept.
            return self.tree_below(frames, own);
        }
        for end in 2..=frames.len() {
            self.tree_below(&frames[..end], own);
        }
    }

    /// `frames`: the innermost first, the last one is the line that the tree stands below.
    fn tree_below(&mut self, frames: &[Frame], own: Option<Count>) {
        let Some((line, calls)) = frames.split_last() else { return };
        let Some(spot) = self.spot(line) else { return };
        let mut parent = Parent::Line(spot.0, spot.1);
        let mut last = None;
        for frame in calls.iter().rev() {
            let call = (self.row(frame), frame.source, frame.line.unwrap_or_default());
            let node = self.trees.node(parent, call);
            if own.is_none() {
                self.seen.calls.push(node);
            }
            (parent, last) = (Parent::Call(node), Some(node));
        }
        if let (Some(node), Some(count)) = (last, own) {
            self.trees.add_own(node, count);
        }
    }

    fn add_totals(&mut self, count: Count, threads: &[(u32, Count)]) {
        let mut before = None;
        for (spot, row) in &self.seen.spots {
            let line = self.lines.entry(*spot).or_default();
            if before != Some(*spot) {
                line.shares.total += count;
                if self.detail.by_thread {
                    for (thread, part) in threads {
                        line.by_thread.entry(*thread).or_default().total += *part;
                    }
                }
            }
            before = Some(*spot);
            if !line.functions.contains(row) {
                line.functions.push(*row);
            }
            if spot.1 != 0 {
                let one = Extent { file: spot.0, first: spot.1, last: spot.1 };
                let (extent, weight) = self.extents.entry((*row, spot.0)).or_insert((one, 0));
                (extent.first, extent.last) = (extent.first.min(spot.1), extent.last.max(spot.1));
                *weight = weight.saturating_add(count.weight);
            }
        }
        let mut rows: Vec<u32> = Vec::with_capacity(self.seen.functions.len());
        for function in &self.seen.functions {
            self.functions[*function as usize].total += count;
            rows.push(self.rows[*function as usize]);
        }
        rows.sort_unstable();
        rows.dedup();
        for row in rows {
            self.row_shares[row as usize].total += count;
            if self.detail.by_thread {
                for (thread, part) in threads {
                    self.row_threads.entry((row, *thread)).or_default().total += *part;
                }
            }
        }
        for edge in &self.seen.edges {
            *self.edges.entry(*edge).or_default() += count;
        }
        for node in &self.seen.calls {
            self.trees.add_total(*node, count);
        }
    }

    fn finish(mut self, recording: &Recording) -> Profile {
        let mut profile = std::mem::take(&mut self.profile);
        profile.lost = recording.lost;
        profile.outside = std::mem::take(&mut self.outside).into_iter().collect();
        profile.outside.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        profile.threads = recording
            .threads
            .iter()
            .zip(self.threads.iter().zip(&self.working))
            .map(|(thread, ((all, compiled), works))| ThreadRow {
                thread: thread.clone(),
                all: *all,
                compiled: *compiled,
                works: *works,
            })
            .collect();
        self.finish_tables(&mut profile);
        profile
    }

    fn finish_tables(self, profile: &mut Profile) {
        let order = row_order(&self.row_names, &self.row_shares);
        let new_row: FxHashMap<u32, u32> = order.iter().zip(0..).map(|(old, new)| (*old, new)).collect();
        profile.rows = self.rows.iter().map(|old| new_row.get(old).copied().unwrap_or(u32::MAX)).collect();
        let files = file_order(self.symbols, &self.lines);
        let file_numbers: FxHashMap<u32, u32> = files.iter().zip(0..).map(|(source, file)| (*source, file)).collect();
        let file_of = |source: Option<u32>| source.and_then(|source| file_numbers.get(&source).copied());
        let mut trees = self.trees.finish(&file_of);
        profile.summary = self.sums.finish(self.activities, &file_of);
        profile.libraries = self.libraries.finish(self.activities, &new_row);
        profile.files = files
            .iter()
            .map(|source| SourceLines { path: self.symbols.sources[*source as usize].clone(), lines: BTreeMap::new() })
            .collect();
        let mut calls: FxHashMap<Spot, FxHashMap<u32, Count>> = FxHashMap::default();
        let mut callers: FxHashMap<u32, Vec<(u32, Option<Spot>, Count)>> = FxHashMap::default();
        for ((caller, spot, callee), count) in &self.edges {
            if let Some(spot) = spot {
                *calls.entry(*spot).or_default().entry(new_row[callee]).or_default() += *count;
            }
            let from = spot.and_then(|(source, line)| Some((file_of(Some(source))?, line)));
            callers.entry(*callee).or_default().push((new_row[caller], from, *count));
        }
        let mut generated: Vec<((Spot, Spot), Count)> = self.generated.into_iter().collect();
        generated.sort_by_key(|(spots, count)| (*count, *spots));
        // The heaviest comes last.
        let generated: FxHashMap<Spot, Spot> = generated.into_iter().map(|(spots, _)| spots).collect();
        for (spot, mut line) in self.lines {
            line.generated_by = generated.get(&spot).and_then(|user| Some((file_of(Some(user.0))?, user.1)));
            line.inlined = trees.remove(&spot).unwrap_or_default();
            renumber(&mut line.inlined, &new_row);
            line.functions.iter_mut().for_each(|row| *row = new_row[row]);
            line.functions.sort_unstable();
            line.calls = calls.remove(&spot).map(|calls| calls.into_iter().collect()).unwrap_or_default();
            line.calls.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
            let Some(file) = file_of(Some(spot.0)) else { continue };
            profile.files[file as usize].lines.insert(spot.1, line);
        }
        let mut compilations: FxHashMap<u32, Vec<(String, Shares)>> = FxHashMap::default();
        for ((function, shares), row) in self.symbols.functions.iter().zip(&self.functions).zip(&self.rows) {
            if !shares.total.is_zero() {
                compilations.entry(*row).or_default().push((function.name.clone(), *shares));
            }
        }
        let mut extents: FxHashMap<u32, (u64, Extent)> = FxHashMap::default();
        for ((row, source), (extent, weight)) in self.extents {
            let Some(file) = file_of(Some(source)) else { continue };
            let one = (weight, Extent { file, ..extent });
            let best = extents.entry(row).or_insert(one);
            if (weight, std::cmp::Reverse(file)) > (best.0, std::cmp::Reverse(best.1.file)) {
                *best = one;
            }
        }
        let mut by_thread: FxHashMap<u32, BTreeMap<u32, Shares>> = FxHashMap::default();
        for ((row, thread), shares) in self.row_threads {
            by_thread.entry(row).or_default().insert(thread, shares);
        }
        let of_libraries: FxHashSet<u32> =
            profile.libraries.iter().flat_map(|library| &library.functions).map(|(row, _)| *row).collect();
        for old in order {
            let (name, kind) = self.row_names[old as usize].clone();
            let mut compilations = merge_compilations(compilations.remove(&old).unwrap_or_default());
            compilations.sort_by(|a, b| b.1.own.cmp(&a.1.own).then_with(|| a.0.cmp(&b.0)));
            let mut callers = callers.remove(&old).unwrap_or_default();
            callers.sort_by(|a, b| b.2.cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
            let lines = extents.get(&old).map(|(_, lines)| *lines);
            let shares = self.row_shares[old as usize];
            let by_thread = by_thread.remove(&old).unwrap_or_default();
            let is_of_library = of_libraries.contains(&new_row[&old]);
            let row = FunctionRow { name, kind, shares, by_thread, compilations, lines, is_of_library, callers };
            profile.functions.push(row);
        }
    }
}

/// The same compilation may be known from several images: a copy of it is in each object that calls it.
fn merge_compilations(all: Vec<(String, Shares)>) -> Vec<(String, Shares)> {
    let mut merged: BTreeMap<String, Shares> = BTreeMap::new();
    for (name, shares) in all {
        let sum = merged.entry(name).or_default();
        sum.own += shares.own;
        sum.total += shares.total;
    }
    merged.into_iter().collect()
}

fn renumber(calls: &mut [Inlined], new_row: &FxHashMap<u32, u32>) {
    for call in calls {
        call.function = new_row[&call.function];
        renumber(&mut call.inlined, new_row);
    }
}

fn row_order(names: &[(String, Kind)], shares: &[Shares]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..names.len() as u32).filter(|row| !shares[*row as usize].total.is_zero()).collect();
    order.sort_by(|a, b| {
        let (left, right) = (&shares[*a as usize], &shares[*b as usize]);
        (right.own, right.total).cmp(&(left.own, left.total)).then_with(|| names[*a as usize].cmp(&names[*b as usize]))
    });
    order
}

fn file_order(symbols: &Symbols, lines: &FxHashMap<Spot, Line>) -> Vec<u32> {
    let mut weights: FxHashMap<u32, (Count, Count)> = FxHashMap::default();
    for ((source, _), line) in lines {
        let weight = weights.entry(*source).or_default();
        weight.0 += line.shares.own;
        weight.1 += line.shares.total;
    }
    let mut order: Vec<(u32, (Count, Count))> = weights.into_iter().collect();
    let path = |source: u32| &symbols.sources[source as usize];
    order.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| path(a.0).cmp(path(b.0))));
    order.into_iter().map(|(source, _)| source).collect()
}

fn outside_name(symbols: &Symbols, frame: &Frame) -> String {
    let function = symbols.function(frame);
    match function.kind {
        Kind::Kernel => "[kernel]".to_owned(),
        Kind::Python => "Python".to_owned(),
        Kind::Unknown => "[unknown]".to_owned(),
        _ => function.module.clone(),
    }
}
