//! Lines and functions whose time differs between processes, so that some wait for others.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Group, Report};
use crate::profile::{Count, Line, Shares, SourcePosition};
use crate::symbols::Kind;

/// Number of standard errors within which a difference between processes is noise.
const NOISE_STANDARD_ERRORS: f64 = 3.0;
/// Share of a function's gain that a callee must have, so that the callee explains it.
const EXPLAINED_SHARE: f64 = 0.9;

/// Time of one line or function in several processes, in ns or events.
#[derive(Clone, Debug)]
pub struct Imbalance<T> {
    /// The line or function.
    pub subject: T,
    /// Time in the process that needs least.
    pub min: u64,
    /// Mean over the processes.
    pub mean: u64,
    /// Time in the process that needs most.
    pub max: u64,
    /// The process that needs most.
    pub slowest: Group,
}

impl<T> Imbalance<T> {
    /// Returns what the slowest process would gain if all did the same work.
    pub fn gain(&self) -> u64 {
        self.max - self.mean
    }
}

impl Imbalance<usize> {
    /// Returns true if a function differs only by this callee.
    fn explains(&self, caller: &Imbalance<usize>) -> bool {
        // The order keeps one of two functions that call each other.
        (self.max, self.subject) < (caller.max, caller.subject)
            && self.gain() as f64 >= EXPLAINED_SHARE * caller.gain() as f64
            && self.slowest.key() == caller.slowest.key()
    }
}

impl Report {
    /// Returns the lines whose self time differs between processes by more than noise, the largest gain first.
    /// Processes with a rank or a name are compared; if none has one, all. The report must be
    /// [by thread](crate::Options::by_thread).
    pub fn imbalanced_lines(&self) -> Vec<Imbalance<SourcePosition>> {
        let Some(processes) = Processes::new(self) else { return Vec::new() };
        let is_compiled =
            |line: &Line| line.functions.iter().any(|row| self.profile.functions[*row as usize].kind == Kind::Compiled);
        let files = self.profile.files.iter().zip(0..);
        let lines = files.flat_map(|(file, index)| {
            let is_user = self.is_user_source(&file.path);
            let lines = file.lines.iter().filter(move |(_, line)| is_user || is_compiled(line));
            lines.map(move |(number, line)| ((index, *number), line))
        });
        largest_gain_first(lines.filter_map(|(position, line)| {
            processes.imbalance(position, line.by_thread.iter().map(|(thread, shares)| (*thread, shares.self_count)))
        }))
    }

    /// Returns the user's and compiled functions whose total time differs between processes by more than noise, as
    /// indices into [`Profile::functions`](crate::Profile::functions). A function that differs only by a callee is left
    /// out in favour of the callee. Otherwise the same as [`imbalanced_lines`](Report::imbalanced_lines).
    pub fn imbalanced_functions(&self) -> Vec<Imbalance<usize>> {
        let Some(processes) = Processes::new(self) else { return Vec::new() };
        let functions = self.profile.functions.iter().enumerate();
        let totals = |by_thread: &BTreeMap<u32, Shares>| -> Vec<(u32, Count)> {
            by_thread.iter().map(|(thread, shares)| (*thread, shares.total)).collect()
        };
        let rows: Vec<Imbalance<usize>> = functions
            .filter(|(_, row)| row.kind == Kind::Compiled || self.is_user_function(row))
            .filter_map(|(index, row)| processes.imbalance(index, totals(&row.by_thread)))
            .collect();
        let by_function: FxHashMap<usize, &Imbalance<usize>> = rows.iter().map(|row| (row.subject, row)).collect();
        let mut explained = FxHashSet::default();
        for stack in 0..self.recording.stacks.len() as u32 {
            let frames = self.recording.stacks.get(stack).iter().flat_map(|location| self.symbols.frames(*location));
            let functions = frames.map(|frame| self.profile.rows[frame.function as usize] as usize);
            // Of the compared functions, each and its caller; others may be between them.
            let mut callee: Option<&Imbalance<usize>> = None;
            for caller in functions.filter_map(|function| by_function.get(&function).copied()) {
                if callee.is_some_and(|callee| callee.explains(caller)) {
                    explained.insert(caller.subject);
                }
                callee = Some(caller);
            }
        }
        largest_gain_first(rows.into_iter().filter(|row| !explained.contains(&row.subject)))
    }
}

/// Processes that are compared.
struct Processes {
    groups: Vec<Group>,
    /// Index into `groups` by thread.
    of_thread: Vec<Option<usize>>,
}

impl Processes {
    /// Returns `None` if there is nothing to compare.
    fn new(report: &Report) -> Option<Processes> {
        let mut groups = report.processes();
        if groups.iter().any(|process| !process.label.is_empty()) {
            groups.retain(|process| !process.label.is_empty());
        }
        if groups.len() < 2 {
            return None;
        }
        let indices: FxHashMap<(&str, u32), usize> =
            groups.iter().zip(0..).map(|(process, index)| (process.key(), index)).collect();
        let threads = report.profile.threads.iter();
        let of_thread = threads.map(|row| indices.get(&(row.thread.host.as_str(), row.thread.pid)).copied()).collect();
        Some(Processes { groups, of_thread })
    }

    /// Returns `None` if sampling explains the difference.
    fn imbalance<T>(&self, subject: T, by_thread: impl IntoIterator<Item = (u32, Count)>) -> Option<Imbalance<T>> {
        let mut counts: BTreeMap<usize, Count> = BTreeMap::new();
        for (thread, count) in by_thread {
            if let Some(process) = self.of_thread[thread as usize] {
                *counts.entry(process).or_default() += count;
            }
        }
        let (slowest, max) = counts.iter().max_by_key(|(_, count)| **count)?;
        let sum: u128 = counts.values().map(|count| u128::from(count.weight)).sum();
        let mean = (sum / self.groups.len() as u128) as u64;
        let noise = NOISE_STANDARD_ERRORS * max.weight as f64 / (max.samples.max(1) as f64).sqrt();
        if (max.weight - mean) as f64 <= noise {
            return None;
        }
        let has_idle = counts.len() < self.groups.len();
        let min = counts.values().map(|count| count.weight).min().filter(|_| !has_idle).unwrap_or_default();
        Some(Imbalance { subject, min, mean, max: max.weight, slowest: self.groups[*slowest].clone() })
    }
}

fn largest_gain_first<T: Ord>(rows: impl Iterator<Item = Imbalance<T>>) -> Vec<Imbalance<T>> {
    let mut rows: Vec<Imbalance<T>> = rows.collect();
    rows.sort_by(|a, b| b.gain().cmp(&a.gain()).then_with(|| a.subject.cmp(&b.subject)));
    rows
}
