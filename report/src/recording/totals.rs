//! Scales the periods of samples to the exact totals of threads (`PERF_RECORD_READ`).
//!
//! Our recorder gives each sample of CPU time the same period, so that lines get the right shares. Their sum is an
//! estimate of a thread's time, and the total is exact. Threads with too little time for a good estimate are scaled
//! together, to the sum of their totals: most of them may have no sample. Processes with too little time altogether are
//! scaled together when recordings are merged, because others have no sample, and so no recording. The recorder adds up
//! the time of those.

use rustc_hash::{FxHashMap, FxHashSet};
use wire::recording::UNSAMPLED_PROCESSES;

use super::thread::Thread;
use super::{Recording, Sample};

/// Number of samples that a thread needs to be scaled by itself.
const MIN_SAMPLES: u64 = 16;

/// Process and thread id.
pub(super) type ThreadKey = (u32, u32);

/// Sums of a thread, or of all short threads of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    total: u64,
    weight: u64,
    samples: u64,
}

impl Sums {
    fn add(&mut self, other: Sums) {
        self.total = self.total.saturating_add(other.total);
        self.weight = self.weight.saturating_add(other.weight);
        self.samples += other.samples;
    }

    fn mean_weight(self) -> u64 {
        self.weight.checked_div(self.samples).unwrap_or(u64::MAX)
    }

