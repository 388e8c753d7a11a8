//! Chooses the clock that samples a thread: the kernel's tick, or perf's `cpu-clock`.
//!
//! Threads that often wait are woken by timers that are in step with the tick, so the tick finds some of their work too
//! often and some never. On a busy machine, the kernel preempts at the tick: threads that wait for each other in a loop,
//! as those of OpenMP do, are at that loop by then. `cpu-clock` expires when it should. Its price is a timer that the
//! kernel programs at each context switch, so a thread that switches more than a few thousand times per second stays on
//! the tick.
//!
//! Threads that end earlier make no decision. On a busy machine, they begin to run at a tick. New threads begin with the
//! clock that such threads would have needed ([`ShortThreadUsage`]).
//!
//! A signal of a counter that overflows in a system call would interrupt the call, so the clock leaves the kernel out.
//! The rest of the thread's time is sampled at the tick (`Ticks::count_rest`).

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::system::clock::ThreadUsage;

/// CPU time between two decisions.
const MIN_WINDOW_NS: u64 = 40_000_000;
/// Context switches per second of CPU time above which the tick is not accurate: bursts of less than 12 ticks at 250 per
/// second.
const MIN_SWITCHES_PER_SECOND: u64 = 20;
/// `cpu-clock` costs less than 1 % up to this many context switches per second of CPU time.
const MAX_SWITCHES_PER_SECOND: u64 = 4000;
/// Page faults take little time up to this many per second of CPU time. Only the tick samples that time.
const MAX_FAULTS_PER_SECOND: u64 = 30_000;

/// CPU time of a thread above which opening and closing a counter, some 40 us, costs less than 3 %.
const MIN_THREAD_NS: u64 = 1_500_000;

/// The clocks of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Choice {
    /// The tick is accurate enough.
    Tick,
    /// The thread often switches, and `cpu-clock` would cost too much, or leave too much out.
    TickDespiteSwitches,
    /// `cpu-clock` is affordable and more accurate.
    UserClock,
}

/// State of the choice for one thread, for its handler. All zeros: before the first sample.
#[derive(Debug, Default)]
pub(crate) struct ClockChoice {
    /// Usage at the start of the window.
    cpu_ns: AtomicU64,
    waits: AtomicU64,
    switches: AtomicU64,
    page_faults: AtomicU64,
    is_inexact_at_ticks: AtomicBool,
}

impl ClockChoice {
    pub(super) fn reset(&self) {
        self.begin_window(ThreadUsage::default());
        self.set_inexact_at_ticks(false);
    }

    fn begin_window(&self, usage: ThreadUsage) {
        self.cpu_ns.store(usage.cpu_ns, Relaxed);
        self.waits.store(usage.voluntary_switches, Relaxed);
        self.switches.store(usage.switches(), Relaxed);
        self.page_faults.store(usage.page_faults, Relaxed);
    }

    pub(super) fn set_inexact_at_ticks(&self, is_inexact: bool) {
        self.is_inexact_at_ticks.store(is_inexact, Relaxed);
    }

    /// True if the thread often waits, according to the last decision, or is new and may be short and preempted.
    pub(crate) fn is_inexact_at_ticks(&self) -> bool {
        self.is_inexact_at_ticks.load(Relaxed)
    }

    /// Returns the clock for a thread with this usage, if a decision is due.
    pub(crate) fn update(&self, usage: ThreadUsage) -> Option<Choice> {
        let cpu_ns = usage.cpu_ns.saturating_sub(self.cpu_ns.load(Relaxed));
        if cpu_ns < MIN_WINDOW_NS {
            return None;
        }
        let per_second = |now: u64, before: &AtomicU64| {
            let count = u128::from(now.saturating_sub(before.load(Relaxed)));
            (count * 1_000_000_000 / u128::from(cpu_ns)) as u64
        };
        let often_waits = per_second(usage.voluntary_switches, &self.waits) >= MIN_SWITCHES_PER_SECOND;
        let switches = per_second(usage.switches(), &self.switches);
        let is_affordable = switches <= MAX_SWITCHES_PER_SECOND
            && per_second(usage.page_faults, &self.page_faults) <= MAX_FAULTS_PER_SECOND;
        self.begin_window(usage);
        self.set_inexact_at_ticks(often_waits);
        Some(match (switches >= MIN_SWITCHES_PER_SECOND, is_affordable) {
            (false, _) => Choice::Tick,
            (true, false) => Choice::TickDespiteSwitches,
            (true, true) => Choice::UserClock,
        })
    }
}

