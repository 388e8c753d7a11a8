//! The source of a thread's signals (a timer, a counter, or both), and the time or events that its samples account for.
//!
//! In wall-clock mode and with events, the periods of all samples add up to the thread's time or events. Time or events
//! that no sample has accounted for yet are part of the next sample's period. With CPU time, each sample has the same
//! period (`ticks.rs`). In all modes the writer records a thread's total as well, for reports to scale the periods.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use crate::system::clock;
use crate::thread::counter::OpenCounter;
use crate::thread::timer::Timer;

/// What the samples of a recording measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Measure {
    /// CPU time of the thread. Waiting threads are not disturbed.
    CpuTime,
    /// Elapsed time, including the time that threads spend waiting (`wall_clock`).
    WallTime,
    /// Events that a perf counter counts.
    Events,
}

/// Periods of a counter until its first signal, and from then on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Periods {
    pub(super) first: u64,
    pub(super) full: u64,
}

/// The timer and counter of a slot. All zeros: none.
#[derive(Debug)]
pub(crate) struct Source {
    /// Timer id plus one; 0 if none.
    timer: AtomicI32,
    /// File descriptor of the counter plus one; 0 if none.
    descriptor: AtomicI32,
    /// Id of the counter.
    counter_id: AtomicU64,
    /// [`Periods`] of the counter; 0 if the kernel adapts them. After its first signal, the first is 0, too.
    first_period: AtomicU64,
    full_period: AtomicU64,
    /// A [`Measure`].
    measure: AtomicU8,
    /// Thread time, or counter value, that the periods of all samples so far add up to.
    accounted_total: AtomicU64,
    /// Thread time, or counter value, that the writer has recorded.
    recorded_total: AtomicU64,
    /// Thread time, or counter value, at the end of the thread; 0 if unknown.
    final_total: AtomicU64,
    /// Time or events of skipped signals; in wall-clock mode, the time up to the writer's last check.
    pending: AtomicU64,
}

impl Source {
    /// Returns the open counter.
    pub(crate) fn counter(&self) -> Option<OpenCounter> {
        let (handle, id) = (self.descriptor.load(Ordering::Acquire), self.counter_id.load(Ordering::Acquire));
        (handle != 0).then(|| OpenCounter { descriptor: handle - 1, id })
    }

    /// Returns the timer.
    pub(crate) fn timer(&self) -> Option<Timer> {
        let handle = self.timer.load(Ordering::SeqCst);
        (handle != 0).then(|| Timer(handle - 1))
    }

    pub(crate) fn measure(&self) -> Measure {
        match self.measure.load(Ordering::Relaxed) {
            0 => Measure::CpuTime,
            1 => Measure::WallTime,
            _ => Measure::Events,
        }
    }

    /// Prepares for the timer or counter of a thread.
    pub(super) fn begin(&self, measure: Measure, tid: u32) {
        self.timer.store(0, Ordering::Release);
        self.measure.store(measure as u8, Ordering::Relaxed);
        // A counter starts at zero, and is not open yet.
        let total = if measure == Measure::Events { 0 } else { self.read_total(tid).unwrap_or(0) };
        self.accounted_total.store(total, Ordering::Relaxed);
        self.recorded_total.store(total, Ordering::Relaxed);
        self.final_total.store(0, Ordering::Relaxed);
    }

    pub(super) fn set_timer(&self, timer: Timer) {
        self.timer.store(timer.0 + 1, Ordering::SeqCst);
    }

    /// Sets a counter with these periods. `None` if the kernel adapts them.
    pub(super) fn set_counter(&self, counter: OpenCounter, periods: Option<Periods>) {
        self.first_period.store(periods.map_or(0, |periods| periods.first), Ordering::Relaxed);
        self.full_period.store(periods.map_or(0, |periods| periods.full), Ordering::Relaxed);
        self.counter_id.store(counter.id, Ordering::Release);
        self.descriptor.store(counter.descriptor + 1, Ordering::Release);
    }

