//! Limits the handler to 1/20 of a thread's time, so that the thread makes progress even if the handler is slow.
//!
//! A signal that arrives while the handler runs is delivered as soon as it returns. A handler that takes longer than
//! the interval would block the thread forever.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// The handler's maximum share of the elapsed time is one divided by this number.
const HANDLER_TIME_DIVISOR: u64 = 20;

/// Pacing state of one thread, for its handler. All zeros before the first sample.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Duration of the last sample in ns. Its CPU time in a waiting thread, or if it was only preempted after an expensive
    /// sample.
    last_cost_ns: AtomicU64,
    /// Number of intervals that are still to be skipped.
    intervals_to_skip: AtomicU64,
    /// Number of signals skipped since the writer last checked.
    skipped: AtomicU64,
}

impl Pace {
    pub(crate) fn reset(&self) {
        self.last_cost_ns.store(0, Ordering::Relaxed);
        self.intervals_to_skip.store(0, Ordering::Relaxed);
    }

    /// Returns true if this signal, which accounts for `intervals` intervals, should be skipped.
    pub(crate) fn take_skip(&self, intervals: u64) -> bool {
        let to_skip = self.intervals_to_skip.load(Ordering::Relaxed);
        self.intervals_to_skip.store(to_skip.saturating_sub(intervals), Ordering::Relaxed);
        let is_skipped = to_skip > 0;
        self.skipped.fetch_add(u64::from(is_skipped), Ordering::Relaxed);
        is_skipped
    }

    /// Returns the number of skipped signals since the last call. Only for the writer.
    pub(crate) fn take_skipped(&self) -> u64 {
        self.skipped.swap(0, Ordering::Relaxed)
    }

    /// Duration of the last sample in ns.
    pub(crate) fn last_cost_ns(&self) -> u64 {
        self.last_cost_ns.load(Ordering::Relaxed)
    }

    /// Returns true if the next sample may lead to skipped signals, with signals `interval` ns apart. If it is preempted,
    /// its cost is then its CPU time: on a busy machine, two samples in a row may be preempted for many intervals, and
    /// the time of all skipped signals would be charged to one stack.
    pub(crate) fn may_skip(&self, interval: u64) -> bool {
        is_expensive(self.last_cost_ns(), interval)
    }

    /// Records that a sample took `cost` ns, with signals `interval` ns apart. A single expensive sample may have been
    /// preempted, so the cheaper of the last two counts.
    pub(crate) fn record_cost(&self, cost: u64, interval: u64) {
        let typical_cost = cost.min(self.last_cost_ns.swap(cost, Ordering::Relaxed));
        let min_interval_sum = typical_cost.saturating_mul(HANDLER_TIME_DIVISOR);
        let to_skip = if is_expensive(typical_cost, interval) { min_interval_sum / interval.max(1) } else { 0 };
        self.intervals_to_skip.store(to_skip, Ordering::Relaxed);
    }
}

/// Returns true if a sample takes more than its share of the time between two signals.
fn is_expensive(cost: u64, interval: u64) -> bool {
    cost.saturating_mul(HANDLER_TIME_DIVISOR) > interval
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates `intervals` signals. Returns the number of samples, the number of skipped signals, and the handlers'
    /// total time in ns.
    fn run(intervals: u64, interval: u64, cost: impl Fn(u64) -> u64) -> (u64, u64, u64) {
        run_preempted(intervals, interval, |_| 0, cost)
    }

    /// The same with handlers that are preempted for a time, which is no CPU time.
    fn run_preempted(
        intervals: u64,
        interval: u64,
        preempted: impl Fn(u64) -> u64,
        cost: impl Fn(u64) -> u64,
    ) -> (u64, u64, u64) {
        let pace =
            Pace { last_cost_ns: AtomicU64::new(0), intervals_to_skip: AtomicU64::new(0), skipped: AtomicU64::new(0) };
        let (mut samples, mut skipped, mut time) = (0, 0, 0);
        for number in 0..intervals {
            if pace.take_skip(1) {
                skipped += 1;
            } else {
                samples += 1;
                time += cost(number);
                let elapsed = cost(number) + if pace.may_skip(interval) { 0 } else { preempted(number) };
                pace.record_cost(elapsed, interval);
            }
        }
        assert_eq!(pace.take_skipped(), skipped);
        (samples, skipped, time)
    }

    #[test]
    fn a_slow_handler_gets_a_twentieth_of_the_time() {
        for cost in [60, 300, 1_000, 10_000] {
            let (samples, skipped, time) = run(100_000, 1_000, |_| cost);
            assert!(samples > 100 && skipped > samples / 2, "{cost}: {samples} samples, {skipped} skipped");
            assert!(time < 100_000 * 1_000 / HANDLER_TIME_DIVISOR + 20 * cost, "{cost}: {time} ns");
        }
    }

    #[test]
    fn fast_and_preempted_handlers_skip_nothing() {
        assert_eq!(run(1_000, 1_000, |_| 50), (1_000, 0, 50_000));
        let (samples, ..) = run(1_000, 1_000, |number| if number % 10 == 0 { 1_000_000 } else { 20 });
        assert_eq!(samples, 1_000);
    }

    #[test]
    fn handlers_that_are_always_preempted_skip_only_what_they_cost() {
        assert_eq!(run_preempted(1_000, 1_000, |_| 23_000, |_| 20), (1_000, 0, 20_000));
        let (_, skipped, time) = run_preempted(100_000, 1_000, |_| 23_000, |_| 300);
        assert!(skipped > 50_000 && time < 100_000 * 1_000 / HANDLER_TIME_DIVISOR + 6_000, "{skipped}, {time} ns");
    }
}
