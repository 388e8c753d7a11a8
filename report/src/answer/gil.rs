//! Code that holds Python's lock while other threads wait for it.

use rustc_hash::{FxHashMap, FxHashSet};

use super::path::{StackPath, Step};
use crate::profile::activity::{Activity, StackActivity};
use crate::profile::{Count, Profile};
use crate::recording::{Recording, Sample};
use crate::symbols::{Kind, Symbols};

/// Holders of the lock while threads wait, in recordings of wall-clock time.
#[derive(Clone, Debug, Default)]
pub(super) struct GilHolders {
    /// Time of threads that wait while a holder is known.
    pub(super) count: Count,
    /// Compiled functions without `nogil=True`.
    pub(super) compiled: Vec<CompiledHolder>,
    /// Lines of the user's Python, below which neither compiled code nor a package runs.
    pub(super) python: Vec<(Step, Count)>,
}

/// Compiled function that holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompiledHolder {
    /// Function, as an index into [`Profile::functions`].
    pub(super) function: u32,
    /// Interpreted line that calls the function.
    pub(super) caller: Step,
    /// Time of the threads that wait meanwhile.
    pub(super) count: Count,
}

/// Code that runs in a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Holder {
    /// Function, and the source and line of its caller.
    Compiled(u32, u32, u32),
    /// Source and line.
    Python(u32, u32),
    /// Code that may have released the lock.
    Other,
}

/// Maximum distance of a sample of the holder from the wait: a sampling period.
const TOLERANCE_NS: u64 = 5_000_000;
/// Maximum time between two samples of a thread that did not leave a function.
const MAX_GAP_NS: u64 = 50_000_000;
/// Minimum number of samples of Python beside a compiled function that does not hold the lock, and their share in those
/// of code that runs independently. Between two calls of a function, other threads may run.
const MIN_OVERLAPS: usize = 3;
const MIN_OVERLAP_PERCENT: f64 = 60.0;
/// Functions of CPython that compiled code with `nogil=True` calls to release the lock, and to get it back.
const LOCK_FUNCTIONS: [&str; 5] =
    ["PyEval_SaveThread", "PyEval_RestoreThread", "PyGILState_Ensure", "take_gil", "drop_gil"];

/// Finds the holders of the lock. Without waits for it, there are none. `process_of_thread` has a number for the process
/// of each thread.
pub(super) fn find_gil_holders(
    recording: &Recording,
    symbols: &Symbols,
    profile: &Profile,
    paths: &[StackPath],
    process_of_thread: &[u32],
) -> GilHolders {
    let activity = |sample: &Sample| profile.activities.get(sample.stack);
    let waits_for_gil = |activity: &StackActivity| profile.activities.is_gil_wait(activity);
    if !recording.samples.iter().any(|sample| waits_for_gil(activity(sample))) {
        return GilHolders::default();
    }
    let is_compiled =
        |activity: &StackActivity| activity.owner.is_some_and(|owner| symbols.function(&owner).kind == Kind::Compiled);
    let releases_lock = |stack: usize| {
        let path = &paths[stack];
        let activity = profile.activities.get(stack as u32);
        let callee = path.callee.map(|function| symbols.functions[function as usize].base.as_str());
        let is_release = callee.is_some_and(|callee| LOCK_FUNCTIONS.contains(&callee));
        (is_release && is_compiled(activity) && waits_for_gil(activity)).then_some(path.outermost_row).flatten()
    };
    let without_gil: FxHashSet<u32> = (0..paths.len()).filter_map(releases_lock).collect();
    let mut steps: FxHashMap<(u32, u32), Step> = FxHashMap::default();
    let mut holder = |sample: &Sample| {
        let (activity, path) = (activity(sample), &paths[sample.stack as usize]);
        let caller = path.python_steps().last();
        if let Some(step) = caller {
            steps.entry((step.source, step.line)).or_insert(*step);
        }
        match (activity.activity, caller) {
            // A thread that waits for the workers of a parallel loop keeps the lock.
            (_, Some(step)) if is_compiled(activity) => {
                let function = path.outermost_row.filter(|function| !without_gil.contains(function))?;
                Some(Holder::Compiled(function, step.source, step.line))
            }
            (Activity::Waiting, _) => None,
            _ if !path.has_python => None,
            (Activity::Interpreted | Activity::Library | Activity::Collecting, Some(step))
                if path.package.is_none() =>
            {
                Some(Holder::Python(step.source, step.line))
            }
            _ => Some(Holder::Other),
        }
    };
    let mut processes: FxHashMap<u32, Process<'_>> = FxHashMap::default();
    for sample in &recording.samples {
        let process = processes.entry(process_of_thread[sample.thread as usize]).or_default();
        let waits = waits_for_gil(activity(sample));
        let holder = holder(sample).filter(|_| !waits);
        process.samples.push((sample.thread, sample.time, holder));
        if waits {
            process.waits.push(sample);
        }
        process.running.extend(holder.map(|holder| (sample.time, sample.thread, sample.weight, holder)));
    }
    processes.values_mut().for_each(Process::sort);
    let mut overlaps: FxHashMap<u32, Overlaps> = FxHashMap::default();
    processes.values().for_each(|process| process.add_overlaps(&mut overlaps));
    let keeps_lock = |holder: &Holder| match holder {
        Holder::Compiled(function, ..) => !overlaps.get(function).is_some_and(Overlaps::are_many),
        _ => true,
    };
    let mut times: FxHashMap<Holder, [f64; 2]> = FxHashMap::default();
    for Process { waits, mut running, .. } in processes.into_values() {
        running.retain(|(.., holder)| keeps_lock(holder));
        for wait in waits {
            add_holders(wait, &running, &mut times);
        }
    }
    finish(times, &steps)
}

