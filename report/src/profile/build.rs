//! Construction of the profile, in one pass over the distinct stacks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::activity::{Activities, StackActivity};
use super::libraries::Libraries;
use super::marks::Marks;
use super::owners::is_generated;
use super::summary::Sums;
use super::tree::{Parent, Trees};
use super::{
    Count, Detail, Extent, FunctionRow, Inlined, Line, Profile, Shares, SourceLines, ThreadRow, heaviest_first,
    thread_stack_counts,
};
use crate::distinct::Distinct;
use crate::recording::Recording;
use crate::symbols::{Frame, Kind, Symbols, is_entry};

/// Key of a source line: source index and line number.
type LineKey = (u32, u32);

/// Call: caller's row, line of the call, and callee's row.
type Edge = (u32, Option<LineKey>, u32);

pub(super) fn build(recording: &Recording, symbols: &Symbols, activities: Activities, detail: Detail) -> Profile {
    let mut builder = Builder::new(recording, symbols, &activities, detail);
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
    /// Numbers of all frames, in the order of [`Symbols::all_frames`].
    frames: Vec<FrameNumbers>,
    /// True if the line of a location's innermost frame is listed, and that of its outermost.
    listed: Vec<(bool, bool)>,
    line_keys: Distinct<LineKey>,
    line_totals: Vec<Count>,
    /// Row and line of each function at a line.
    line_rows: Distinct<(u32, u32)>,
    line_row_totals: Vec<Count>,
    /// Total by line and thread, if requested.
    line_threads: FxHashMap<(u32, u32), Count>,
    outside: FxHashMap<String, Count>,
    edges: Distinct<Edge>,
    edge_counts: Vec<Count>,
    /// Edge from a location, the second, to the next inner one, if there is one.
    edges_of_locations: FxHashMap<(u32, u32), Option<u32>>,
    /// Edges and inlined calls at locations with several frames.
    inlined: FxHashMap<u32, InlinedItems>,
    /// Samples by line of generated code and user line that ran that code.
    generated: FxHashMap<(LineKey, LineKey), Count>,
    trees: Trees,
    threads: Vec<(Count, Count)>,
    ran: Vec<bool>,
    idle: Vec<Count>,
    seen: StackItems,
}

/// Numbers of the items that a frame adds to the totals of its stack.
#[derive(Clone, Copy, Debug)]
struct FrameNumbers {
    function: u32,
    row: u32,
    /// Index into [`Builder::line_rows`], if the line is listed.
    line_row: Option<u32>,
    /// Index into [`Activities::names`].
    package: Option<u32>,
}

/// Items at a location with several frames.
#[derive(Debug, Default)]
struct InlinedItems {
    /// Indices into [`Builder::edges`].
    edges: Vec<u32>,
    /// Indices of inlined calls in [`Builder::trees`].
    calls: Vec<u32>,
}

/// Items found in the current stack, which count once.
#[derive(Default)]
struct StackItems {
    locations: Marks,
    line_keys: Marks,
    line_rows: Marks,
    functions: Marks,
    rows: Marks,
    edges: Marks,
    calls: Marks,
}

impl StackItems {
    fn clear(&mut self) {
        let StackItems { locations, line_keys, line_rows, functions, rows, edges, calls } = self;
        [locations, line_keys, line_rows, functions, rows, edges, calls].into_iter().for_each(Marks::clear);
    }
}

