//! The event, the rate, and the measured amount of each thread: set at the start of a recording, read by every new
//! thread and in the handler. In atomics, because readers take no lock.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::clock;
use crate::counter::OpenCounter;
use crate::event_name::Counter;
use crate::options::Clock;
use crate::slot::Slot;

static CLOCK: AtomicU32 = AtomicU32::new(0);
static RATE_HZ: AtomicU32 = AtomicU32::new(0);
/// Of the event that is counted instead.
static USES_COUNTER: AtomicBool = AtomicBool::new(false);
static COUNTER_KIND: AtomicU32 = AtomicU32::new(0);
static COUNTER_CONFIG: AtomicU64 = AtomicU64::new(0);
static COUNTER_USER_ONLY: AtomicBool = AtomicBool::new(false);

/// The main thread's stack.
static MAIN_STACK_LOW: AtomicU64 = AtomicU64::new(0);
static MAIN_STACK_HIGH: AtomicU64 = AtomicU64::new(0);

/// Where the main thread's stack is; zeros if it is not known.
pub(crate) fn main_stack() -> (u64, u64) {
    (MAIN_STACK_LOW.load(Ordering::Relaxed), MAIN_STACK_HIGH.load(Ordering::Relaxed))
}

/// From its mapping, which the kernel makes larger down to `limit` bytes: no other mapping gets a place there.
pub(crate) fn set_main_stack((low, high): (u64, u64), limit: u64) {
    let low = low.min(high.saturating_sub(limit));
    MAIN_STACK_LOW.store(low, Ordering::Relaxed);
    MAIN_STACK_HIGH.store(high, Ordering::Relaxed);
}

/// What timers that are made from now on do; or counters, if there is one.
pub(crate) fn configure(clock: Clock, hz: u32, counter: Option<&Counter>) {
    CLOCK.store(clock as u32, Ordering::Relaxed);
    RATE_HZ.store(hz, Ordering::Relaxed);
    if let Some(counter) = counter {
        COUNTER_KIND.store(counter.kind, Ordering::Relaxed);
        COUNTER_CONFIG.store(counter.config, Ordering::Relaxed);
        COUNTER_USER_ONLY.store(counter.user_only, Ordering::Relaxed);
    }
    USES_COUNTER.store(counter.is_some(), Ordering::Relaxed);
}

/// Nanoseconds between two samples of a thread.
pub(crate) fn period_ns() -> u64 {
    1_000_000_000 / u64::from(rate_hz().max(1))
}

/// Samples a second.
pub(crate) fn rate_hz() -> u32 {
    RATE_HZ.load(Ordering::Relaxed)
}

/// Which time is measured, where nothing is counted.
pub(crate) fn configured_clock() -> Clock {
    if CLOCK.load(Ordering::Relaxed) == Clock::Wall as u32 { Clock::Wall } else { Clock::Cpu }
}

/// Whether the writer says when threads are sampled.
pub(crate) fn uses_wall_clock() -> bool {
    configured_clock() == Clock::Wall && !USES_COUNTER.load(Ordering::Relaxed)
}

/// What is counted instead of time.
pub(crate) fn configured_counter() -> Option<Counter> {
    USES_COUNTER.load(Ordering::Relaxed).then(|| {
        let (kind, config) = (COUNTER_KIND.load(Ordering::Relaxed), COUNTER_CONFIG.load(Ordering::Relaxed));
        Counter::from_config(kind, config, COUNTER_USER_ONLY.load(Ordering::Relaxed))
    })
}

/// The counter that the slot has.
pub(crate) fn slot_counter(slot: &Slot) -> Option<OpenCounter> {
    let (descriptor, id) = (slot.timer.load(Ordering::Acquire), slot.counter_id.load(Ordering::Acquire));
    (id != 0 && descriptor >= 0).then_some(OpenCounter { descriptor, id })
}

/// The period of a signal. A timer is looked at when the kernel ticks, which may be much later than its period is over;
/// `overrun` says how many periods more have passed, so that the sum is the thread's time but for the last period.
pub(crate) fn take_signal_period(slot: &Slot, overrun: i32) -> u64 {
    if slot_counter(slot).is_some() {
        return take_unaccounted(slot);
    }
    if configured_clock() == Clock::Wall {
        // The writer has put it into `owed`.
        return 0;
    }
    let period = slot.period.load(Ordering::Relaxed);
    let first = match slot.first_period.swap(0, Ordering::Relaxed) {
        0 => period,
        first => first,
    };
    let passed = first + period * u64::try_from(overrun).unwrap_or(0);
    slot.accounted.fetch_add(passed, Ordering::Relaxed);
    passed
}

/// The time of the thread, or the events of its counter, that no sample has in its period yet.
pub(crate) fn take_unaccounted(slot: &Slot) -> u64 {
    let now = match (slot_counter(slot), configured_clock()) {
        (Some(counter), _) => match counter.read_count() {
            Some(count) => count,
            None => return 0,
        },
        (None, Clock::Cpu) => clock::thread_cpu(slot.tid.load(Ordering::Relaxed)),
        (None, Clock::Wall) => clock::monotonic(),
    };
    now.saturating_sub(slot.accounted.swap(now, Ordering::Relaxed))
}