/// Time, thread, weight and code of a sample.
type Running = (u64, u32, u64, Holder);

/// Samples of a process.
#[derive(Default)]
struct Process<'a> {
    /// Waits for the lock.
    waits: Vec<&'a Sample>,
    running: Vec<Running>,
    /// Thread, time and code of every sample; `None` for waits.
    samples: Vec<(u32, u64, Option<Holder>)>,
}

impl Process<'_> {
    fn sort(&mut self) {
        self.running.sort_unstable();
        // A wait comes before the code that ran after it until the same time.
        self.samples.sort_unstable();
    }

    /// Counts, for each compiled function, the samples of Python in other threads while a thread does not leave it.
    fn add_overlaps(&self, overlaps: &mut FxHashMap<u32, Overlaps>) {
        let count_python = |thread: u32, begin: u64, end: u64| {
            let first = self.running.partition_point(|(time, ..)| *time <= begin);
            let meanwhile = self.running[first..].iter().take_while(|(time, ..)| *time < end);
            meanwhile.filter(|(_, other, _, code)| *other != thread && matches!(code, Holder::Python(..))).count()
        };
        // Begin and end of the function's samples, and the time between those without a wait in between.
        let mut spans: FxHashMap<(u32, u32), (u64, u64, u64)> = FxHashMap::default();
        for pair in self.samples.windows(2) {
            let [(thread, begin, Some(before)), (next_thread, end, Some(after))] = pair else { continue };
            let (Holder::Compiled(function, ..), Holder::Compiled(next, ..)) = (before, after) else { continue };
            if (thread, function) != (next_thread, next) || end.saturating_sub(*begin) > MAX_GAP_NS {
                continue;
            }
            let (_, span_end, inside) = spans.entry((*thread, *function)).or_insert((*begin, *end, 0));
            *span_end = *end;
            *inside += end - begin;
            overlaps.entry(*function).or_default().with_python += count_python(*thread, *begin, *end);
        }
        for ((thread, function), (begin, end, inside)) in spans {
            let python = count_python(thread, begin, end) as f64;
            let share = inside as f64 / (end - begin).max(1) as f64;
            overlaps.entry(function).or_default().expected += python * share;
        }
    }
}

/// Samples of Python beside a compiled function.
#[derive(Clone, Copy, Debug, Default)]
struct Overlaps {
    with_python: usize,
    /// Their number if the function and Python run independently.
    expected: f64,
}

impl Overlaps {
    /// Returns true if the function cannot have held the lock.
    fn are_many(&self) -> bool {
        self.with_python >= MIN_OVERLAPS && self.with_python as f64 * 100.0 >= self.expected * MIN_OVERLAP_PERCENT
    }
}