impl<'a> Builder<'a> {
    fn new(recording: &Recording, symbols: &'a Symbols, activities: &'a Activities, detail: Detail) -> Builder<'a> {
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
        let threads = recording.threads.len();
        let mut builder = Builder {
            symbols,
            activities,
            sums: Sums::default(),
            libraries: Libraries::new(activities.names.len()),
            detail,
            row_shares: vec![Shares::default(); row_names.len()],
            rows,
            row_names,
            profile: Profile::default(),
            lines: FxHashMap::default(),
            functions: vec![Shares::default(); symbols.functions.len()],
            row_threads: FxHashMap::default(),
            frames: Vec::new(),
            listed: Vec::new(),
            line_keys: Distinct::default(),
            line_totals: Vec::new(),
            line_rows: Distinct::default(),
            line_row_totals: Vec::new(),
            line_threads: FxHashMap::default(),
            outside: FxHashMap::default(),
            edges: Distinct::default(),
            edge_counts: Vec::new(),
            edges_of_locations: FxHashMap::default(),
            inlined: FxHashMap::default(),
            generated: FxHashMap::default(),
            trees: Trees::default(),
            threads: vec![(Count::default(), Count::default()); threads],
            ran: vec![false; threads],
            idle: vec![Count::default(); threads],
            seen: StackItems::default(),
        };
        builder.number_frames(recording.locations.len() as u32);
        builder
    }

    /// Numbers the items of all frames, so that each stack only adds its count to them.
    fn number_frames(&mut self, locations: u32) {
        let mut line_keys = Distinct::default();
        let mut line_rows = Distinct::default();
        for frame in self.symbols.all_frames() {
            let row = self.row(frame);
            let line_row = self.line_key(frame).map(|line_key| line_rows.number((line_keys.number(line_key), row)));
            let package = self.activities.package(frame);
            self.frames.push(FrameNumbers { function: frame.function, row, line_row, package });
        }
        self.line_totals = vec![Count::default(); line_keys.values.len()];
        self.line_row_totals = vec![Count::default(); line_rows.values.len()];
        (self.line_keys, self.line_rows) = (line_keys, line_rows);
        let is_listed = |frame: Option<&Frame>| frame.is_some_and(|frame| self.is_listed(frame));
        self.listed = (0..locations)
            .map(|location| self.symbols.frames(location))
            .map(|frames| (is_listed(frames.first()), is_listed(frames.last())))
            .collect();
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
        let frames = locations.iter().flat_map(|location| &self.frames[self.symbols.frame_range(*location)]);
        let packages = frames.filter_map(|frame| frame.package);
        self.libraries.add(self.activities, stack_activity, packages, &self.rows, count);
        let Some(leaf) = locations.first() else { return };
        self.add_self(*leaf, stack_activity, count, threads);
        self.charge_lines(stack_activity, count);
        self.seen.clear();
        let mut callee = None;
        for location in locations {
            self.add_location(*location, callee, count, threads);
            callee = Some(*location);
        }
    }

    /// Charges the time of a stack to its line, and finds the user line that led to generated code.
    fn charge_lines(&mut self, stack_activity: &StackActivity, count: Count) {
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
            self.visit_inlined(location, |trees, node, is_innermost| {
                if is_innermost {
                    trees.add_self(node, count);
                }
            });
        }
    }

    /// Adds the total time of a stack to the items at one of its locations, which calls the location `callee`.
    fn add_location(&mut self, location: u32, callee: Option<u32>, count: Count, threads: &[(u32, Count)]) {
        let edge = callee.and_then(|callee| self.edge_of_locations(callee, location));
        if let Some(edge) = edge.filter(|edge| self.seen.edges.insert(*edge)) {
            self.edge_counts[edge as usize] += count;
        }
        if !self.seen.locations.insert(location) {
            return;
        }
        let frames = self.symbols.frame_range(location);
        let frame_count = frames.len();
        for index in frames {
            let FrameNumbers { function, row, line_row, .. } = self.frames[index];
            if self.seen.functions.insert(function) {
                self.functions[function as usize].total += count;
                if self.seen.rows.insert(row) {
                    self.row_shares[row as usize].total += count;
                    for (thread, thread_count) in threads.iter().filter(|_| self.detail.by_thread) {
                        self.row_threads.entry((row, *thread)).or_default().total += *thread_count;
                    }
                }
            }
            if let Some(line_row) = line_row.filter(|line_row| self.seen.line_rows.insert(*line_row)) {
                self.line_row_totals[line_row as usize] += count;
                let (line, _) = self.line_rows.values[line_row as usize];
                if self.seen.line_keys.insert(line) {
                    self.line_totals[line as usize] += count;
                    for (thread, thread_count) in threads.iter().filter(|_| self.detail.by_thread) {
                        *self.line_threads.entry((line, *thread)).or_default() += *thread_count;
                    }
                }
            }
        }
        if frame_count > 1 {
            self.add_inlined(location, count);
        }
    }

    /// Returns the edge between the functions of two locations.
    fn edge_of_locations(&mut self, callee: u32, caller: u32) -> Option<u32> {
        if !self.listed[caller as usize].0 && !self.listed[callee as usize].1 {
            return None;
        }
        if let Some(edge) = self.edges_of_locations.get(&(callee, caller)) {
            return *edge;
        }
        let (inner, outer) = (self.symbols.frames(callee).last(), self.symbols.frames(caller).first());
        let edge = inner.zip(outer).and_then(|(callee, caller)| self.edge(callee, caller));
        self.edges_of_locations.insert((callee, caller), edge);
        edge
    }

    fn edge(&mut self, callee: &Frame, caller: &Frame) -> Option<u32> {
        let rows = (self.row(caller), self.row(callee));
        // A function called through its own entry point is not recursive.
        let is_own_entry = rows.0 == rows.1 && is_entry(&self.symbols.function(caller).name);
        if is_own_entry || !(self.is_listed(caller) || self.is_listed(callee)) {
            return None;
        }
        let edge = self.edges.number((rows.0, self.line_key(caller), rows.1));
        self.edge_counts.resize(self.edges.values.len(), Count::default());
        Some(edge)
    }

    /// Adds total time to the edges and inlined calls at a location with several frames.
    fn add_inlined(&mut self, location: u32, count: Count) {
        if !self.inlined.contains_key(&location) {
            let frames = self.symbols.frames(location);
            let edges = frames.windows(2).filter_map(|pair| self.edge(&pair[0], &pair[1])).collect();
            let mut calls = Vec::new();
            self.visit_inlined(location, |_, node, _| calls.push(node));
            self.inlined.insert(location, InlinedItems { edges, calls });
        }
        let InlinedItems { edges, calls } = &self.inlined[&location];
        for edge in edges.iter().filter(|edge| self.seen.edges.insert(**edge)) {
            self.edge_counts[*edge as usize] += count;
        }
        for node in calls.iter().filter(|node| self.seen.calls.insert(**node)) {
            self.trees.add_total(*node, count);
        }
    }

    /// Calls `visit` for each call in the trees of inlined calls below the lines of a location, outermost first, with
    /// the call's node, and true for the innermost call of a tree.
    fn visit_inlined(&mut self, location: u32, mut visit: impl FnMut(&mut Trees, u32, bool)) {
        let frames = self.symbols.frames(location);
        // Each level has a tree of everything below it, so for very deep inlining only the outermost tree is built.
        let first = if frames.len() > 16 { frames.len() } else { 2 };
        for end in first..=frames.len() {
            // Frames are innermost first.
            let Some((line, calls)) = frames[..end].split_last() else { return };
            let Some(line_key) = self.line_key(line) else { continue };
            let mut parent = Parent::Line(line_key.0, line_key.1);
            for (frame, index) in calls.iter().rev().zip(1..) {
                let call = (self.row(frame), frame.source, frame.line.unwrap_or_default());
                let node = self.trees.intern(parent, call);
                visit(&mut self.trees, node, index == calls.len());
                parent = Parent::Call(node);
            }
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

    /// Moves the totals of lines to their rows. Returns the line range and weight by row and source.
    fn finish_lines(&mut self) -> FxHashMap<(u32, u32), (Extent, u64)> {
        let mut extents = FxHashMap::default();
        for (line_key, total) in self.line_keys.values.iter().zip(&self.line_totals) {
            if !total.is_zero() {
                self.lines.entry(*line_key).or_default().shares.total += *total;
            }
        }
        for ((line, row), total) in self.line_rows.values.iter().zip(&self.line_row_totals) {
            let line_key = self.line_keys.values[*line as usize];
            let Some(line) = self.lines.get_mut(&line_key).filter(|_| !total.is_zero()) else { continue };
            line.functions.push(*row);
            if line_key.1 != 0 {
                let line_extent = Extent { file: line_key.0, first: line_key.1, last: line_key.1 };
                let (extent, weight) = extents.entry((*row, line_key.0)).or_insert((line_extent, 0_u64));
                (extent.first, extent.last) = (extent.first.min(line_key.1), extent.last.max(line_key.1));
                *weight = weight.saturating_add(total.weight);
            }
        }
        for ((line, thread), total) in &self.line_threads {
            let line = self.lines.entry(self.line_keys.values[*line as usize]).or_default();
            line.by_thread.entry(*thread).or_default().total += *total;
        }
        extents
    }

    fn finish_tables(mut self, profile: &mut Profile) {
        let line_extents = self.finish_lines();
        let order = row_order(&self.row_names, &self.row_shares);
        let new_rows: FxHashMap<u32, u32> = order.iter().zip(0..).map(|(old_row, new)| (*old_row, new)).collect();
        profile.rows = self.rows.iter().map(|old_row| new_rows.get(old_row).copied().unwrap_or(u32::MAX)).collect();
        let files = file_order(self.symbols, &self.lines);
        let file_numbers: FxHashMap<u32, u32> = files.iter().zip(0..).map(|(source, file)| (*source, file)).collect();
        let file_of = |source: Option<u32>| source.and_then(|source| file_numbers.get(&source).copied());
        let (mut calls, mut callers) = self.finish_edges(&new_rows, file_of);
        let mut compilations = self.compilations_by_row();
        let mut trees = self.trees.finish(&file_of);
        profile.summary = self.sums.finish(self.activities, &file_of);
        profile.libraries = self.libraries.finish(self.activities, &new_rows);
        profile.files = files
            .iter()
            .map(|source| SourceLines { path: self.symbols.sources[*source as usize].clone(), lines: BTreeMap::new() })
            .collect();
        let generated = heaviest_users(self.generated);
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
        let extents = heaviest_extents(line_extents, &file_of);
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
            let lines = extents.get(&old_row).map(|(lines, _)| *lines);
            let shares = self.row_shares[old_row as usize];
            let by_thread = by_thread.remove(&old_row).unwrap_or_default();
            let is_library_function = library_rows.contains(&new_rows[&old_row]);
            let row = FunctionRow { name, kind, shares, by_thread, compilations, lines, is_library_function, callers };
            profile.functions.push(row);
        }
    }

    /// Returns the functions that each line calls, and the callers of each function, which have no order yet.
    fn finish_edges(
        &self,
        new_rows: &FxHashMap<u32, u32>,
        file_of: impl Fn(Option<u32>) -> Option<u32>,
    ) -> (CallsByLine, CallersByRow) {
        let (mut calls, mut callers) = (CallsByLine::default(), CallersByRow::default());
        for ((caller, line_key, callee), count) in self.edges.values.iter().zip(&self.edge_counts) {
            if let Some(line_key) = line_key {
                *calls.entry(*line_key).or_default().entry(new_rows[callee]).or_default() += *count;
            }
            let call_site = line_key.and_then(|(source, line)| Some((file_of(Some(source))?, line)));
            callers.entry(*callee).or_default().push((new_rows[caller], call_site, *count));
        }
        (calls, callers)
    }

    /// Returns the sampled compilations of each row's function, by their linkage names.
    fn compilations_by_row(&self) -> FxHashMap<u32, Vec<(String, Shares)>> {
        let mut compilations: FxHashMap<u32, Vec<(String, Shares)>> = FxHashMap::default();
        for ((function, shares), row) in self.symbols.functions.iter().zip(&self.functions).zip(&self.rows) {
            if !shares.total.is_zero() {
                compilations.entry(*row).or_default().push((function.name.clone(), *shares));
            }
        }
        compilations
    }
}

