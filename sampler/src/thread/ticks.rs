//! Samples of a thread's CPU time at the kernel's clock tick.
//!
//! The kernel checks CPU timers only at its tick, 100 to 1,000 times per second (`CONFIG_HZ`). A timer with the period
//! of the samples would expire late, at the next tick, and so prefer the end of short threads and bursts.
//! Therefore each tick that finds the thread running sends a signal, and the handler keeps every tick with the same
//! probability. A kept tick stands for the same time wherever it is. In expectation, a thread that is shorter than a
//! tick gets its CPU time, although most such threads have no sample.
//!
//! On a busy machine, threads begin to run at ticks, so that fewer ticks find them. The timer tells how much CPU time
//! has passed, and the time of a long thread's ticks is scaled to it. Short threads use the sums of ended threads.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use crate::system::clock::{self, ThreadUsage};
use crate::thread::clock_choice::{Choice, ShortThreadUsage};

/// Range of plausible ticks, in ns. Outside, the timer is assumed to expire when it should.
const PLAUSIBLE_TICKS_NS: std::ops::RangeInclusive<u64> = 500_000..=20_000_000;
/// The interval of the timer is a tick divided by this number: short enough for each tick to find the timer expired,
/// and bounded for a kernel whose timers are more precise than its clock claims.
const INTERVALS_PER_TICK: u64 = 16;

/// Number of ticks after which the time of a tick is known well enough.
const MIN_TICKS: u64 = 16;
/// A sample corrects the sum of a thread's samples by their distance from its CPU time, divided by this number.
const CORRECTION_DIVISOR: i64 = 16;
/// Number of ticks after which the older half is forgotten.
const MAX_TICKS: u64 = 1024;

/// Number of samples that a user clock must have left out for a tick outside of system calls to be kept.
const MIN_REST_SAMPLES: i64 = 16;
/// Number of samples that a user clock may have left out; more are forgotten.
const MAX_REST_SAMPLES: i64 = 20;

/// Tick of the kernel, and period of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TickClock {
    tick_ns: u64,
    /// Interval of the timer in ns.
    pub(crate) interval_ns: u64,
    /// Time that a sample stands for, in ns: the period, but at least a tick.
    pub(crate) sample_ns: u64,
}

impl TickClock {
    /// Returns the clock for samples that are `period_ns` apart.
    pub(crate) fn new(period_ns: u64) -> TickClock {
        TickClock::with_tick(clock::tick(), period_ns)
    }

    fn with_tick(tick_ns: u64, period_ns: u64) -> TickClock {
        if PLAUSIBLE_TICKS_NS.contains(&tick_ns) {
            TickClock { tick_ns, interval_ns: tick_ns / INTERVALS_PER_TICK, sample_ns: period_ns.max(tick_ns) }
        } else {
            TickClock { tick_ns: period_ns, interval_ns: period_ns, sample_ns: period_ns }
        }
    }
}

/// Sums over short threads that have ended.
#[derive(Debug, Default)]
pub(crate) struct ShortThreads {
    ticks: AtomicU64,
    elapsed_ns: AtomicU64,
    /// CPU time of threads with a user clock, without the time of their samples.
    rest_ns: AtomicI64,
    usage: ShortThreadUsage,
}

impl ShortThreads {
    /// Returns the clock for new threads.
    pub(super) fn choice(&self) -> Choice {
        self.usage.choice()
    }

    /// Takes the time that a new thread with a user clock samples at ticks.
    pub(super) fn take_rest(&self) -> i64 {
        self.rest_ns.swap(0, Relaxed)
    }
}

/// Ticks of one thread, for its handler.
#[derive(Debug)]
pub(crate) struct Ticks {
    /// Time of the ticks since the last kept one, in ns, plus a random time at the start.
    credit_ns: AtomicU64,
    /// Number of recent ticks.
    ticks: AtomicU64,
    /// CPU time between the recent ticks, in ns.
    elapsed_ns: AtomicU64,
    /// CPU time between the ticks of a thread with a user clock, in ns.
    rest_elapsed_ns: AtomicU64,
    /// CPU time without the time of all samples, in ns.
    rest_ns: AtomicI64,
    /// Number of the thread's voluntary context switches at its last sample.
    switches: AtomicU64,
}

