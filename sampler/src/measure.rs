//! The event, the rate, and the measured amount of each thread: set at the start of a recording, read by every new
//! thread and in the handler. In atomics, because readers take no lock.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::clock;
use crate::counter::Running;
use crate::event_name::Counter;
use crate::options::Clock;
use crate::slot::Slot;

static CLOCK: AtomicU32 = AtomicU32::new(0);
static HZ: AtomicU32 = AtomicU32::new(0);
/// Of the event that is counted instead.
static IS_COUNTED: AtomicBool = AtomicBool::new(false);
static COUNTER_KIND: AtomicU32 = AtomicU32::new(0);
static COUNTER_CONFIG: AtomicU64 = AtomicU64::new(0);
static COUNTER_IS_USERS: AtomicBool = AtomicBool::new(false);

/// The main thread's stack.
static STACK_LOW: AtomicU64 = AtomicU64::new(0);
static STACK_HIGH: AtomicU64 = AtomicU64::new(0);

/// Where the main thread's stack is; zeros if it is not known.
pub(crate) fn main_stack() -> (u64, u64) {
    (STACK_LOW.load(Ordering::Relaxed), STACK_HIGH.load(Ordering::Relaxed))
}

/// From its mapping, which the kernel makes larger down to `limit` bytes: no other mapping gets a place there.
pub(crate) fn set_main_stack((low, high): (u64, u64), limit: u64) {
    let low = low.min(high.saturating_sub(limit));
    STACK_LOW.store(low, Ordering::Relaxed);
    STACK_HIGH.store(high, Ordering::Relaxed);
}

/// What timers that are made from now on do; or counters, if there is one.
pub(crate) fn configure(clock: Clock, hz: u32, counter: Option<&Counter>) {
    CLOCK.store(clock as u32, Ordering::Relaxed);
    HZ.store(hz, Ordering::Relaxed);
    if let Some(counter) = counter {
        COUNTER_KIND.store(counter.kind, Ordering::Relaxed);
        COUNTER_CONFIG.store(counter.config, Ordering::Relaxed);
        COUNTER_IS_USERS.store(counter.user_only, Ordering::Relaxed);
    }
    IS_COUNTED.store(counter.is_some(), Ordering::Relaxed);
}

/// Nanoseconds between two samples of a thread.
pub(crate) fn period() -> u64 {
    1_000_000_000 / u64::from(rate().max(1))
}

/// Samples a second.
pub(crate) fn rate() -> u32 {
    HZ.load(Ordering::Relaxed)
}

/// Which time is measured, where nothing is counted.
pub(crate) fn clock_now() -> Clock {
    if CLOCK.load(Ordering::Relaxed) == Clock::Wall as u32 { Clock::Wall } else { Clock::Cpu }
}

/// Whether the writer says when threads are sampled.
pub(crate) fn is_wall() -> bool {
    clock_now() == Clock::Wall && !IS_COUNTED.load(Ordering::Relaxed)
}

/// What is counted instead of time.
pub(crate) fn counter_now() -> Option<Counter> {
    IS_COUNTED.load(Ordering::Relaxed).then(|| {
        let (kind, config) = (COUNTER_KIND.load(Ordering::Relaxed), COUNTER_CONFIG.load(Ordering::Relaxed));
        Counter::of(kind, config, COUNTER_IS_USERS.load(Ordering::Relaxed))
    })
}

/// The counter that the slot has.
pub(crate) fn counter_of(slot: &Slot) -> Option<Running> {
    let (descriptor, id) = (slot.timer.load(Ordering::Acquire), slot.counter.load(Ordering::Acquire));
    (id != 0 && descriptor >= 0).then_some(Running { descriptor, id })
}

/// The period of a signal. A timer is looked at when the kernel ticks, which may be much later than its period is over;
/// `overrun` says how many periods more have passed, so that the sum is the thread's time but for the last period.
pub(crate) fn expired(slot: &Slot, overrun: i32) -> u64 {
    if counter_of(slot).is_some() {
        return time_since_last(slot);
    }
    if clock_now() == Clock::Wall {
        // The writer has put it into `owed`.
        return 0;
    }
    let period = slot.period.load(Ordering::Relaxed);
    let first = match slot.first.swap(0, Ordering::Relaxed) {
        0 => period,
        first => first,
    };
    let passed = first + period * u64::try_from(overrun).unwrap_or(0);
    slot.clock.fetch_add(passed, Ordering::Relaxed);
    passed
}

/// The time of the thread, or the events of its counter, that no sample has in its period yet.
pub(crate) fn time_since_last(slot: &Slot) -> u64 {
    let now = match (counter_of(slot), clock_now()) {
        (Some(counter), _) => match counter.count() {
            Some(count) => count,
            None => return 0,
        },
        (None, Clock::Cpu) => clock::thread_cpu(slot.tid.load(Ordering::Relaxed)),
        (None, Clock::Wall) => clock::monotonic(),
    };
    now.saturating_sub(slot.clock.swap(now, Ordering::Relaxed))
}
