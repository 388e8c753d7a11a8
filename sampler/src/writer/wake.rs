//! Wakes the writer and waits for it. Uses a futex, because hooks also wake the writer while they hold loader locks.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::system::clock;

/// Wake-ups of a recording's writer, and the passes that the writer completes.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    /// Number of times the writer was woken; the futex it sleeps on.
    count: AtomicU32,
    /// Set when the rings must be drained immediately, e.g., because one fills up.
    drain_requested: AtomicBool,
    /// Set if all that was drained must also have its names in files.
    write_requested: AtomicBool,
    /// Every sample wakes the writer until this time ([`clock::monotonic`]).
    notify_on_samples_until: AtomicU64,
    /// Wake count at the start of the last complete pass.
    completed_pass: AtomicU32,
    /// Number of threads that wait for a pass.
    waiters: AtomicU32,
}

impl Wake {
    /// Number of times the writer has been woken so far.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Sleeps until [`Wake::notify`] is called, or until `time` has elapsed. Returns immediately if it has been called
    /// since [`Wake::count`] returned `count`.
    pub(crate) fn wait(&self, count: u32, time: Duration) {
        futex_wait(&self.count, count, time);
    }

    /// Wakes the writer, which then starts a pass immediately.
    pub(crate) fn notify(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        futex_wake(&self.count);
    }

    /// Wakes the writer to drain the rings. Does nothing if that is already requested. Safe in a signal handler.
    pub(crate) fn request_drain(&self) {
        if !self.is_drain_requested() && !self.drain_requested.swap(true, Ordering::AcqRel) {
            self.notify();
        }
    }

    pub(crate) fn is_drain_requested(&self) -> bool {
        self.drain_requested.load(Ordering::Acquire)
    }

    pub(crate) fn take_drain_request(&self) -> bool {
        self.drain_requested.swap(false, Ordering::AcqRel)
    }

    /// Call this after [`Wake::take_drain_request`], because a request to write sets both flags, this one first.
    pub(crate) fn take_write_request(&self) -> bool {
        self.write_requested.swap(false, Ordering::AcqRel)
    }

    /// Makes each sample wake the writer until this time.
    pub(crate) fn notify_on_samples_until(&self, time: u64) {
        self.notify_on_samples_until.store(time, Ordering::Relaxed);
    }

    /// Wakes the writer for a sample taken at `time`, if the recording is young. Safe in a signal handler.
    pub(crate) fn notify_after_sample(&self, time: u64) {
        if time < self.notify_on_samples_until.load(Ordering::Relaxed) {
            self.request_drain();
        }
    }

    /// Asks the writer to write all samples in the rings, and their names. Pass the result to [`Wake::is_write_done`].
    pub(crate) fn request_write(&self) -> u32 {
        self.write_requested.store(true, Ordering::Release);
        self.drain_requested.store(true, Ordering::Release);
        self.notify();
        self.count()
    }

    /// True once the writer has completed the request for which [`Wake::request_write`] returned `ticket`.
    pub(crate) fn is_write_done(&self, ticket: u32) -> bool {
        self.completed_pass.load(Ordering::Acquire).wrapping_sub(ticket).cast_signed() >= 0
    }

    /// Announces that the writer has completed the pass that began at this wake count.
    pub(crate) fn complete_pass(&self, count: u32) {
        self.completed_pass.store(count, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            futex_wake(&self.completed_pass);
        }
    }

    /// Announces the writer's last pass, after which waiting threads check their condition again.
    pub(crate) fn complete_last_pass(&self) {
        self.complete_pass(self.count.fetch_add(1, Ordering::AcqRel).wrapping_add(1));
    }

    /// Waits until `is_done` returns true after a pass of the writer, at most `timeout_ns`. Takes no lock, allocates
    /// nothing.
    pub(crate) fn wait_until(&self, is_done: impl Fn() -> bool, timeout_ns: u64) {
        let deadline = clock::monotonic() + timeout_ns;
        self.waiters.fetch_add(1, Ordering::SeqCst);
        loop {
            let last_pass = self.completed_pass.load(Ordering::SeqCst);
            let remaining_ns = deadline.saturating_sub(clock::monotonic());
            if remaining_ns == 0 || is_done() {
                break;
            }
            futex_wait(&self.completed_pass, last_pass, Duration::from_nanos(remaining_ns));
        }
        self.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits while `word` has this value, at most `time`, which must be less than a second.
fn futex_wait(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word belongs to a recording, which is never freed; the call reads the timeout.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const time) };
}

fn futex_wake(word: &AtomicU32) {
    let no_timeout: *const libc::timespec = ptr::null();
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word belongs to a recording, which is never freed; no timeout is passed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX, no_timeout) };
}