impl Ticks {
    /// Starts to count. `random` decides which ticks are kept, and keeps threads from being sampled in lockstep.
    pub(super) fn begin(&self, clock: TickClock, random: u64) {
        self.credit_ns.store(random % clock.sample_ns, Relaxed);
        for counter in [&self.ticks, &self.elapsed_ns, &self.rest_elapsed_ns, &self.switches] {
            counter.store(0, Relaxed);
        }
        self.begin_rest(0);
    }

    /// Counts a tick. Returns the time that a sample of it stands for; 0 if the tick is not kept. `overrun` is the
    /// timer's, and `voluntary_switches` returns the number of the thread's voluntary context switches.
    ///
    /// Ticks at which the thread blocks signals send one signal, when it unblocks them. The thread's switches
    /// distinguish them from ticks that did not find it running: all ticks find a thread that has never waited.
    pub(crate) fn count(
        &self,
        clock: TickClock,
        short_threads: &ShortThreads,
        overrun: u64,
        voluntary_switches: impl FnOnce() -> u64,
    ) -> u64 {
        let elapsed_ns = clock.interval_ns.saturating_mul(overrun + 1);
        let ticks = elapsed_ns / clock.tick_ns;
        let is_unbroken = ticks > 2 && self.switches.load(Relaxed) == voluntary_switches();
        let ticks = if is_unbroken { ticks } else { 1 };
        let credit_ns = self.credit_ns.load(Relaxed) + clock.tick_ns * ticks;
        self.credit_ns.store(credit_ns % clock.sample_ns, Relaxed);
        self.scale(clock, short_threads, (ticks, elapsed_ns), credit_ns - credit_ns % clock.sample_ns)
    }

    /// Counts ticks between which this CPU time has passed, and scales a time in ticks to CPU time.
    fn scale(&self, clock: TickClock, short_threads: &ShortThreads, new: (u64, u64), time: u64) -> u64 {
        let mut ticks = self.ticks.load(Relaxed) + new.0;
        let mut elapsed_ns = self.elapsed_ns.load(Relaxed).saturating_add(new.1);
        if ticks > MAX_TICKS {
            (ticks, elapsed_ns) = (ticks / 2, elapsed_ns / 2);
        }
        self.ticks.store(ticks, Relaxed);
        self.elapsed_ns.store(elapsed_ns, Relaxed);
        let is_long = ticks >= MIN_TICKS;
        if !is_long {
            (ticks, elapsed_ns) = (short_threads.ticks.load(Relaxed), short_threads.elapsed_ns.load(Relaxed));
        }
        let scaled = match ticks {
            MIN_TICKS.. => (u128::from(time) * u128::from(elapsed_ns) / u128::from(ticks * clock.tick_ns)) as i64,
            _ => time as i64,
        };
        let rest_ns = self.rest_ns.load(Relaxed).saturating_add_unsigned(new.1).saturating_sub(scaled);
        let may_correct = is_long && time != 0;
        let correction = if may_correct { (rest_ns / CORRECTION_DIVISOR).clamp(-scaled / 2, scaled) } else { 0 };
        self.rest_ns.store(rest_ns - correction, Relaxed);
        (scaled + correction) as u64
    }

    /// Adds a thread that ends after this CPU time, if it is short.
    pub(super) fn end(
        &self,
        clock: TickClock,
        short_threads: &ShortThreads,
        usage: ThreadUsage,
        cpu_ns: u64,
        has_user_clock: bool,
    ) {
        let ticks = self.ticks.load(Relaxed);
        if cpu_ns >= MIN_TICKS * clock.tick_ns || ticks >= MIN_TICKS {
            return;
        }
        short_threads.usage.add(usage);
        let cpu_ns = cpu_ns.saturating_sub(self.rest_elapsed_ns.load(Relaxed));
        if has_user_clock {
            let since_tick_ns = cpu_ns.saturating_sub(self.elapsed_ns.load(Relaxed)) as i64;
            short_threads.rest_ns.fetch_add(self.rest_ns.load(Relaxed) + since_tick_ns, Relaxed);
        } else {
            short_threads.ticks.fetch_add(ticks, Relaxed);
            short_threads.elapsed_ns.fetch_add(cpu_ns, Relaxed);
        }
    }