/// Divides a wait between the other threads that run during it, in proportion to their time. `running` is sorted.
fn add_holders(wait: &Sample, running: &[Running], times: &mut FxHashMap<Holder, [f64; 2]>) {
    // A sample has the time of its end.
    let first_time = wait.time.saturating_sub(wait.weight).saturating_sub(TOLERANCE_NS);
    let start = running.partition_point(|(time, ..)| *time < first_time);
    let end = running.partition_point(|(time, ..)| *time <= wait.time.saturating_add(TOLERANCE_NS));
    let holders = || running[start..end].iter().filter(|(_, thread, ..)| *thread != wait.thread);
    let all: f64 = holders().map(|(_, _, weight, _)| *weight as f64).sum();
    for (_, _, weight, holder) in holders().filter(|(_, _, weight, _)| *weight != 0) {
        let share = *weight as f64 / all;
        let [weight, samples] = times.entry(*holder).or_default();
        *weight += share * wait.weight as f64;
        *samples += share;
    }
}

fn finish(times: FxHashMap<Holder, [f64; 2]>, steps: &FxHashMap<(u32, u32), Step>) -> GilHolders {
    let mut times: Vec<(Holder, [f64; 2])> = times.into_iter().collect();
    times.sort_unstable_by_key(|(holder, _)| *holder);
    let mut holders = GilHolders::default();
    for (holder, [weight, samples]) in times {
        let count = Count { weight: weight.round() as u64, samples: samples.round() as u64 };
        holders.count += count;
        match holder {
            Holder::Compiled(function, source, line) => {
                holders.compiled.push(CompiledHolder { function, caller: steps[&(source, line)], count });
            }
            Holder::Python(source, line) => holders.python.push((steps[&(source, line)], count)),
            Holder::Other => {}
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_shared_by_the_threads_that_ran_during_it() {
        let (hist, sort) = (Holder::Compiled(1, 0, 26), Holder::Python(0, 28));
        // Thread 3 waits from 100 to 140 ms. Its own sample, one before and one after the wait do not count.
        let ms = |time: u64| time * 1_000_000;
        let running = [
            (ms(90), 1, ms(5), sort),
            (ms(110), 1, ms(5), hist),
            (ms(120), 3, ms(5), sort),
            (ms(130), 2, ms(10), hist),
            (ms(135), 2, ms(5), sort),
            (ms(150), 1, ms(5), sort),
        ];
        let wait = Sample { time: ms(140), thread: 3, stack: 0, weight: ms(40) };
        let mut times = FxHashMap::default();
        add_holders(&wait, &running, &mut times);
        let steps: FxHashMap<(u32, u32), Step> = [26, 28]
            .map(|line| ((0, line), Step { source: 0, line, row: 0, is_compiled: false, is_module: false }))
            .into_iter()
            .collect();
        let holders = finish(times, &steps);
        let compiled: Vec<_> = holders.compiled.iter().map(|holder| (holder.function, holder.count.weight)).collect();
        assert_eq!(compiled, [(1, ms(30))]);
        assert_eq!(holders.python[0].1.weight, ms(10));
        assert_eq!(holders.count.weight, ms(40));
    }

    #[test]
    fn a_function_beside_which_python_runs_does_not_hold_the_lock() {
        let ms = |time: u64| time * 1_000_000;
        let (function, python) = (Holder::Compiled(1, 0, 26), Holder::Python(0, 28));
        // Thread 1 runs the function, and thread 2 Python: at the same time, or while thread 1 waits.
        let is_beside = |waits: bool| {
            let mut process = Process::default();
            for tick in 0..20 {
                process.samples.push((1, ms(10 * tick), Some(function)));
                process.running.push((ms(10 * tick), 1, ms(5), function));
                process.running.push((ms(10 * tick + 5), 2, ms(5), python));
                if waits {
                    process.samples.push((1, ms(10 * tick + 9), None));
                }
            }
            process.sort();
            let mut overlaps = FxHashMap::default();
            process.add_overlaps(&mut overlaps);
            overlaps.get(&1).is_some_and(Overlaps::are_many)
        };
        assert!(is_beside(false));
        assert!(!is_beside(true));
    }
}
