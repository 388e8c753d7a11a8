//! Guarantees progress: a thread spends at most 1/20 of its time in the handler, even if the handler is slow.
//!
//! A signal that arrives while the handler runs is delivered as soon as it returns. A handler that takes longer than
//! the interval would block the thread forever.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// The handler may have this part of the time.
const PART: u64 = 20;

/// Of one thread, for its handler. All zeros before the first sample.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Nanoseconds of the last sample.
    cost: AtomicU64,
    /// Intervals for which there is no sample.
    rest: AtomicU64,
}

impl Pace {
    pub(crate) fn reset(&self) {
        self.cost.store(0, Ordering::Relaxed);
        self.rest.store(0, Ordering::Relaxed);
    }

    /// Whether to skip a signal whose period is so many intervals.
    pub(crate) fn is_too_early(&self, intervals: u64) -> bool {
        let rest = self.rest.load(Ordering::Relaxed);
        self.rest.store(rest.saturating_sub(intervals), Ordering::Relaxed);
        rest > 0
    }

    /// Nanoseconds of the last sample.
    pub(crate) fn last_cost(&self) -> u64 {
        self.cost.load(Ordering::Relaxed)
    }

    /// A sample took `cost` nanoseconds of an interval. One that took long once may have been put aside by the kernel:
    /// two in a row count, the cheaper one of them.
    pub(crate) fn took(&self, cost: u64, interval: u64) {
        let usual = cost.min(self.cost.swap(cost, Ordering::Relaxed));
        let due = usual.saturating_mul(PART);
        self.rest.store(if due > interval { due / interval.max(1) } else { 0 }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples, skipped signals, and nanoseconds of handlers, of so many intervals.
    fn run(intervals: u64, interval: u64, cost: impl Fn(u64) -> u64) -> (u64, u64, u64) {
        let pace = Pace { cost: AtomicU64::new(0), rest: AtomicU64::new(0) };
        let (mut samples, mut skipped, mut time) = (0, 0, 0);
        for number in 0..intervals {
            if pace.is_too_early(1) {
                skipped += 1;
            } else {
                samples += 1;
                time += cost(number);
                pace.took(cost(number), interval);
            }
        }
        (samples, skipped, time)
    }

    #[test]
    fn a_slow_handler_has_a_twentieth_of_the_time() {
        for cost in [60, 300, 1_000, 10_000] {
            let (samples, skipped, time) = run(100_000, 1_000, |_| cost);
            assert!(samples > 100 && skipped > samples / 2, "{cost}: {samples} samples, {skipped} skipped");
            assert!(time < 100_000 * 1_000 / PART + 20 * cost, "{cost}: {time} ns");
        }
    }

    #[test]
    fn a_fast_one_skips_nothing_and_one_that_was_put_aside_is_not_slow() {
        assert_eq!(run(1_000, 1_000, |_| 50), (1_000, 0, 50_000));
        let (samples, ..) = run(1_000, 1_000, |number| if number % 10 == 0 { 1_000_000 } else { 20 });
        assert_eq!(samples, 1_000);
    }
}
