//! Wakes the writer with a futex, because hooks do it, also under locks of the loader.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

static WAKE: AtomicU32 = AtomicU32::new(0);

/// A ring fills up: it is to be emptied at once.
pub(crate) static DRAIN: AtomicBool = AtomicBool::new(false);

/// How often it was woken so far.
pub(crate) fn seen() -> u32 {
    WAKE.load(Ordering::Acquire)
}

/// Waits until [`writer`] is called, or was after [`seen`] returned this, or the time is over.
pub(crate) fn wait(seen: u32, time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that lives for ever, and a time.
    unsafe { libc::syscall(libc::SYS_futex, WAKE.as_ptr(), operation, seen, &raw const time) };
}

/// Wakes it: it looks at once.
pub(crate) fn writer() {
    WAKE.fetch_add(1, Ordering::AcqRel);
    let none: *const libc::timespec = ptr::null();
    // SAFETY: a word that lives for ever; no time is passed.
    unsafe {
        libc::syscall(libc::SYS_futex, WAKE.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1, none);
    }
}

/// The same to empty the rings, once until it does. Safe in a signal handler.
pub(crate) fn writer_to_drain() {
    if !DRAIN.load(Ordering::Relaxed) && !DRAIN.swap(true, Ordering::AcqRel) {
        writer();
    }
}

/// How often it had been woken before its last whole look.
static LOOKED: AtomicU32 = AtomicU32::new(0);

/// Has it write all that is in the rings; [`has_written`] tells whether it has.
pub(crate) fn writer_to_write() -> u32 {
    DRAIN.store(true, Ordering::Release);
    writer();
    seen()
}

/// Whether it has since [`writer_to_write`] returned this.
pub(crate) fn has_written(ticket: u32) -> bool {
    LOOKED.load(Ordering::Acquire).wrapping_sub(ticket).cast_signed() >= 0
}

/// It has looked, after [`seen`] returned this.
pub(crate) fn has_looked(seen: u32) {
    LOOKED.store(seen, Ordering::Release);
}
