//! The event and the rate. Set at the start of a recording, and read by new
//! threads and in the handler. Everything is atomic, because readers take no lock.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::recording::event_name::Counter;
use crate::recording::options::Clock;
use crate::thread::stack_bounds::StackBounds;

static CLOCK: AtomicU32 = AtomicU32::new(0);
static RATE_HZ: AtomicU32 = AtomicU32::new(0);
/// True if a counter is used instead of a clock.
static USES_COUNTER: AtomicBool = AtomicBool::new(false);
/// `type` of the counted event.
static COUNTER_KIND: AtomicU32 = AtomicU32::new(0);
/// `config` of the counted event.
static COUNTER_CONFIG: AtomicU64 = AtomicU64::new(0);
static COUNTER_USER_ONLY: AtomicBool = AtomicBool::new(false);

static MAIN_STACK: StackBounds = StackBounds::unknown();

/// Returns the bounds of the main thread's stack; zeros if unknown.
pub(crate) fn main_stack() -> (u64, u64) {
    MAIN_STACK.get()
}

/// Sets the main thread's stack from its mapping. The kernel grows it down to `limit` bytes; no other mapping is placed
/// there.
pub(crate) fn set_main_stack((low, high): (u64, u64), limit: u64) {
    MAIN_STACK.set_exact(low.min(high.saturating_sub(limit)), high);
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
