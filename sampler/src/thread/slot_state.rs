//! The state of a slot, its owner, and the handlers that run for it.
//!
//! ```text
//!   Free --> Claimed --> Armed --> Ended --> Free
//!               ^          |         |
//!               +----------+---------+        while the owner writes its last sample; when the owner claims it again
//! ```
//! A signal may arrive after its slot has got another owner. So a handler first announces itself, then checks the owner
//! and the state. A thread that changes the owner first changes it, then checks for announced handlers. All orderings
//! are sequentially consistent.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

/// Lifecycle state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    Free,
    /// Being initialized, or the owner writes its last sample.
    Claimed,
    /// The timer is running.
    Armed,
    /// No timer is running. The thread may still be alive, and the ring may hold samples to write.
    Ended,
}

/// State and owner of a slot. All zeros: free, and never owned.
#[derive(Debug)]
pub(crate) struct SlotState {
    state: AtomicU32,
    tid: AtomicU32,
    /// Distinguishes the signals of successive owners.
    generation: AtomicU32,
    /// Number of handlers now running for the slot: the owner's, and briefly that of a previous owner.
    running_handlers: AtomicU64,
}

/// A handler that runs for a slot, as long as this value exists.
pub(crate) struct RunningHandler<'a>(&'a AtomicU64);

impl Drop for RunningHandler<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl SlotState {
    pub(crate) fn get(&self) -> State {
        match self.state.load(SeqCst) {
            0 => State::Free,
            1 => State::Claimed,
            2 => State::Armed,
            _ => State::Ended,
        }
    }

    pub(crate) fn set(&self, state: State) {
        self.state.store(state as u32, SeqCst);
    }

    /// Changes the state, unless it is no longer `from`. Returns true if the state was changed.
    pub(crate) fn change(&self, from: State, to: State) -> bool {
        self.state.compare_exchange(from as u32, to as u32, SeqCst, SeqCst).is_ok()
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.get() == State::Armed
    }

    /// Thread id of the last owner.
    pub(crate) fn tid(&self) -> u32 {
        self.tid.load(SeqCst)
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(SeqCst)
    }

    /// True if the slot is in use by this thread.
    pub(crate) fn is_owned_by(&self, tid: u32) -> bool {
        self.tid() == tid && matches!(self.get(), State::Claimed | State::Armed)
    }

    /// Replaces the owner's thread id, in a fork child that has a single thread.
    pub(super) fn rename_owner(&self, tid: u32) {
        self.tid.store(tid, SeqCst);
    }

    /// Gives a claimed slot to a thread. Returns false if a late handler of the previous owner is still using it.
    pub(super) fn change_owner(&self, tid: u32) -> bool {
        self.tid.store(tid, SeqCst);
        self.generation.fetch_add(1, SeqCst);
        // A handler that saw the previous owner has announced itself by now; any later one sees the new owner.
        self.has_no_handler()
    }

    /// Records that a signal handler is about to use this slot.
    pub(crate) fn enter_handler(&self) -> RunningHandler<'_> {
        self.running_handlers.fetch_add(1, SeqCst);
        RunningHandler(&self.running_handlers)
    }

    pub(crate) fn has_no_handler(&self) -> bool {
        self.running_handlers.load(SeqCst) == 0
    }

    /// Forgets the handlers of the parent's threads, in a fork child.
    pub(super) fn forget_handlers(&self) {
        self.running_handlers.store(0, SeqCst);
    }
}
