//! Code of an LLVM that is not observed: one of its linkers is unknown, and the program registers nothing with
//! debuggers.
//!
//! Most programs do register. An ignored linker is worth a warning only if it produces code: LLVM itself has made
//! memory executable, after a second no object is known there, and that LLVM has never reported one.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::AddressRange;

/// In nanoseconds: ORC lists an object once it is final.
const PATIENCE: u64 = 1_000_000_000;

/// Whether an LLVM may be unheard: nothing is asked under a lock before.
static POSSIBLE: AtomicBool = AtomicBool::new(false);

#[derive(Default)]
pub(crate) struct Unheard {
    /// Memory without a known object, and when it was allowed to run.
    waiting: Option<(AddressRange, u64)>,
    warned: bool,
}

/// An LLVM was loaded with a linker that is not observed.
pub(crate) fn may_be() {
    POSSIBLE.store(true, Ordering::Relaxed);
}

/// Whether `Shim::let_run` has anything to do.
pub(crate) fn is_possible() -> bool {
    POSSIBLE.load(Ordering::Relaxed)
}

impl Unheard {
    /// `range`, where no object is known to be, may run since `now`.
    pub(crate) fn add(&mut self, range: AddressRange, now: u64) {
        if !self.warned && self.waiting.is_none() {
            self.waiting = Some((range, now));
        }
    }

    /// Takes the memory that has been allowed to run for a second.
    pub(crate) fn take(&mut self, now: u64) -> Option<AddressRange> {
        self.waiting.take_if(|(_, since)| now.saturating_sub(*since) >= PATIENCE).map(|(range, _)| range)
    }

    /// It was said.
    pub(crate) fn warned(&mut self) {
        self.warned = true;
    }
}
