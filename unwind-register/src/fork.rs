//! `fork` while another thread registers: the child must not inherit a lock that no thread will release. This crate
//! stands alone, so it has a handler of its own beside that of jitlisten (`process/across_fork.rs`).
//!
//! Our lock is taken before the fork and released on both sides. Tables, entries and the unwinders' lists are private
//! memory, so the child has its own copies of them, in a consistent state. Lock order: handlers of `pthread_atfork` run
//! in reverse order of their registration, so ours is taken last by a caller that registered its own handler after its
//! first call of `register`, and that holds its own lock around our calls.

use crate::state::{self, Locked};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static PREPARED: AtomicBool = AtomicBool::new(false);

/// The guard between "before the fork" and "after it"; only the forking thread touches it, under the lock it guards.
struct Held(UnsafeCell<Option<Locked>>);

// SAFETY: see the type.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Installs the handlers, once.
pub(crate) fn prepare() {
    if !PREPARED.swap(true, Relaxed) {
        // SAFETY: the handlers have the right type and live as long as this library, which is not unloaded while
        // registered.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    }
}

unsafe extern "C" fn before() {
    let guard = state::lock();
    // SAFETY: we hold the lock, so no other thread is here.
    unsafe { *HELD.0.get() = Some(guard) };
}

unsafe extern "C" fn after() {
    // SAFETY: the forking thread (or its copy in the child) still holds the lock.
    drop(unsafe { (*HELD.0.get()).take() });
}