    /// Begins to count the time that the user clock leaves out, with `rest_ns` of earlier threads.
    pub(super) fn begin_rest(&self, rest_ns: i64) {
        self.rest_ns.store(rest_ns, Relaxed);
    }

    /// Counts a tick of a thread with a user clock. Returns the time that a sample of it stands for; 0 if the tick is
    /// not kept. Ticks are kept as long as the samples add up to less than the thread's CPU time. The missing time is
    /// time in the kernel. Ticks are often in step with naps, and may find fewer or more system calls than there are,
    /// so a tick in a system call stands for all of that time. Page faults cannot be told from other code; threads
    /// with many have no user clock.
    pub(crate) fn count_rest(&self, clock: TickClock, overrun: u64, is_in_system_call: bool) -> u64 {
        let elapsed_ns = clock.interval_ns.saturating_mul(overrun + 1);
        self.rest_elapsed_ns.fetch_add(elapsed_ns, Relaxed);
        let elapsed_ns = i64::try_from(elapsed_ns).unwrap_or(i64::MAX);
        let sample_ns = clock.sample_ns as i64;
        let rest_ns = self.rest_ns.load(Relaxed).saturating_add(elapsed_ns).min(sample_ns * MAX_REST_SAMPLES);
        let kept_ns = match is_in_system_call {
            true => (rest_ns - rest_ns % sample_ns).max(0),
            false if rest_ns >= sample_ns * MIN_REST_SAMPLES => sample_ns,
            false => 0,
        };
        self.rest_ns.store(rest_ns - kept_ns, Relaxed);
        kept_ns as u64
    }

    /// Counts a sample of the user clock, which stands for `period_ns`.
    pub(crate) fn count_clock_sample(&self, period_ns: u64) {
        self.rest_ns.fetch_sub(period_ns as i64, Relaxed);
    }

