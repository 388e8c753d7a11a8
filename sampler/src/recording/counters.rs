//! The counters of a recording.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::thread::run_queue::SchedulerTimes;

/// Counters of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Samples in the file.
    pub samples: u64,
    /// Samples whose stack could not be unwound to the thread's start.
    pub incomplete: u64,
    /// Samples whose stack was truncated because it was too deep.
    pub truncated: u64,
    /// Samples that were dropped for lack of space.
    pub lost: u64,
    /// Threads that were sampled.
    pub threads: u64,
    /// Threads that could not be sampled, because no timer was available.
    pub threads_without_timer: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Write errors; after the first one the recording ends.
    pub failures: u64,
}

/// A counter that several threads increment.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::Relaxed);
    }
}

/// CPU time, and time on the run queue, of the thread with the most CPU time. Both are in one word, in ms, because
/// several threads may end at once.
#[derive(Debug, Default)]
struct BusiestThread(AtomicU64);

impl BusiestThread {
    const NS_PER_UNIT: u64 = 1_000_000;

    fn add(&self, times: SchedulerTimes) {
        let half = |ns: u64| (ns / Self::NS_PER_UNIT).min(u64::from(u32::MAX));
        self.0.fetch_max(half(times.cpu_ns) << 32 | half(times.run_queue_ns), Ordering::Relaxed);
    }

    fn run_queue_ns(&self) -> u64 {
        u64::from(self.0.load(Ordering::Relaxed) as u32) * Self::NS_PER_UNIT
    }
}

/// Counters of a running recording: see [`Statistics`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) samples: Count,
    pub(crate) incomplete: Count,
    pub(crate) truncated: Count,
    pub(crate) lost: Count,
    /// Signals skipped because samples take too long.
    pub(crate) skipped: Count,
    /// Samples of user clocks (`clock_choice.rs`).
    pub(crate) by_user_clock: Count,
    /// Samples at ticks, of threads that often wait, or are short and preempted.
    pub(crate) inexact: Count,
    pub(crate) threads: Count,
    /// Threads that could not be sampled, because no timer or no slot was available.
    pub(crate) threads_without_timer: Count,
    /// Time that threads were on the run queue, in ns.
    pub(crate) run_queue_ns: Count,
    busiest_thread: BusiestThread,
    /// CPU time of child processes that are not recorded, in ns.
    pub(crate) unrecorded_children_ns: Count,
    pub(crate) bytes: Count,
    pub(crate) failures: Count,
    /// Walks of Python frames that ended at an unreadable frame.
    pub(crate) unreadable_stacks: Count,
    /// Python frames whose code object could not be defined.
    pub(crate) unnamed_frames: Count,
}

impl Counters {
    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            samples: self.samples.get(),
            incomplete: self.incomplete.get(),
            truncated: self.truncated.get(),
            lost: self.lost.get(),
            threads: self.threads.get(),
            threads_without_timer: self.threads_without_timer.get(),
            bytes: self.bytes.get(),
            failures: self.failures.get(),
        }
    }

    /// Returns the counters that the file contains.
    pub(crate) fn to_wire(&self) -> wire::counters::Counters {
        wire::counters::Counters {
            samples: self.samples.get(),
            incomplete: self.incomplete.get(),
            truncated: self.truncated.get(),
            lost: self.lost.get(),
            skipped: self.skipped.get(),
            by_user_clock: self.by_user_clock.get(),
            inexact: self.inexact.get(),
            threads: self.threads.get(),
            threads_without_timer: self.threads_without_timer.get(),
            run_queue_ns: self.run_queue_ns.get(),
            busiest_run_queue_ns: self.busiest_thread.run_queue_ns(),
            unrecorded_children_ns: self.unrecorded_children_ns.get(),
        }
    }

    /// Adds the times of a thread that is no longer sampled.
    pub(crate) fn add_run_queue(&self, times: SchedulerTimes) {
        self.run_queue_ns.add(times.run_queue_ns);
        self.busiest_thread.add(times);
    }

    /// True if no sample was taken.
    pub(crate) fn has_no_sample(&self) -> bool {
        self.samples.get() == 0 && self.lost.get() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_the_busiest_thread_belong_together() {
        let counters = Counters::default();
        let times = |cpu_ms: u64, run_queue_ms: u64| SchedulerTimes {
            cpu_ns: cpu_ms * 1_000_000,
            run_queue_ns: run_queue_ms * 1_000_000,
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let counters = &counters;
                scope.spawn(move || (0..1000).for_each(|n| counters.add_run_queue(times(n * 4 + thread, 5000 - n))));
            }
        });
        assert_eq!(counters.to_wire().busiest_run_queue_ns, 4001 * 1_000_000);
        counters.add_run_queue(SchedulerTimes { cpu_ns: u64::MAX, run_queue_ns: u64::MAX });
        assert_eq!(counters.to_wire().busiest_run_queue_ns, u64::from(u32::MAX) * 1_000_000);
    }
}
