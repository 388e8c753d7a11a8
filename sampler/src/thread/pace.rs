//! Limits the handler to 1/20 of a thread's time, so that the thread makes progress even if the handler is slow.
//!
//! A signal that arrives while the handler runs is delivered as soon as it returns. A handler that takes longer than
//! the interval would block the thread forever.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// The handler's maximum share of the elapsed time is one divided by this number.
const HANDLER_TIME_DIVISOR: u64 = 20;

/// Pacing state of one thread, for its handler. All zeros before the first sample.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Duration of the last sample in ns. Its CPU time in a waiting thread, or if it was only preempted after an
    /// expensive sample.
    last_cost_ns: AtomicU64,
    /// Time in ns from the last sample to the next. Signals that account for less are skipped.
    remaining_ns: AtomicU64,
    /// Number of signals skipped since the writer last checked.
    skipped: AtomicU64,
}

impl Pace {
    pub(crate) fn reset(&self) {
        self.last_cost_ns.store(0, Ordering::Relaxed);
        self.remaining_ns.store(0, Ordering::Relaxed);
    }

    /// Returns true if this signal, which accounts for `elapsed` ns, should be skipped.
    pub(crate) fn take_skip(&self, elapsed: u64) -> bool {
        let remaining_ns = self.remaining_ns.load(Ordering::Relaxed);
        self.remaining_ns.store(remaining_ns.saturating_sub(elapsed), Ordering::Relaxed);
        let is_skipped = remaining_ns > elapsed;
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

    /// Returns true if the next sample may lead to skipped signals, with signals `interval` ns apart. If it is
    /// preempted, its cost is then its CPU time: on a busy machine, two samples in a row may be preempted for many
    /// intervals, and the time of all skipped signals would be charged to one stack.
    pub(crate) fn may_skip(&self, interval: u64) -> bool {
        self.last_cost_ns().saturating_mul(HANDLER_TIME_DIVISOR) > interval
    }

    /// Records that a sample took `cost` ns. A single expensive sample may have been preempted, so the cheaper of the
    /// last two counts.
    pub(crate) fn record_cost(&self, cost: u64) {
        let typical_cost = cost.min(self.last_cost_ns.swap(cost, Ordering::Relaxed));
        self.remaining_ns.store(typical_cost.saturating_mul(HANDLER_TIME_DIVISOR), Ordering::Relaxed);
    }
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
        let pace = Pace::default();
        let (mut samples, mut skipped, mut time) = (0, 0, 0);
        for number in 0..intervals {
            if pace.take_skip(interval) {
                skipped += 1;
            } else {
                samples += 1;
                time += cost(number);
                let elapsed = cost(number) + if pace.may_skip(interval) { 0 } else { preempted(number) };
                pace.record_cost(elapsed);
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

    /// Four of five signals come from a clock, the fifth from the tick, which is slower.
    #[test]
    fn signals_of_two_clocks_leave_the_handler_a_twentieth_of_their_time() {
        let pace = Pace::default();
        let (mut samples, mut total) = (0, 0);
        for number in 0..100_000 {
            let elapsed = if number % 5 == 0 { 4_000 } else { 1_000 };
            total += elapsed;
            if !pace.take_skip(elapsed) {
                samples += 1;
                pace.record_cost(190);
            }
        }
        let time = samples * 190;
        assert!(
            time < total / HANDLER_TIME_DIVISOR + 190 && time > total / HANDLER_TIME_DIVISOR / 2,
            "{time} of {total}"
        );
    }
}
