//! The source of a thread's signals (a timer or a counter), and the time or events that its samples account for.
//!
//! The periods of all samples add up to the thread's time, or to its counted events. Time or events that no sample has
//! accounted for yet are part of the next sample's period.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::handler::clock;
use crate::recording::options::Clock;
use crate::thread::counter::OpenCounter;
use crate::thread::timer::Timer;

/// The timer or counter of a slot. All zeros: none.
#[derive(Debug)]
pub(crate) struct Source {
    /// Timer id, or file descriptor of the counter, plus one; 0 if none.
    handle: AtomicI32,
    /// Id of the perf counter; 0 for a timer.
    counter_id: AtomicU64,
    /// Thread time, or counter value, that the periods of all samples so far add up to.
    accounted_total: AtomicU64,
    /// True for a timer that measures elapsed time.
    is_wall_clock: AtomicBool,
    /// Timer period in ns.
    period: AtomicU64,
    /// Delay before the timer's first signal in ns; 0 after that signal.
    first_period: AtomicU64,
    /// Time or events of skipped signals; in wall-clock mode, the time up to the writer's last check.
    pending: AtomicU64,
}

impl Source {
    /// Returns the open counter.
    pub(crate) fn counter(&self) -> Option<OpenCounter> {
        let (handle, id) = (self.handle.load(Ordering::Acquire), self.counter_id.load(Ordering::Acquire));
        (id != 0 && handle != 0).then(|| OpenCounter { descriptor: handle - 1, id })
    }

    /// Returns the timer.
    pub(crate) fn timer(&self) -> Option<Timer> {
        let (handle, id) = (self.handle.load(Ordering::SeqCst), self.counter_id.load(Ordering::Acquire));
        (id == 0 && handle != 0).then(|| Timer(handle - 1))
    }

    /// Prepares for a timer whose first signal comes after `first` ns.
    pub(super) fn prepare_timer(&self, clock: Clock, period: u64, first: u64) {
        self.handle.store(0, Ordering::Release);
        self.counter_id.store(0, Ordering::Release);
        self.is_wall_clock.store(clock == Clock::Wall, Ordering::Relaxed);
        self.period.store(period, Ordering::Relaxed);
        self.first_period.store(first, Ordering::Relaxed);
    }

    pub(super) fn set_timer(&self, timer: Timer) {
        self.handle.store(timer.0 + 1, Ordering::SeqCst);
    }

    pub(super) fn set_counter(&self, counter: OpenCounter) {
        self.handle.store(counter.descriptor + 1, Ordering::Release);
        self.counter_id.store(counter.id, Ordering::Release);
        self.accounted_total.store(0, Ordering::Relaxed);
    }

    /// Deletes the timer, if there is one.
    pub(super) fn delete_timer(&self) {
        let handle = self.handle.swap(0, Ordering::SeqCst);
        if handle != 0 {
            Timer(handle - 1).delete();
        }
    }

    /// Stops the signals. A counter stays open, because a handler may be using it.
    pub(super) fn stop(&self) {
        match self.counter() {
            Some(counter) => counter.stop(),
            None => self.delete_timer(),
        }
    }

    /// Closes the counter, which no handler may be using.
    pub(super) fn close_counter(&self) {
        if let Some(counter) = self.counter()
            && self.handle.compare_exchange(counter.descriptor + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            counter.close();
        }
    }

    /// Starts a new interval of the CPU timer, after a sample that was not caused by a signal.
    pub(super) fn restart_timer(&self) {
        if let Some(timer) = self.timer().filter(|_| !self.is_wall_clock()) {
            let period = self.period.load(Ordering::Relaxed);
            self.first_period.store(period, Ordering::Relaxed);
            let _ = timer.set(period, period);
        }
    }

    fn is_wall_clock(&self) -> bool {
        self.is_wall_clock.load(Ordering::Relaxed)
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

    /// Returns the period of a signal, and accounts for it. The kernel checks a timer only at its tick, which may be
    /// much later than the expiry. `overrun` is the number of further periods that have elapsed by then, so the
    /// returned periods add up to the thread's time, except for an unfinished last period.
    pub(crate) fn take_signal_period(&self, tid: u32, overrun: i32) -> u64 {
        if self.counter().is_some() {
            return self.take_unaccounted(tid);
        }
        if self.is_wall_clock() {
            // The writer has already added the period to `pending`.
            return 0;
        }
        let period = self.period.load(Ordering::Relaxed);
        let first = match self.first_period.swap(0, Ordering::Relaxed) {
            0 => period,
            first => first,
        };
        let elapsed_ns = first + period * u64::try_from(overrun).unwrap_or(0);
        self.accounted_total.fetch_add(elapsed_ns, Ordering::Relaxed);
        elapsed_ns
    }

    /// Returns the thread's time, or its counted events, since the previous call.
    pub(crate) fn take_unaccounted(&self, tid: u32) -> u64 {
        let total = match self.counter() {
            Some(counter) => match counter.read_count() {
                Some(count) => count,
                None => return 0,
            },
            None if self.is_wall_clock() => clock::monotonic(),
            None => clock::thread_cpu(tid),
        };
        total.saturating_sub(self.accounted_total.swap(total, Ordering::Relaxed))
    }

    /// Forgets unaccounted time or events, for a new owner.
    pub(super) fn reset(&self) {
        self.first_period.store(0, Ordering::Relaxed);
        self.pending.store(0, Ordering::Relaxed);
    }

    /// Forgets the parent's timer in a fork child, where a timer with that id belongs to the program. A counter is
    /// kept, because the child has a copy of its descriptor.
    pub(super) fn forget_timer(&self) {
        if self.counter_id.load(Ordering::Relaxed) == 0 {
            self.handle.store(0, Ordering::Relaxed);
        }
    }
}
