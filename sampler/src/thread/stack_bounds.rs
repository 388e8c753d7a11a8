//! The bounds of a thread's own stack. If the stack pointer lies within them, all memory from there up to the upper
//! bound stays mapped while the thread runs.
//!
//! The bounds are either known exactly, or probed when a sample needs them; see `handler/stack_memory.rs`.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Value of `probes` for bounds that are known exactly.
const EXACT: u32 = u32::MAX;
/// Maximum number of probes at consecutive samples; after that, only every [`SAMPLES_PER_RETRY`]th sample probes.
const MAX_CONSECUTIVE_PROBES: u32 = 8;
const SAMPLES_PER_RETRY: u32 = 64;

/// Bounds of a stack, for its thread's handler. All zeros: unknown.
#[derive(Debug)]
pub(crate) struct StackBounds {
    low: AtomicU64,
    high: AtomicU64,
    /// Number of attempts to find the bounds, or [`EXACT`].
    probes: AtomicU32,
}

impl StackBounds {
    pub(crate) const fn unknown() -> StackBounds {
        StackBounds { low: AtomicU64::new(0), high: AtomicU64::new(0), probes: AtomicU32::new(0) }
    }

    /// Returns the bounds; zeros if unknown.
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.low.load(Relaxed), self.high.load(Relaxed))
    }

    /// Sets exact bounds, which are never probed.
    pub(crate) fn set_exact(&self, low: u64, high: u64) {
        self.set_probed(low, high);
        self.probes.store(EXACT, Relaxed);
    }

    /// Sets bounds that a probe has found. They may be extended later.
    pub(crate) fn set_probed(&self, low: u64, high: u64) {
        self.low.store(low, Relaxed);
        self.high.store(high, Relaxed);
    }

    /// Returns true if a sample may probe the stack, and counts the attempt.
    pub(crate) fn may_probe(&self) -> bool {
        let attempts = self.probes.load(Relaxed);
        if attempts == EXACT {
            return false;
        }
        self.probes.store((attempts + 1) % EXACT, Relaxed);
        attempts < MAX_CONSECUTIVE_PROBES || attempts.is_multiple_of(SAMPLES_PER_RETRY)
    }

    pub(super) fn reset(&self) {
        self.set_probed(0, 0);
        self.probes.store(0, Relaxed);
    }
}