    fn scale(self, weight: u64) -> u64 {
        let scaled = u128::from(weight) * u128::from(self.total) / u128::from(self.weight.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

/// Processes with too little time to be scaled by themselves.
#[derive(Clone, Debug, Default)]
pub(super) struct ShortProcesses {
    /// Their sums. The total includes processes without a recording.
    sums: Sums,
    /// Indices into [`Recording::threads`].
    threads: FxHashSet<u32>,
}

impl ShortProcesses {
    /// Adds those of another recording, whose threads have the indices `threads`.
    pub(super) fn add(&mut self, other: &ShortProcesses, threads: &[u32]) {
        self.sums.add(other.sums);
        self.threads.extend(other.threads.iter().filter_map(|thread| threads.get(*thread as usize)));
    }
}

impl Recording {
    /// Scales the samples of short processes, once the recordings of all of them have been merged.
    pub(super) fn scale_short_processes(&mut self) {
        let ShortProcesses { sums, threads } = std::mem::take(&mut self.short_processes);
        if sums.total >= sums.mean_weight().saturating_mul(MIN_SAMPLES) {
            for sample in self.samples.iter_mut().filter(|sample| threads.contains(&sample.thread)) {
                sample.weight = sums.scale(sample.weight);
            }
        }
    }
}

/// Totals of threads, and what their samples add up to.
#[derive(Debug, Default)]
pub(super) struct Totals {
    threads: FxHashMap<ThreadKey, Sums>,
    /// Time of processes without a recording.
    unsampled: u64,
}

impl Totals {
    pub(super) fn new(totals: FxHashMap<ThreadKey, u64>) -> Totals {
        let mut threads = FxHashMap::default();
        let mut unsampled = 0_u64;
        for ((pid, tid), total) in totals {
            if tid == UNSAMPLED_PROCESSES {
                unsampled = unsampled.saturating_add(total);
            } else {
                threads.insert((pid, tid), Sums { total, ..Sums::default() });
            }
        }
        Totals { threads, unsampled }
    }

    /// Counts a sample, whether or not it is selected. Samples of threads without a total are not scaled.
    pub(super) fn add_sample(&mut self, key: ThreadKey, weight: u64) {
        if let Some(sums) = self.threads.get_mut(&key) {
            sums.add(Sums { total: 0, weight, samples: 1 });
        }
    }

    /// Scales the samples. Returns the processes that are not scaled.
    pub(super) fn apply(self, threads: &[Thread], samples: &mut [Sample]) -> ShortProcesses {
        let mut all = Sums::default();
        self.threads.values().for_each(|sums| all.add(*sums));
        let min_total = all.mean_weight().saturating_mul(MIN_SAMPLES);
        let is_long = |sums: &Sums| sums.total >= min_total;
        let mut pools: FxHashMap<u32, Sums> = FxHashMap::default();
        let mut long_processes = FxHashSet::default();
        for ((pid, _), sums) in &self.threads {
            if is_long(sums) {
                long_processes.insert(*pid);
            } else {
                pools.entry(*pid).or_default().add(*sums);
            }
        }
        let mut short = ShortProcesses::default();
        short.sums.total = self.unsampled;
        for (pid, sums) in pools.iter().filter(|(pid, sums)| !is_long(sums) && !long_processes.contains(*pid)) {
            short.sums.add(*sums);
            let of_process = threads.iter().zip(0..).filter(|(thread, _)| thread.pid == *pid);
            short.threads.extend(of_process.map(|(_, index)| index));
        }
        for sample in samples {
            let Some(thread) = threads.get(sample.thread as usize) else { continue };
            let own = self.threads.get(&(thread.pid, thread.tid));
            let sums = own.and_then(|own| if is_long(own) { Some(own) } else { pools.get(&thread.pid) });
            if let Some(sums) = sums.filter(|sums| is_long(sums)) {
                sample.weight = sums.scale(sample.weight);
            }
        }
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 1000;

    /// Scales `counts` samples of each thread, whose totals are given, and returns the sum of each.
    fn scale(threads: &[(ThreadKey, u64, u64)]) -> Vec<u64> {
        let mut totals = Totals::new(threads.iter().map(|(key, total, _)| (*key, *total)).collect());
        let mut samples = Vec::new();
        for (index, (key, _, count)) in threads.iter().enumerate() {
            for _ in 0..*count {
                totals.add_sample(*key, PERIOD);
                samples.push(Sample { thread: index as u32, stack: 0, time: 0, weight: PERIOD });
            }
        }
        let rows: Vec<Thread> =
            threads.iter().map(|((pid, tid), ..)| Thread { pid: *pid, tid: *tid, ..Thread::default() }).collect();
        totals.apply(&rows, &mut samples);
        let sum = |index| samples.iter().filter(|sample| sample.thread == index).map(|sample| sample.weight).sum();
        (0..threads.len() as u32).map(sum).collect()
    }

    #[test]
    fn a_long_thread_gets_its_own_total_and_short_ones_theirs_together() {
        let mut threads = vec![((1, 1), 100_500, 99)];
        // 100 threads of half a period: 60 of them have a sample.
        threads.extend((2..102).map(|tid| ((1, tid), PERIOD / 2, u64::from(tid < 62))));
        let sums = scale(&threads);
        assert!(sums[0].abs_diff(100_500) < 100, "{}", sums[0]);
        let short: u64 = sums[1..].iter().sum();
        assert!(short.abs_diff(50_000) < 100, "{short}");
    }

    /// 40 of 100 children have a sample and a recording.
    #[test]
    fn short_processes_are_scaled_together() {
        assert_eq!(scale(&[((1, 1), PERIOD / 2, 1)]), [PERIOD]);
        let recording = |pid, unsampled| {
            let mut totals =
                Totals::new([((pid, pid), PERIOD / 2), ((pid, UNSAMPLED_PROCESSES), unsampled)].into_iter().collect());
            totals.add_sample((pid, pid), PERIOD);
            let threads = vec![Thread { pid, tid: pid, ..Thread::default() }];
            let mut samples = vec![Sample { thread: 0, stack: 0, time: 0, weight: PERIOD }];
            let short_processes = totals.apply(&threads, &mut samples);
            Recording { threads, samples, short_processes, ..Recording::default() }
        };
        let recordings = (1..=40).map(|pid| recording(pid, if pid == 7 { 60 * PERIOD / 2 } else { 0 })).collect();
        let merged = Recording::merged(recordings).expect("a recording");
        let sum: u64 = merged.samples.iter().map(|sample| sample.weight).sum();
        assert_eq!(sum, 50 * PERIOD);
    }

    #[test]
    fn a_thread_that_blocks_signals_takes_nothing_from_the_others() {
        assert_eq!(scale(&[((1, 1), 50 * PERIOD, 0), ((1, 2), 100 * PERIOD, 100)]), [0, 100 * PERIOD]);
    }
}
