//! Time that threads waited at the end of parallel loops. Available only in wall-clock recordings.
//!
//! The loop is inferred. A wait is charged to a loop while another thread of the process runs that loop. Only loops
//! that the waiting thread also ran are considered, because the thread that starts a pool may never take part.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::profile::FunctionRow;
use crate::profile::activity::{Activity, is_wait_for_threads};
use crate::report::Report;
use crate::symbols::Kind;

/// Returns true if a function is the body of a parallel loop.
pub(super) fn is_parallel(row: &FunctionRow) -> bool {
    row.kind == Kind::Compiled && (row.name.contains("prange") || row.name.contains("gufunc"))
}

/// Returns the wait in ns by function row, thread and time slice. `starts` holds the start time of each thread's
/// slices.
pub(super) fn barrier_waits(report: &Report, starts: &[u64], slice: u64) -> BTreeMap<(u32, u32, u64), u64> {
    let mut waits = BTreeMap::new();
    let recording = &report.recording;
    if !recording.is_wall() {
        return waits;
    }
    let process = |thread: u32| {
        let thread = &recording.threads[thread as usize];
        (thread.host.as_str(), thread.pid)
    };
    let mut loops = FxHashMap::<_, Vec<(u64, u64)>>::default();
    // Loops run by each thread.
    let mut loops_by_thread = FxHashMap::<u32, FxHashSet<u32>>::default();
    let activity = |stack: u32| report.profile.activities.get(stack).activity;
    for sample in recording.samples.iter().filter(|sample| activity(sample.stack) != Activity::Waiting) {
        if let Some(row) = outermost_loop(report, sample.stack) {
            let busy = (sample.time.saturating_sub(sample.weight), sample.time);
            loops.entry((row, process(sample.thread))).or_default().push(busy);
            loops_by_thread.entry(sample.thread).or_default().insert(row);
        }
    }
    for times in loops.values_mut() {
        merge_overlaps(times);
    }
    for sample in &recording.samples {
        let stack_activity = report.profile.activities.get(sample.stack);
        let is_wait = stack_activity.activity == Activity::Waiting
            && is_wait_for_threads(&report.profile.activities.names[stack_activity.name as usize]);
        if !is_wait {
            continue;
        }
        let wait = (sample.time.saturating_sub(sample.weight), sample.time);
        for row in loops_by_thread.get(&sample.thread).into_iter().flatten() {
            let slice = sample.time.saturating_sub(starts[sample.thread as usize]) / slice;
            let busy = &loops[&(*row, process(sample.thread))];
            *waits.entry((*row, sample.thread, slice)).or_default() += overlap(busy, wait);
        }
    }
    waits.retain(|_, wait| *wait != 0);
    waits
}

fn outermost_loop(report: &Report, stack: u32) -> Option<u32> {
    let locations = report.recording.stacks.get(stack).iter();
    let frames = locations.flat_map(|location| report.symbols.frames(*location));
    let rows = frames.map(|frame| report.profile.rows[frame.function as usize]);
    rows.filter(|row| report.profile.functions.get(*row as usize).is_some_and(is_parallel)).last()
}

/// Sorts the intervals and merges those that overlap.
fn merge_overlaps(times: &mut Vec<(u64, u64)>) {
    times.sort_unstable();
    times.dedup_by(|following, previous| {
        let overlaps = following.0 <= previous.1;
        if overlaps {
            previous.1 = previous.1.max(following.1);
        }
        overlaps
    });
}

/// Returns the length of the part of an interval that the sorted `times` cover.
fn overlap(times: &[(u64, u64)], (from, to): (u64, u64)) -> u64 {
    let first = times.partition_point(|time| time.1 <= from);
    let inside = times[first..].iter().take_while(|time| time.0 < to);
    inside.map(|time| time.1.min(to) - time.0.max(from)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_times_count_once() {
        let mut times = vec![(50, 60), (10, 20), (15, 30), (30, 31)];
        merge_overlaps(&mut times);
        assert_eq!(times, [(10, 31), (50, 60)]);
        assert_eq!(
            [(0, 10), (0, 12), (5, 55), (20, 25), (31, 50), (60, 99)].map(|interval| overlap(&times, interval)),
            [0, 2, 26, 5, 0, 0]
        );
    }
}
