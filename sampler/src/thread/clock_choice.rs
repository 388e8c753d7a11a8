//! Chooses the clock that samples a thread: the kernel's tick, or perf's `cpu-clock`.
//!
//! Threads that often wait are woken by timers that are in step with the tick, so the tick finds some of their work too
//! often and some never. On a busy machine, the kernel preempts at the tick: threads that wait for each other in a loop,
//! as those of OpenMP do, are at that loop by then. `cpu-clock` expires when it should. Its price is a timer that the
//! kernel programs at each context switch, so a thread that switches more than a few thousand times per second stays on
//! the tick.
//!
//! A signal of a counter that overflows in a system call would interrupt the call, so the clock leaves the kernel out.
//! The rest of the thread's time is sampled at the tick (`Ticks::count_rest`).

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

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

/// The clocks of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The tick is accurate enough.
    Tick,
    /// The thread often switches, and `cpu-clock` would cost too much, or leave too much out.
    TickDespiteSwitches,
    /// `cpu-clock` is affordable and more accurate.
    UserClock,
}

/// State of the choice for one thread, for its handler. All zeros: before the first sample.
#[derive(Debug)]
pub(crate) struct ClockChoice {
    /// Usage at the start of the window.
    cpu_ns: AtomicU64,
    waits: AtomicU64,
    switches: AtomicU64,
    page_faults: AtomicU64,
    often_waits: AtomicBool,
}

impl ClockChoice {
    pub(super) fn reset(&self) {
        self.begin_window(ThreadUsage::default());
        self.often_waits.store(false, Relaxed);
    }

    fn begin_window(&self, usage: ThreadUsage) {
        self.cpu_ns.store(usage.cpu_ns, Relaxed);
        self.waits.store(usage.voluntary_switches, Relaxed);
        self.switches.store(usage.switches(), Relaxed);
        self.page_faults.store(usage.page_faults, Relaxed);
    }

    /// True if the thread often waits, according to the last decision.
    pub(crate) fn often_waits(&self) -> bool {
        self.often_waits.load(Relaxed)
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
        self.often_waits.store(often_waits, Relaxed);
        Some(match (switches >= MIN_SWITCHES_PER_SECOND, is_affordable) {
            (false, _) => Choice::Tick,
            (true, false) => Choice::TickDespiteSwitches,
            (true, true) => Choice::UserClock,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_often_switch_but_not_too_often_use_the_user_clock() {
        let choice = |waits, preemptions, faults| {
            let zero = || AtomicU64::new(0);
            let (cpu_ns, often_waits) = (zero(), AtomicBool::new(false));
            let choice = ClockChoice { cpu_ns, waits: zero(), switches: zero(), page_faults: zero(), often_waits };
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
}