/// Functions that each line calls, with counts.
type CallsByLine = FxHashMap<LineKey, FxHashMap<u32, Count>>;
/// Callers of each function: their rows, call sites and counts.
type CallersByRow = FxHashMap<u32, Vec<(u32, Option<LineKey>, Count)>>;

/// Returns the user's line that ran each line of generated code, the heaviest of several.
fn heaviest_users(generated: FxHashMap<(LineKey, LineKey), Count>) -> FxHashMap<LineKey, LineKey> {
    let mut generated: Vec<_> = generated.into_iter().collect();
    generated.sort_by_key(|(line_keys, count)| (*count, *line_keys));
    // The last overwrites the others.
    generated.into_iter().map(|(line_keys, _)| line_keys).collect()
}

/// Returns the line range of each row in the file with the most weight, and that weight.
fn heaviest_extents(
    extents: FxHashMap<(u32, u32), (Extent, u64)>,
    file_of: &impl Fn(Option<u32>) -> Option<u32>,
) -> FxHashMap<u32, (Extent, u64)> {
    let mut heaviest = FxHashMap::default();
    for ((row, source), (extent, weight)) in extents {
        let Some(file) = file_of(Some(source)) else { continue };
        let candidate = (Extent { file, ..extent }, weight);
        let best = heaviest.entry(row).or_insert(candidate);
        if (weight, Reverse(file)) > (best.1, Reverse(best.0.file)) {
            *best = candidate;
        }
    }
    heaviest
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
