//! Compiled functions that threads run one at a time, because the functions keep Python's lock.

use rustc_hash::FxHashMap;

use super::path::{StackPath, Step};
use crate::profile::activity::Activity;
use crate::profile::{Count, Profile};
use crate::recording::{Recording, Sample};

/// Threads of one process that take turns.
#[derive(Clone, Debug)]
pub(super) struct Serial {
    pub(super) threads: usize,
    /// Time of all of these threads except the busiest.
    pub(super) count: Count,
    /// Interpreted line that calls most of the compiled code.
    pub(super) caller: Step,
}

/// Minimum number of samples in compiled code that Python called, of all threads and of each.
const MIN_SAMPLES: u64 = 100;
const MIN_THREAD_SAMPLES: u64 = 10;
/// Minimum number of changes from one thread to another, for each thread. Threads that the program starts one after the
/// other have fewer.
const MIN_CHANGES: usize = 3;
/// Maximum number of changes, as a share of those between threads that run independently. Threads that keep the lock
/// change only at the end of a call.
const MAX_CHANGES_PERCENT: f64 = 40.0;

/// Finds the threads of the process with most samples that run compiled code, if they run one at a time. `None` if
/// samples do not measure CPU time.
pub(super) fn find_serial_threads(recording: &Recording, profile: &Profile, paths: &[StackPath]) -> Option<Serial> {
    if !recording.is_cpu_time() {
        return None;
    }
    let mut processes: FxHashMap<(&str, u32), Vec<&Sample>> = FxHashMap::default();
    for sample in &recording.samples {
        let is_compiled = profile.activities.get(sample.stack).activity == Activity::Compiled;
        if is_compiled && !paths[sample.stack as usize].python_steps().is_empty() {
            let thread = &recording.threads[sample.thread as usize];
            processes.entry((thread.host.as_str(), thread.pid)).or_default().push(sample);
        }
    }
    let mut samples = processes.into_values().max_by_key(|samples| samples.len())?;
    let mut threads: FxHashMap<u32, Count> = FxHashMap::default();
    for sample in &samples {
        *threads.entry(sample.thread).or_default() += Count::from_sample(sample);
    }
    threads.retain(|_, count| count.samples >= MIN_THREAD_SAMPLES);
    samples.retain(|sample| threads.contains_key(&sample.thread));
    if threads.len() < 2 || (samples.len() as u64) < MIN_SAMPLES {
        return None;
    }
    samples.sort_unstable_by_key(|sample| sample.time);
    let order: Vec<u32> = samples.iter().map(|sample| sample.thread).collect();
    if !take_turns(&order) {
        return None;
    }
    let mut callers: FxHashMap<Step, u64> = FxHashMap::default();
    for sample in &samples {
        *callers.entry(*paths[sample.stack as usize].python_steps().last()?).or_default() += sample.weight;
    }
    let (caller, _) = callers.into_iter().max_by_key(|(step, weight)| (*weight, step.source, step.line))?;
    let all: Count = threads.values().sum();
    let busiest = threads.values().max()?;
    let count = Count { weight: all.weight - busiest.weight, samples: all.samples - busiest.samples };
    Some(Serial { threads: threads.len(), count, caller })
}

/// Returns true if threads run one at a time, each for many samples. `order` has the thread of each sample.
fn take_turns(order: &[u32]) -> bool {
    let mut counts: FxHashMap<u32, f64> = FxHashMap::default();
    for thread in order {
        *counts.entry(*thread).or_default() += 1.0;
    }
    let all = order.len() as f64;
    let independent: f64 = counts.values().map(|count| count * (all - count) / all).sum();
    let changes = order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    changes >= MIN_CHANGES * counts.len() && changes as f64 * 100.0 <= independent * MAX_CHANGES_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_keep_the_lock_take_turns() {
        // Calls that take ten samples or one, and threads that run one after the other.
        for (call, expected) in [(10, true), (1, false), (100, false)] {
            let order: Vec<u32> = (0..300).map(|tick| tick / call % 3).collect();
            assert_eq!(take_turns(&order), expected, "{call}");
        }
    }
}