    /// Deletes the timer, if there is one.
    pub(super) fn delete_timer(&self) {
        let handle = self.timer.swap(0, Ordering::SeqCst);
        if handle != 0 {
            Timer(handle - 1).delete();
        }
    }

    /// Stops the signals. A counter stays open, because a handler may be using it.
    pub(super) fn stop(&self) {
        self.delete_timer();
        if let Some(counter) = self.counter() {
            counter.stop();
        }
    }

    /// Closes the counter, which no handler may be using.
    pub(crate) fn close_counter(&self) {
        if let Some(counter) = self.counter()
            && self.descriptor.compare_exchange(counter.descriptor + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            counter.close();
        }
    }

    /// True at the first signal of a counter if an earlier one was due. The thread was in the kernel then, which the
    /// counter leaves out, and the first period, which may be very short, has passed once more.
    pub(crate) fn is_first_signal_late(&self) -> bool {
        const MIN_DELAY: u64 = 100_000;
        let first_period = self.first_period.load(Ordering::Relaxed);
        let read_count = || self.counter()?.read_count();
        first_period != 0 && read_count().is_some_and(|count| count >= (2 * first_period).max(MIN_DELAY))
    }

    /// Re-enables the counter, if any, after a signal.
    pub(super) fn resume_counter(&self) {
        let Some(counter) = self.counter() else { return };
        if self.first_period.swap(0, Ordering::Relaxed) != 0 {
            counter.set_period(self.full_period.load(Ordering::Relaxed));
        }
        counter.resume();
    }

    /// Adds time or events to the next sample's period.
    pub(crate) fn add_pending(&self, amount: u64) {
        self.pending.fetch_add(amount, Ordering::AcqRel);
    }

    pub(crate) fn take_pending(&self) -> u64 {
        self.pending.swap(0, Ordering::AcqRel)
    }

    pub(crate) fn has_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire) != 0
    }

    /// Reads the thread's time, or its counted events. `None` if the thread has exited, or its counter is closed.
    fn read_total(&self, tid: u32) -> Option<u64> {
        match self.measure() {
            Measure::CpuTime => Some(clock::thread_cpu(tid)).filter(|time| *time != 0),
            Measure::WallTime => Some(clock::monotonic()),
            Measure::Events => self.counter()?.read_count(),
        }
    }

    /// Returns the thread's time, or its counted events, since the previous call.
    pub(crate) fn take_unaccounted(&self, tid: u32) -> u64 {
        let Some(total) = self.read_total(tid) else { return 0 };
        total.saturating_sub(self.accounted_total.swap(total, Ordering::Relaxed))
    }

    /// Returns the time since the last call of [`Source::take_unaccounted`] until the end of the thread.
    pub(crate) fn take_unaccounted_at_end(&self) -> u64 {
        let total = self.final_total.load(Ordering::Acquire);
        total.saturating_sub(self.accounted_total.swap(total, Ordering::Relaxed))
    }

    /// Stores the thread's total at its end.
    pub(super) fn set_final_total(&self, tid: u32) {
        self.final_total.store(self.read_total(tid).unwrap_or(0), Ordering::Release);
    }

    /// Returns the thread's time, or its counted events, since the previous call. Only for the writer.
    pub(crate) fn take_unrecorded(&self, tid: u32) -> u64 {
        let final_total = Some(self.final_total.load(Ordering::Acquire)).filter(|total| *total != 0);
        let Some(total) = final_total.or_else(|| self.read_total(tid)) else { return 0 };
        total.saturating_sub(self.recorded_total.swap(total, Ordering::Relaxed))
    }

    /// Forgets unaccounted time or events, for a new owner.
    pub(super) fn reset(&self) {
        self.pending.store(0, Ordering::Relaxed);
    }

    /// Forgets the parent's timer in a fork child, where a timer with that id belongs to the program. A counter is
    /// kept, because the child has a copy of its descriptor.
    pub(super) fn forget_timer(&self) {
        self.timer.store(0, Ordering::Relaxed);
    }
}
