//! Lines whose time differs between processes, so that some wait for others.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{Group, Report};
use crate::profile::owners::is_user_source;
use crate::profile::{Count, Line};
use crate::symbols::Kind;

/// Number of standard errors within which a difference between processes is noise.
const NOISE_STANDARD_ERRORS: f64 = 3.0;

/// Time of one line in several processes, in ns or events.
#[derive(Clone, Debug)]
pub struct Imbalance {
    /// Index into [`Profile::files`](crate::Profile::files).
    pub file: usize,
    /// Line number.
    pub line: u32,
    /// Self time in the process that needs least.
    pub min: u64,
    /// Mean over the processes.
    pub mean: u64,
    /// Self time in the process that needs most.
    pub max: u64,
    /// The process that needs most.
    pub slowest: Group,
}

impl Imbalance {
    /// Returns what the slowest process would gain if all did the same work.
    pub fn gain(&self) -> u64 {
        self.max - self.mean
    }
}

impl Report {
    /// Returns the lines whose self time differs between processes by more than noise, the largest gain first. Processes
    /// with a rank or a name are compared; if none has one, all. The report must be [by thread](crate::Options::by_thread).
    pub fn imbalance(&self) -> Vec<Imbalance> {
        let mut processes = self.processes();
        if processes.iter().any(|process| !process.label.is_empty()) {
            processes.retain(|process| !process.label.is_empty());
        }
        if processes.len() < 2 {
            return Vec::new();
        }
        let indices: FxHashMap<(&str, u32), usize> =
            processes.iter().zip(0..).map(|(process, index)| ((process.host.as_str(), process.pid), index)).collect();
        let process_of_thread: Vec<Option<usize>> = self
            .profile
            .threads
            .iter()
            .map(|row| indices.get(&(row.thread.host.as_str(), row.thread.pid)).copied())
            .collect();
        let is_compiled =
            |line: &Line| line.functions.iter().any(|row| self.profile.functions[*row as usize].kind == Kind::Compiled);
        let mut rows = Vec::new();
        for (index, file) in self.profile.files.iter().enumerate() {
            let is_user = is_user_source(&file.path);
            for (number, line) in file.lines.iter().filter(|(_, line)| is_user || is_compiled(line)) {
                let mut counts: BTreeMap<usize, Count> = BTreeMap::new();
                for (thread, shares) in &line.by_thread {
                    if let Some(process) = process_of_thread[*thread as usize] {
                        *counts.entry(process).or_default() += shares.self_count;
                    }
                }
                let Some((slowest, max)) = counts.iter().max_by_key(|(_, count)| **count) else { continue };
                let sum: u128 = counts.values().map(|count| u128::from(count.weight)).sum();
                let mean = (sum / processes.len() as u128) as u64;
                let noise = NOISE_STANDARD_ERRORS * max.weight as f64 / (max.samples.max(1) as f64).sqrt();
                if (max.weight - mean) as f64 <= noise {
                    continue;
                }
                let has_idle = counts.len() < processes.len();
                let min = counts.values().map(|count| count.weight).min().filter(|_| !has_idle).unwrap_or_default();
                let slowest = processes[*slowest].clone();
                rows.push(Imbalance { file: index, line: *number, min, mean, max: max.weight, slowest });
            }
        }
        rows.sort_by_key(|row| (std::cmp::Reverse(row.gain()), row.file, row.line));
        rows
    }
}
