//! Construction of the profile, in one pass over the distinct stacks.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::activity::{Activities, Activity, StackActivity};
use super::libraries::{Libraries, frames};
use super::marks::Marks;
use super::owners::is_generated;
use super::summary::Sums;
use super::tree::{Parent, Trees};
use super::{
    Count, Detail, Extent, FunctionRow, Inlined, Line, Profile, Shares, SourceLines, ThreadRow, heaviest_first,
    thread_stack_counts,
};
use crate::recording::Recording;
use crate::symbols::{Frame, Kind, Symbols, is_entry};

/// Key of a source line: source index and line number.
type LineKey = (u32, u32);

/// Call: caller's row, line of the call, and callee's row.
type Edge = (u32, Option<LineKey>, u32);

pub(super) fn build(recording: &Recording, symbols: &Symbols, activities: Activities, detail: Detail) -> Profile {
    let mut builder = Builder::new(symbols, &activities, detail);
    builder.threads = vec![(Count::default(), Count::default()); recording.threads.len()];
    builder.ran = vec![false; recording.threads.len()];
    builder.idle = vec![Count::default(); recording.threads.len()];
    let mut threads = Vec::new();
    for counts in thread_stack_counts(&recording.samples).chunk_by(|((a, _), _), ((b, _), _)| a == b) {
        let ((stack, _), _) = counts[0];
        threads.clear();
        threads.extend(counts.iter().map(|((_, thread), count)| (*thread, *count)));
        builder.add_stack(recording.stacks.get(stack), activities.get(stack), &threads);
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
    /// Row of each function.
    rows: Vec<u32>,
    row_names: Vec<(String, Kind)>,
    profile: Profile,
    lines: FxHashMap<LineKey, Line>,
    functions: Vec<Shares>,
    row_shares: Vec<Shares>,
    /// Shares by row and thread, if requested.
    row_threads: FxHashMap<(u32, u32), Shares>,
    /// Line range and weight by row and source.
    extents: FxHashMap<(u32, u32), (Extent, u64)>,
    outside: FxHashMap<String, Count>,
    edges: FxHashMap<Edge, Count>,
    /// Samples by line of generated code and user line that ran that code.
    generated: FxHashMap<(LineKey, LineKey), Count>,
    trees: Trees,
    threads: Vec<(Count, Count)>,
    ran: Vec<bool>,
    idle: Vec<Count>,
    seen: StackItems,
}

/// Distinct items found in one stack.
struct StackItems {
    line_keys: Vec<(LineKey, u32)>,
    functions: Vec<u32>,
    rows: Vec<u32>,
    known_functions: Marks,
    known_rows: Marks,
    edges: Vec<Edge>,
    calls: Vec<u32>,
}

impl StackItems {
    fn new(functions: usize, rows: usize) -> StackItems {
        StackItems {
            line_keys: Vec::new(),
            functions: Vec::new(),
            rows: Vec::new(),
            known_functions: Marks::new(functions),
            known_rows: Marks::new(rows),
            edges: Vec::new(),
            calls: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.line_keys.clear();
        self.functions.clear();
        self.rows.clear();
        self.known_functions.clear();
        self.known_rows.clear();
        self.edges.clear();
        self.calls.clear();
    }

    fn add_function(&mut self, function: u32, row: u32) {
        if !self.known_functions.insert(function) {
            return;
        }
        self.functions.push(function);
        if self.known_rows.insert(row) {
            self.rows.push(row);
        }
    }

    fn deduplicate(&mut self) {
        fn deduplicate<T: Ord>(items: &mut Vec<T>) {
            items.sort_unstable();
            items.dedup();
        }
        deduplicate(&mut self.line_keys);
        deduplicate(&mut self.edges);
        deduplicate(&mut self.calls);
    }
}

impl<'a> Builder<'a> {
    fn new(symbols: &'a Symbols, activities: &'a Activities, detail: Detail) -> Builder<'a> {
        let mut row_indices: FxHashMap<(&str, Kind, &str), u32> = FxHashMap::default();
        let (mut rows, mut row_names) = (Vec::new(), Vec::new());
        for function in &symbols.functions {
            // The compilations of a function are in different images, so the module does not tell compiled functions
            // apart.
            let module = if function.kind == Kind::Compiled { "" } else { function.module.as_str() };
            let next = row_indices.len() as u32;
            let row = *row_indices.entry((&function.base, function.kind, module)).or_insert_with(|| {
                row_names.push((function.base.clone(), function.kind));
                next
            });
            rows.push(row);
        }
        Builder {
            symbols,
            activities,
            sums: Sums::default(),
            libraries: Libraries::new(activities.names.len()),
            seen: StackItems::new(symbols.functions.len(), row_names.len()),
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
            ran: Vec::new(),
            idle: Vec::new(),
        }
    }

    fn row(&self, frame: &Frame) -> u32 {
        self.rows[frame.function as usize]
    }

    /// Returns true if the frame's line belongs in the line table.
    fn is_listed(&self, frame: &Frame) -> bool {
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

    fn line_key(&self, frame: &Frame) -> Option<LineKey> {
        self.is_listed(frame).then_some(frame.source.zip(frame.line)).flatten()
    }

    fn add_stack(&mut self, locations: &[u32], stack_activity: &StackActivity, threads: &[(u32, Count)]) {
        let mut count = Count::default();
        threads.iter().for_each(|(_, thread_count)| count += *thread_count);
        if self.activities.is_idle(stack_activity) {
            self.profile.idle += count;
            for (thread, thread_count) in threads {
                self.idle[*thread as usize] += *thread_count;
            }
            return;
        }
        threads.iter().for_each(|(thread, _)| self.ran[*thread as usize] = true);
        self.profile.all += count;
        self.sums.add(stack_activity, count);
        self.libraries.add(self.activities, stack_activity, frames(self.symbols, locations), &self.rows, count);
        let Some((leaf, callers)) = locations.split_first() else { return };
        self.add_self(*leaf, stack_activity, count, threads);
        self.charge_lines(stack_activity, count);
        self.seen.clear();
        let mut inner = None;
        for location in std::iter::once(leaf).chain(callers) {
            inner = self.visit_location(*location, inner);
        }
        self.seen.deduplicate();
        self.add_totals(count, threads);
    }

    /// Charges the time of a stack to its line, and to the user line that led to that line.
    fn charge_lines(&mut self, stack_activity: &StackActivity, count: Count) {
        if let Some(line_key) = stack_activity.user {
            let line = self.lines.entry(line_key).or_default();
            line.below += count;
            if stack_activity.activity == Activity::Compiling {
                line.below_compiling += count;
            }
        }
        let Some(line_key) = stack_activity.line else { return };
        let line = self.lines.entry(line_key).or_default();
        line.hot += count;
        if stack_activity.in_c {
            line.in_c += count;
        }
        if let Some(user) = stack_activity.user.filter(|_| is_generated(&self.symbols.sources[line_key.0 as usize])) {
            *self.generated.entry((line_key, user)).or_default() += count;
        }
    }

    fn charge_function(&mut self, frame: &Frame, count: Count, threads: &[(u32, Count)]) {
        self.functions[frame.function as usize].self_count += count;
        let row = self.row(frame);
        self.row_shares[row as usize].self_count += count;
        if self.detail.by_thread {
            for (thread, thread_count) in threads {
                self.row_threads.entry((row, *thread)).or_default().self_count += *thread_count;
            }
        }
    }

    /// Charges self time to the innermost frame, or to the interpreted line that called a C function.
    fn add_self(&mut self, location: u32, stack_activity: &StackActivity, count: Count, threads: &[(u32, Count)]) {
        let Some(frame) = self.symbols.frames(location).first() else { return };
        let owner = stack_activity
            .owner
            .filter(|owner| stack_activity.in_c && self.is_python_line(owner) && !self.is_listed(frame));
        let frame = owner.as_ref().unwrap_or(frame);
        self.charge_function(frame, count, threads);
        let is_listed = self.is_listed(frame);
        let is_python = self.is_python_line(frame);
        for (thread, thread_count) in threads {
            let (all, compiled) = &mut self.threads[*thread as usize];
            *all += *thread_count;
            if is_listed && !is_python {
                *compiled += *thread_count;
            }
        }
        if !is_listed {
            *self.outside.entry(outside_name(self.symbols, frame)).or_default() += count;
            return;
        }
        let group_count = if is_python { &mut self.profile.interpreted } else { &mut self.profile.compiled };
        *group_count += count;
        let Some(line_key) = self.line_key(frame) else {
            self.profile.without_line += count;
            return;
        };
        if line_key.1 == 0 && !is_python {
            self.profile.line_zero += count;
        }
        let by_thread = self.detail.by_thread;
        let line = self.lines.entry(line_key).or_default();
        line.shares.self_count += count;
        if frame.approximate {
            line.approximate += count;
            self.profile.approximate += count;
        }
        if by_thread {
            for (thread, part) in threads {
                line.by_thread.entry(*thread).or_default().self_count += *part;
            }
        }
        if owner.is_none() {
            self.visit_inlined(location, Some(count));
        }
    }

    /// Records the frames at a location. Returns the row of its outermost function, which the next location calls.
    fn visit_location(&mut self, location: u32, mut inner: Option<(u32, bool)>) -> Option<(u32, bool)> {
        for frame in self.symbols.frames(location) {
            let (row, line_key, is_listed) = (self.row(frame), self.line_key(frame), self.is_listed(frame));
            self.seen.add_function(frame.function, row);
            if let Some(line_key) = line_key {
                self.seen.line_keys.push((line_key, row));
            }
            if let Some((callee, callee_in_table)) = inner
                && (is_listed || callee_in_table)
                // A function called through its own entry point is not recursive.
                && !(row == callee && is_entry(&self.symbols.function(frame).name))
            {
                self.seen.edges.push((row, line_key, callee));
            }
            inner = Some((row, is_listed));
        }
        self.visit_inlined(location, None);
        inner
    }

    /// Visits the tree of inlined calls below each line of a location. Records the calls, or adds self time to the
    /// innermost one.
    fn visit_inlined(&mut self, location: u32, self_count: Option<Count>) {
        let frames = self.symbols.frames(location);
        if frames.len() > 16 {
            // Each level has a tree of everything below it, so for very deep inlining only the outermost tree is built.
            return self.add_inlined_tree(frames, self_count);
        }
        for end in 2..=frames.len() {
            self.add_inlined_tree(&frames[..end], self_count);
        }
    }

    /// Adds the inlined calls to the tree of the outermost frame's line. `frames` are innermost first.
    fn add_inlined_tree(&mut self, frames: &[Frame], self_count: Option<Count>) {
        let Some((line, calls)) = frames.split_last() else { return };
        let Some(line_key) = self.line_key(line) else { return };
        let mut parent = Parent::Line(line_key.0, line_key.1);
        let mut last = None;
        for frame in calls.iter().rev() {
            let call = (self.row(frame), frame.source, frame.line.unwrap_or_default());
            let node = self.trees.intern(parent, call);
            if self_count.is_none() {
                self.seen.calls.push(node);
            }
            (parent, last) = (Parent::Call(node), Some(node));
        }
        if let (Some(node), Some(count)) = (last, self_count) {
            self.trees.add_self(node, count);
        }
    }

    fn add_totals(&mut self, count: Count, threads: &[(u32, Count)]) {
        let mut last_line_key = None;
        for (line_key, row) in &self.seen.line_keys {
            let line = self.lines.entry(*line_key).or_default();
            if last_line_key != Some(*line_key) {
                line.shares.total += count;
                if self.detail.by_thread {
                    for (thread, thread_count) in threads {
                        line.by_thread.entry(*thread).or_default().total += *thread_count;
                    }
                }
            }
            last_line_key = Some(*line_key);
            if !line.functions.contains(row) {
                line.functions.push(*row);
            }
            if line_key.1 != 0 {
                let line_extent = Extent { file: line_key.0, first: line_key.1, last: line_key.1 };
                let (extent, weight) = self.extents.entry((*row, line_key.0)).or_insert((line_extent, 0));
                (extent.first, extent.last) = (extent.first.min(line_key.1), extent.last.max(line_key.1));
                *weight = weight.saturating_add(count.weight);
            }
        }
        for function in &self.seen.functions {
            self.functions[*function as usize].total += count;
        }
        for row in &self.seen.rows {
            self.row_shares[*row as usize].total += count;
            if self.detail.by_thread {
                for (thread, thread_count) in threads {
                    self.row_threads.entry((*row, *thread)).or_default().total += *thread_count;
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
        profile.outside = heaviest_first(std::mem::take(&mut self.outside));
        profile.threads = recording
            .threads
            .iter()
            .zip(self.threads.iter().zip(self.ran.iter().zip(&self.idle)))
            .map(|(thread, ((all, compiled), (ran, idle)))| ThreadRow {
                thread: thread.clone(),
                all: *all,
                compiled: *compiled,
                ran: *ran,
                idle: *idle,
            })
            .collect();
        self.finish_tables(&mut profile);
        profile
    }

    fn finish_tables(self, profile: &mut Profile) {
        let order = row_order(&self.row_names, &self.row_shares);
        let new_rows: FxHashMap<u32, u32> = order.iter().zip(0..).map(|(old_row, new)| (*old_row, new)).collect();
        profile.rows = self.rows.iter().map(|old_row| new_rows.get(old_row).copied().unwrap_or(u32::MAX)).collect();
        let files = file_order(self.symbols, &self.lines);
        let file_numbers: FxHashMap<u32, u32> = files.iter().zip(0..).map(|(source, file)| (*source, file)).collect();
        let file_of = |source: Option<u32>| source.and_then(|source| file_numbers.get(&source).copied());
        let mut trees = self.trees.finish(&file_of);
        profile.summary = self.sums.finish(self.activities, &file_of);
        profile.libraries = self.libraries.finish(self.activities, &new_rows);
        profile.files = files
            .iter()
            .map(|source| SourceLines { path: self.symbols.sources[*source as usize].clone(), lines: BTreeMap::new() })
            .collect();
        let mut calls: FxHashMap<LineKey, FxHashMap<u32, Count>> = FxHashMap::default();
        let mut callers: FxHashMap<u32, Vec<(u32, Option<LineKey>, Count)>> = FxHashMap::default();
        for ((caller, line_key, callee), count) in &self.edges {
            if let Some(line_key) = line_key {
                *calls.entry(*line_key).or_default().entry(new_rows[callee]).or_default() += *count;
            }
            let call_site = line_key.and_then(|(source, line)| Some((file_of(Some(source))?, line)));
            callers.entry(*callee).or_default().push((new_rows[caller], call_site, *count));
        }
        let mut generated: Vec<((LineKey, LineKey), Count)> = self.generated.into_iter().collect();
        generated.sort_by_key(|(line_keys, count)| (*count, *line_keys));
        // If several user lines ran a line of generated code, the heaviest comes last and overwrites the others.
        let generated: FxHashMap<LineKey, LineKey> = generated.into_iter().map(|(line_keys, _)| line_keys).collect();
        for (line_key, mut line) in self.lines {
            line.generated_by = generated.get(&line_key).and_then(|user| Some((file_of(Some(user.0))?, user.1)));
            line.inlined = trees.remove(&line_key).unwrap_or_default();
            renumber(&mut line.inlined, &new_rows);
            line.functions.iter_mut().for_each(|row| *row = new_rows[row]);
            line.functions.sort_unstable();
            line.calls = heaviest_first(calls.remove(&line_key).into_iter().flatten());
            let Some(file) = file_of(Some(line_key.0)) else { continue };
            profile.files[file as usize].lines.insert(line_key.1, line);
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
            let candidate = (weight, Extent { file, ..extent });
            let best = extents.entry(row).or_insert(candidate);
            if (weight, std::cmp::Reverse(file)) > (best.0, std::cmp::Reverse(best.1.file)) {
                *best = candidate;
            }
        }
        let mut by_thread: FxHashMap<u32, BTreeMap<u32, Shares>> = FxHashMap::default();
        for ((row, thread), shares) in self.row_threads {
            by_thread.entry(row).or_default().insert(thread, shares);
        }
        let library_rows: FxHashSet<u32> =
            profile.libraries.iter().flat_map(|library| &library.functions).map(|(row, _)| *row).collect();
        for old_row in order {
            let (name, kind) = self.row_names[old_row as usize].clone();
            let mut compilations = merge_compilations(compilations.remove(&old_row).unwrap_or_default());
            compilations.sort_by(|a, b| b.1.self_count.cmp(&a.1.self_count).then_with(|| a.0.cmp(&b.0)));
            let mut callers = callers.remove(&old_row).unwrap_or_default();
            callers.sort_by(|a, b| b.2.cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
            let lines = extents.get(&old_row).map(|(_, lines)| *lines);
            let shares = self.row_shares[old_row as usize];
            let by_thread = by_thread.remove(&old_row).unwrap_or_default();
            let is_library_function = library_rows.contains(&new_rows[&old_row]);
            let row = FunctionRow { name, kind, shares, by_thread, compilations, lines, is_library_function, callers };
            profile.functions.push(row);
        }
    }
}

/// Merges equal compilations from several images, because each object that calls a function contains a copy of it.
fn merge_compilations(compilations: Vec<(String, Shares)>) -> Vec<(String, Shares)> {
    let mut merged: BTreeMap<String, Shares> = BTreeMap::new();
    for (name, shares) in compilations {
        let sum = merged.entry(name).or_default();
        sum.self_count += shares.self_count;
        sum.total += shares.total;
    }
    merged.into_iter().collect()
}

fn renumber(calls: &mut [Inlined], new_rows: &FxHashMap<u32, u32>) {
    for call in calls {
        call.function = new_rows[&call.function];
        renumber(&mut call.inlined, new_rows);
    }
}

fn row_order(names: &[(String, Kind)], shares: &[Shares]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..names.len() as u32).filter(|row| !shares[*row as usize].total.is_zero()).collect();
    order.sort_by(|a, b| {
        let (left, right) = (&shares[*a as usize], &shares[*b as usize]);
        (right.self_count, right.total)
            .cmp(&(left.self_count, left.total))
            .then_with(|| names[*a as usize].cmp(&names[*b as usize]))
    });
    order
}

fn file_order(symbols: &Symbols, lines: &FxHashMap<LineKey, Line>) -> Vec<u32> {
    let mut weights: FxHashMap<u32, (Count, Count)> = FxHashMap::default();
    for ((source, _), line) in lines {
        let weight = weights.entry(*source).or_default();
        weight.0 += line.shares.self_count;
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