    /// Stores the number of voluntary context switches at a sample.
    pub(crate) fn set_switches(&self, voluntary: u64) {
        self.switches.store(voluntary, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 4_000_000;

    fn begin(clock: TickClock, random: u64) -> Ticks {
        let [credit_ns, ticks, elapsed_ns, rest_elapsed_ns, switches] = [const { AtomicU64::new(0) }; 5];
        let rest_ns = AtomicI64::new(0);
        let ticks = Ticks { credit_ns, ticks, elapsed_ns, rest_elapsed_ns, rest_ns, switches };
        ticks.begin(clock, random);
        ticks
    }

    /// Threads of half a tick: one in two is found by a tick.
    #[test]
    fn threads_shorter_than_a_tick_get_their_time() {
        for period in [1_000_000, 5_025_125, 10_000_000] {
            let clock = TickClock::with_tick(TICK, period);
            let kept = |thread: u64| begin(clock, thread * 7_919_333).count(clock, &ShortThreads::default(), 0, || 0);
            let sum: u64 = (0..10_000).map(kept).sum();
            assert!(sum.abs_diff(10_000 * TICK) < 10_000 * TICK / 50, "{period}: {sum}");
        }
    }

    #[test]
    fn each_tick_of_a_thread_counts_once() {
        let clock = TickClock::with_tick(TICK, 5_025_125);
        let ticks = begin(clock, 3);
        let kept = (0..1000).filter(|_| ticks.count(clock, &ShortThreads::default(), 15, || 0) != 0).count() as u64;
        assert!((kept * clock.sample_ns).abs_diff(1000 * TICK) <= clock.sample_ns, "{kept}");
    }

    #[test]
    fn short_threads_get_the_time_that_ticks_miss() {
        let clock = TickClock::with_tick(TICK, TICK);
        let short_threads = ShortThreads::default();
        let ran_for_ten_ticks = |ticks: u64| {
            let thread = begin(clock, 0);
            let sum: u64 = (0..ticks).map(|_| thread.count(clock, &short_threads, 15, || 0)).sum();
            thread.end(clock, &short_threads, ThreadUsage::default(), 10 * TICK, false);
            sum
        };
        assert_eq!(ran_for_ten_ticks(5), 5 * TICK);
        let sum: u64 = (0..100).map(|_| ran_for_ten_ticks(5)).sum();
        assert!(sum.abs_diff(1000 * TICK) <= 20 * TICK, "{sum}");
    }

    /// Two of three ticks find the thread that was preempted at the tick before.
    #[test]
    fn a_long_thread_gets_its_time_even_if_ticks_miss_it() {
        let clock = TickClock::with_tick(TICK, 5_025_125);
        let ticks = begin(clock, 3);
        // Fewer and fewer ticks miss it.
        let overruns = (0..1000).map(|number| if number < 500 { 31 } else { 15 });
        let sum: u64 = overruns.map(|overrun| ticks.count(clock, &ShortThreads::default(), overrun, || 1)).sum();
        assert!(sum.abs_diff(1500 * TICK) <= 15 * TICK, "{sum}");
    }

    /// The thread has blocked signals for ten ticks, or was found by the last of them only.
    #[test]
    fn blocked_ticks_count_if_the_thread_has_not_waited() {
        let clock = TickClock::with_tick(TICK, TICK);
        let ticks = begin(clock, 0);
        ticks.set_switches(5);
        assert_eq!(ticks.count(clock, &ShortThreads::default(), 160, || 5), 10 * TICK);
        assert_eq!(ticks.count(clock, &ShortThreads::default(), 160, || 6), TICK);
    }

    /// A quarter of the thread's time is in the kernel. One tick in ten finds it there, or none.
    #[test]
    fn the_tick_samples_what_the_user_clock_leaves_out() {
        let clock = TickClock::with_tick(TICK, 5_025_125);
        for finds_kernel in [true, false] {
            let ticks = begin(clock, 0);
            let (mut in_kernel, mut elsewhere) = (0, 0);
            for number in 0..10_000 {
                // Three of four intervals of the clock end in the user's code.
                if number % 4 != 0 {
                    ticks.count_clock_sample(TICK);
                }
                let is_in_system_call = finds_kernel && number % 10 == 0;
                let time = ticks.count_rest(clock, 15, is_in_system_call);
                *if is_in_system_call { &mut in_kernel } else { &mut elsewhere } += time;
            }
            let time = in_kernel + elsewhere;
            assert!(time.abs_diff(2500 * TICK) <= 20 * clock.sample_ns, "{in_kernel} {elsewhere}");
            assert!(if finds_kernel { elsewhere == 0 } else { in_kernel == 0 }, "{in_kernel} {elsewhere}");
        }
    }

    /// No sample of the user clock found them.
    #[test]
    fn short_threads_with_a_user_clock_leave_their_rest_to_later_ones() {
        let clock = TickClock::with_tick(TICK, TICK);
        let short_threads = ShortThreads::default();
        let mut sum = 0;
        for number in 0..100 {
            let thread = begin(clock, 0);
            thread.begin_rest(short_threads.take_rest());
            if number % 10 == 0 {
                sum += thread.count_rest(clock, 7, true);
            }
            thread.end(clock, &short_threads, ThreadUsage::default(), TICK, true);
        }
        assert_eq!(sum + short_threads.take_rest() as u64, 100 * TICK);
        assert!(sum >= 90 * TICK, "{sum}");
    }

    #[test]
    fn a_precise_timer_is_not_asked_for_more_signals_than_samples() {
        let clock = TickClock::with_tick(1, 5_025_125);
        assert_eq!(
            (clock.interval_ns, begin(clock, 0).count(clock, &ShortThreads::default(), 1, || 0)),
            (5_025_125, 5_025_125)
        );
    }
}
