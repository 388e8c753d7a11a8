//! State shared by the writer and the handler of a waiting thread in wall-clock mode; see `writer/wall_clock.rs`.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// A system call that a signal interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InterruptedCall {
    /// Return address of the call.
    pub(crate) address: u64,
    /// Number of the call; has at most 16 bits.
    pub(crate) number: u64,
    pub(crate) stack: u64,
}

/// Waiting state of one thread. All zeros: the thread has not waited.
#[derive(Debug)]
pub(crate) struct Wait {
    /// Time that the thread has waited with the stack of its last sample, in ns.
    idle_ns: AtomicU64,
    /// Return address << 16 | number of the interrupted call; 0 if none.
    call: AtomicU64,
    /// Stack pointer of the thread in the interrupted call.
    stack: AtomicU64,
}

impl Wait {
    pub(crate) fn idle_ns(&self) -> u64 {
        self.idle_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn add_idle(&self, ns: u64) {
        self.idle_ns.fetch_add(ns, Ordering::AcqRel);
    }

    pub(crate) fn take_idle(&self) -> u64 {
        self.idle_ns.swap(0, Ordering::AcqRel)
    }

    /// Tells the handler which system call the next signal interrupts.
    pub(crate) fn set_call(&self, call: Option<InterruptedCall>) {
        self.stack.store(call.map_or(0, |call| call.stack), Ordering::Relaxed);
        self.call.store(call.map_or(0, |call| call.address << 16 | call.number), Ordering::Release);
    }

    #[cfg(target_arch = "x86_64")]
    pub(crate) fn take_call(&self) -> Option<InterruptedCall> {
        let call = self.call.swap(0, Ordering::AcqRel);
        let stack = self.stack.load(Ordering::Relaxed);
        (call != 0).then_some(InterruptedCall { address: call >> 16, number: call & 0xffff, stack })
    }

    pub(super) fn reset(&self) {
        self.idle_ns.store(0, Ordering::Relaxed);
        self.call.store(0, Ordering::Relaxed);
    }
}
