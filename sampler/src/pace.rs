//! Guarantees progress: a thread spends at most 1/20 of its time in the handler, even if the handler is slow.
//!
//! A signal that arrives while the handler runs is delivered as soon as it returns. A handler that takes longer than
//! the interval would block the thread forever.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// The handler may have this part of the time.
const HANDLER_TIME_DIVISOR: u64 = 20;

/// Of one thread, for its handler. All zeros before the first sample.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Nanoseconds of the last sample.
    last_cost_ns: AtomicU64,
    /// Intervals for which there is no sample.
    intervals_to_skip: AtomicU64,
}

impl Pace {
    pub(crate) fn reset(&self) {
        self.last_cost_ns.store(0, Ordering::Relaxed);
        self.intervals_to_skip.store(0, Ordering::Relaxed);
    }

    /// Whether to skip a signal whose period is so many intervals.
    pub(crate) fn take_skip(&self, intervals: u64) -> bool {
        let rest = self.intervals_to_skip.load(Ordering::Relaxed);
        self.intervals_to_skip.store(rest.saturating_sub(intervals), Ordering::Relaxed);
        rest > 0
    }

    /// Nanoseconds of the last sample.
    pub(crate) fn last_cost_ns(&self) -> u64 {
        self.last_cost_ns.load(Ordering::Relaxed)
    }

    /// A sample took `cost` nanoseconds of an interval. One that took long once may have been put aside by the kernel:
    /// two in a row count, the cheaper one of them.
    pub(crate) fn record_cost(&self, cost: u64, interval: u64) {
        let usual = cost.min(self.last_cost_ns.swap(cost, Ordering::Relaxed));
        let due = usual.saturating_mul(HANDLER_TIME_DIVISOR);
        self.intervals_to_skip.store(if due > interval { due / interval.max(1) } else { 0 }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples, skipped signals, and nanoseconds of handlers, of so many intervals.
    fn run(intervals: u64, interval: u64, cost: impl Fn(u64) -> u64) -> (u64, u64, u64) {
        let pace = Pace { last_cost_ns: AtomicU64::new(0), intervals_to_skip: AtomicU64::new(0) };
        let (mut samples, mut skipped, mut time) = (0, 0, 0);
        for number in 0..intervals {
            if pace.take_skip(1) {
                skipped += 1;
            } else {
                samples += 1;
                time += cost(number);
                pace.record_cost(cost(number), interval);
            }
        }
        (samples, skipped, time)
    }

    #[test]
    fn a_slow_handler_has_a_twentieth_of_the_time() {
        for cost in [60, 300, 1_000, 10_000] {
            let (samples, skipped, time) = run(100_000, 1_000, |_| cost);
            assert!(samples > 100 && skipped > samples / 2, "{cost}: {samples} samples, {skipped} skipped");
            assert!(time < 100_000 * 1_000 / HANDLER_TIME_DIVISOR + 20 * cost, "{cost}: {time} ns");
        }
    }

    #[test]
    fn a_fast_one_skips_nothing_and_one_that_was_put_aside_is_not_slow() {
        assert_eq!(run(1_000, 1_000, |_| 50), (1_000, 0, 50_000));
        let (samples, ..) = run(1_000, 1_000, |number| if number % 10 == 0 { 1_000_000 } else { 20 });
        assert_eq!(samples, 1_000);
    }
}
