//! The event, the rate, and the measured amount of each thread. Set at the start of a recording, and read by new
//! threads and in the handler. Everything is atomic, because readers take no lock.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::handler::clock;
use crate::recording::event_name::Counter;
use crate::recording::options::Clock;
use crate::thread::counter::OpenCounter;
use crate::thread::slot::Slot;

static CLOCK: AtomicU32 = AtomicU32::new(0);
static RATE_HZ: AtomicU32 = AtomicU32::new(0);
/// True if a counter is used instead of a clock.
static USES_COUNTER: AtomicBool = AtomicBool::new(false);
/// `type` of the counted event.
static COUNTER_KIND: AtomicU32 = AtomicU32::new(0);
/// `config` of the counted event.
static COUNTER_CONFIG: AtomicU64 = AtomicU64::new(0);
static COUNTER_USER_ONLY: AtomicBool = AtomicBool::new(false);

/// Lower bound of the main thread's stack.
static MAIN_STACK_LOW: AtomicU64 = AtomicU64::new(0);
/// Upper bound of the main thread's stack.
static MAIN_STACK_HIGH: AtomicU64 = AtomicU64::new(0);

/// Returns the bounds of the main thread's stack; zeros if unknown.
pub(crate) fn main_stack() -> (u64, u64) {
    (MAIN_STACK_LOW.load(Ordering::Relaxed), MAIN_STACK_HIGH.load(Ordering::Relaxed))
}

/// Sets the main thread's stack from its mapping. The kernel grows it down to `limit` bytes; no other mapping is placed
/// there.
pub(crate) fn set_main_stack((low, high): (u64, u64), limit: u64) {
    let low = low.min(high.saturating_sub(limit));
    MAIN_STACK_LOW.store(low, Ordering::Relaxed);
    MAIN_STACK_HIGH.store(high, Ordering::Relaxed);
}

/// Sets the clock, the rate and the counter of the recording.
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

/// Nominal time between two samples of a thread, in ns.
pub(crate) fn period_ns() -> u64 {
    1_000_000_000 / u64::from(rate_hz().max(1))
}

/// Samples per second.
pub(crate) fn rate_hz() -> u32 {
    RATE_HZ.load(Ordering::Relaxed)
}

/// Clock of the recording, if no event is counted.
pub(crate) fn configured_clock() -> Clock {
    if CLOCK.load(Ordering::Relaxed) == Clock::Wall as u32 { Clock::Wall } else { Clock::Cpu }
}

/// True in wall-clock mode, where the writer decides when threads are sampled.
pub(crate) fn uses_wall_clock() -> bool {
    configured_clock() == Clock::Wall && !USES_COUNTER.load(Ordering::Relaxed)
}

/// The event that is counted instead of time.
pub(crate) fn configured_counter() -> Option<Counter> {
    USES_COUNTER.load(Ordering::Relaxed).then(|| {
        let (kind, config) = (COUNTER_KIND.load(Ordering::Relaxed), COUNTER_CONFIG.load(Ordering::Relaxed));
        Counter::from_config(kind, config, COUNTER_USER_ONLY.load(Ordering::Relaxed))
    })
}

/// Returns the open counter of a slot.
pub(crate) fn slot_counter(slot: &Slot) -> Option<OpenCounter> {
    let (descriptor, id) = (slot.timer.load(Ordering::Acquire), slot.counter_id.load(Ordering::Acquire));
    (id != 0 && descriptor >= 0).then_some(OpenCounter { descriptor, id })
}

/// Returns the period of a timer signal, and accounts for it. The kernel checks a timer only at its tick, which may be
/// much later than the expiry. `overrun` is the number of further periods that have elapsed; so the periods add up to
/// the thread's time, except for the last period.
pub(crate) fn take_signal_period(slot: &Slot, overrun: i32) -> u64 {
    if slot_counter(slot).is_some() {
        return take_unaccounted_amount(slot);
    }
    if configured_clock() == Clock::Wall {
        // The writer has added it to `pending_period`.
        return 0;
    }
    let period = slot.period.load(Ordering::Relaxed);
    let first = match slot.first_period.swap(0, Ordering::Relaxed) {
        0 => period,
        first => first,
    };
    let elapsed_ns = first + period * u64::try_from(overrun).unwrap_or(0);
    slot.accounted_total.fetch_add(elapsed_ns, Ordering::Relaxed);
    elapsed_ns
}

/// Returns the thread's time, or its counted events, since the previous call.
pub(crate) fn take_unaccounted_amount(slot: &Slot) -> u64 {
    let total = match (slot_counter(slot), configured_clock()) {
        (Some(counter), _) => match counter.read_count() {
            Some(count) => count,
            None => return 0,
        },
        (None, Clock::Cpu) => clock::thread_cpu(slot.tid.load(Ordering::Relaxed)),
        (None, Clock::Wall) => clock::monotonic(),
    };
    total.saturating_sub(slot.accounted_total.swap(total, Ordering::Relaxed))
}
