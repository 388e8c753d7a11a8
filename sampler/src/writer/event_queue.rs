//! Queue of code changes that hooks report to the writer. It is a lock-free list, because a fork may happen at any
//! time.

use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use jitlisten::AddressRange;

use crate::system::clock;

/// A change of compiled code.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) time: u64,
    pub(crate) range: AddressRange,
    /// Path and file offset of the image that is mapped there. `None` for anonymous memory.
    pub(crate) image: Option<(PathBuf, u64)>,
    next: *mut Event,
}

/// Changes that the writer has not processed yet.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    newest: AtomicPtr<Event>,
    /// Time of the first library change since the mappings were last read; 0 if none.
    libraries_changed: AtomicU64,
}

impl EventQueue {
    /// Queues a change of compiled code.
    pub(super) fn push(&self, range: AddressRange, image: Option<(PathBuf, u64)>) {
        let event = Box::into_raw(Box::new(Event { time: clock::monotonic(), range, image, next: ptr::null_mut() }));
        let mut newest = self.newest.load(Ordering::Acquire);
        loop {
            // SAFETY: the event is ours until it is linked into the list.
            unsafe { (*event).next = newest };
            match self.newest.compare_exchange(newest, event, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(current) => newest = current,
            }
        }
    }

    /// Takes all queued events, oldest first.
    pub(crate) fn take(&self) -> Vec<Event> {
        let mut events = Vec::new();
        let mut event_ptr = self.newest.swap(ptr::null_mut(), Ordering::AcqRel);
        while !event_ptr.is_null() {
            // SAFETY: `push` created the event and the exchange unlinked it, so no other thread has it.
            let event = unsafe { Box::from_raw(event_ptr) };
            event_ptr = event.next;
            events.push(*event);
        }
        events.reverse();
        events
    }

    /// Notes that libraries were loaded or unloaded.
    pub(super) fn note_library_change(&self) {
        let _ = self.libraries_changed.compare_exchange(0, clock::monotonic(), Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Returns the time of the first library change since the last call; 0 if none.
    pub(super) fn take_library_change(&self) -> u64 {
        self.libraries_changed.swap(0, Ordering::AcqRel)
    }
}