/// Usage of short threads that have ended since the last decision. It chooses the clock of new threads, because short
/// ones never reach a decision of their own.
#[derive(Debug, Default)]
pub(crate) struct ShortThreadUsage {
    threads: AtomicU64,
    cpu_ns: AtomicU64,
    voluntary_switches: AtomicU64,
    involuntary_switches: AtomicU64,
    page_faults: AtomicU64,
    /// A [`Choice`].
    choice: AtomicU8,
}

impl ShortThreadUsage {
    /// Adds a thread that ends.
    pub(super) fn add(&self, thread: ThreadUsage) {
        let add = |total: &AtomicU64, number| total.fetch_add(number, Relaxed) + number;
        let threads = add(&self.threads, 1);
        let usage = ThreadUsage {
            cpu_ns: add(&self.cpu_ns, thread.cpu_ns),
            voluntary_switches: add(&self.voluntary_switches, thread.voluntary_switches),
            involuntary_switches: add(&self.involuntary_switches, thread.involuntary_switches),
            page_faults: add(&self.page_faults, thread.page_faults),
        };
        let Some(mut choice) = ClockChoice::default().update(usage) else { return };
        if choice == Choice::UserClock && usage.cpu_ns / threads < MIN_THREAD_NS {
            choice = Choice::TickDespiteSwitches;
        }
        self.choice.store(choice as u8, Relaxed);
        let Self { cpu_ns, voluntary_switches, involuntary_switches, page_faults, .. } = self;
        for total in [&self.threads, cpu_ns, voluntary_switches, involuntary_switches, page_faults] {
            total.store(0, Relaxed);
        }
    }

    pub(super) fn choice(&self) -> Choice {
        let choices = [Choice::TickDespiteSwitches, Choice::UserClock];
        choices.into_iter().find(|choice| *choice as u8 == self.choice.load(Relaxed)).unwrap_or(Choice::Tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_often_switch_but_not_too_often_use_the_user_clock() {
        let choice = |waits, preemptions, faults| {
            let choice = ClockChoice::default();
            let usage = |cpu_ns| ThreadUsage {
                voluntary_switches: waits,
                involuntary_switches: preemptions,
                page_faults: faults,
                cpu_ns,
            };
            assert_eq!(choice.update(usage(MIN_WINDOW_NS - 1)), None);
            // A tenth of a second.
            choice.update(usage(100_000_000)).expect("a decision")
        };
        assert_eq!(choice(1, 0, 0), Choice::Tick);
        assert_eq!(choice(0, 30, 0), Choice::UserClock, "on a busy machine");
        assert_eq!(choice(100, 30, 100), Choice::UserClock);
        assert_eq!(choice(300, 300, 0), Choice::TickDespiteSwitches);
        assert_eq!(choice(100, 0, 10_000), Choice::TickDespiteSwitches);
    }

    #[test]
    fn short_threads_choose_the_clock_of_later_ones() {
        let choice = |cpu_ns, preemptions| {
            let usage = ShortThreadUsage::default();
            let thread = ThreadUsage { cpu_ns, involuntary_switches: preemptions, ..ThreadUsage::default() };
            usage.add(thread);
            assert_eq!(usage.choice(), Choice::Tick);
            (0..1000).for_each(|_| usage.add(thread));
            usage.choice()
        };
        assert_eq!(choice(4_000_000, 0), Choice::Tick);
        assert_eq!(choice(4_000_000, 1), Choice::UserClock, "on a busy machine");
        assert_eq!(choice(500_000, 1), Choice::TickDespiteSwitches, "opening a counter would take too long");
    }
}
