//! Handlers for `fork`, which ensure that the child does not inherit a lock held by a thread that exists only in the
//! parent. jitlisten has its own handlers (`process/across_fork.rs`), but this crate must also work without jitlisten.
//!
//! The handler before the fork takes our lock; the handlers after it, in parent and child, release the lock. Tables,
//! entries and the unwinders' lists are private memory, so the child has consistent copies of them.
//!
//! Lock order: `pthread_atfork` runs the handlers before a fork in reverse order of registration. A caller may hold its
//! own lock around our calls. If it registers its own handler after its first call of `register`, that handler runs
//! first, and our lock is taken last.

use crate::state::{self, Locked};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Lock guard, kept across the fork. Only the forking thread accesses this cell, while it holds the lock.
struct HeldLock(UnsafeCell<Option<Locked>>);

// SAFETY: only the thread that holds the lock accesses the cell.
unsafe impl Sync for HeldLock {}

static HELD_LOCK: HeldLock = HeldLock(UnsafeCell::new(None));

/// Installs the handlers on the first call.
pub(crate) fn install_handlers() {
    if !INSTALLED.swap(true, Relaxed) {
        // SAFETY: the handlers have the required type and stay mapped, because this library is not unloaded while code
        // is registered.
        unsafe { libc::pthread_atfork(Some(lock_before_fork), Some(unlock_after_fork), Some(unlock_after_fork)) };
    }
}

unsafe extern "C" fn lock_before_fork() {
    let guard = state::lock();
    // SAFETY: we hold the lock, so no other thread accesses the cell.
    unsafe { *HELD_LOCK.0.get() = Some(guard) };
}

unsafe extern "C" fn unlock_after_fork() {
    // SAFETY: the forking thread (or its copy in the child) still holds the lock.
    drop(unsafe { (*HELD_LOCK.0.get()).take() });
}
