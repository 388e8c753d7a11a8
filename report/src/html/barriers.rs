//! Time that threads waited for the end of a parallel loop; only recordings of wall-clock time have it.
//!
//! The loop is inferred: a wait counts while another thread of the process runs the loop, and only for loops that the
//! waiting thread ran itself, because the thread that starts a pool may never take part.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::activity::{Activity, is_for_threads};
use crate::profile::FunctionRow;
use crate::report::Report;
use crate::symbols::Kind;

/// Whether a function is the body of a loop that several threads share.
pub(super) fn is_parallel(row: &FunctionRow) -> bool {
    row.kind == Kind::Compiled && (row.name.contains("prange") || row.name.contains("gufunc"))
}

/// Function, thread and slice of the page, and nanoseconds. `begins` has of each thread when slices begin.
pub(super) fn barriers(report: &Report, begins: &[u64], slice: u64) -> BTreeMap<(u32, u32, u64), u64> {
    let mut found = BTreeMap::new();
    let recording = &report.recording;
    if !recording.is_wall() {
        return found;
    }
    let process = |thread: u32| {
        let thread = &recording.threads[thread as usize];
        (thread.host.as_str(), thread.pid)
    };
    let mut loops = FxHashMap::<_, Vec<(u64, u64)>>::default();
    // Of each thread: the loops that it ran.
    let mut of_thread = FxHashMap::<u32, FxHashSet<u32>>::default();
    let activity = |stack: u32| report.profile.activities.of(stack).activity;
    for sample in recording.samples.iter().filter(|sample| activity(sample.stack) != Activity::Waiting) {
        if let Some(row) = outermost_loop(report, sample.stack) {
            let ran = (sample.time.saturating_sub(sample.weight), sample.time);
            loops.entry((row, process(sample.thread))).or_default().push(ran);
            of_thread.entry(sample.thread).or_default().insert(row);
        }
    }
    for times in loops.values_mut() {
        joined(times);
    }
    for sample in &recording.samples {
        let done = report.profile.activities.of(sample.stack);
        let is_wait =
            done.activity == Activity::Waiting && is_for_threads(&report.profile.activities.names[done.name as usize]);
        if !is_wait {
            continue;
        }
        let waited = (sample.time.saturating_sub(sample.weight), sample.time);
        for row in of_thread.get(&sample.thread).into_iter().flatten() {
            let slice = sample.time.saturating_sub(begins[sample.thread as usize]) / slice;
            let ran = &loops[&(*row, process(sample.thread))];
            *found.entry((*row, sample.thread, slice)).or_default() += common(ran, waited);
        }
    }
    found.retain(|_, waited| *waited != 0);
    found
}

fn outermost_loop(report: &Report, stack: u32) -> Option<u32> {
    let places = report.recording.stacks.get(stack).iter();
    let frames = places.flat_map(|place| report.symbols.frames(*place));
    let rows = frames.map(|frame| report.profile.rows[frame.function as usize]);
    rows.filter(|row| report.profile.functions.get(*row as usize).is_some_and(is_parallel)).last()
}

/// Sorted, without overlaps.
fn joined(times: &mut Vec<(u64, u64)>) {
    times.sort_unstable();
    times.dedup_by(|next, before| {
        let overlaps = next.0 <= before.1;
        if overlaps {
            before.1 = before.1.max(next.1);
        }
        overlaps
    });
}

/// How much of a time is in one of these.
fn common(times: &[(u64, u64)], (from, to): (u64, u64)) -> u64 {
    let first = times.partition_point(|time| time.1 <= from);
    let inside = times[first..].iter().take_while(|time| time.0 < to);
    inside.map(|time| time.1.min(to) - time.0.max(from)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_overlap_count_once() {
        let mut times = vec![(50, 60), (10, 20), (15, 30), (30, 31)];
        joined(&mut times);
        assert_eq!(times, [(10, 31), (50, 60)]);
        assert_eq!(
            [(0, 10), (0, 12), (5, 55), (20, 25), (31, 50), (60, 99)].map(|one| common(&times, one)),
            [0, 2, 26, 5, 0, 0]
        );
    }
}
