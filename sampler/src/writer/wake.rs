//! Wakes the writer and waits for it. Uses a futex, because hooks wake the writer too, even under locks of the loader.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::handler::clock;
use crate::transparency::next;

/// Number of times the writer was woken; the futex it sleeps on.
static WAKE_COUNT: AtomicU32 = AtomicU32::new(0);

/// Set when a ring fills up and must be drained immediately.
pub(crate) static DRAIN_REQUESTED: AtomicBool = AtomicBool::new(false);

/// Number of times the writer has been woken so far.
pub(crate) fn wake_count() -> u32 {
    WAKE_COUNT.load(Ordering::Acquire)
}

/// Sleeps until [`notify_writer`] is called, has been called since [`wake_count`] returned `count`, or the time is
/// over.
pub(crate) fn wait_for_wake(count: u32, time: Duration) {
    futex_wait(&WAKE_COUNT, count, time);
}

/// Wakes the writer, which then starts a pass immediately.
pub(crate) fn notify_writer() {
    WAKE_COUNT.fetch_add(1, Ordering::AcqRel);
    futex_wake(&WAKE_COUNT);
}

/// Waits while the word has this value, for less than a second.
fn futex_wait(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that is never freed, and a timeout.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const time) };
}

fn futex_wake(word: &AtomicU32) {
    let no_timeout: *const libc::timespec = ptr::null();
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that is never freed; no timeout is passed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX, no_timeout) };
}

/// Wakes the writer to drain the rings. Does nothing if that is already requested. Safe in a signal handler.
pub(crate) fn request_drain() {
    if !DRAIN_REQUESTED.load(Ordering::Relaxed) && !DRAIN_REQUESTED.swap(true, Ordering::AcqRel) {
        notify_writer();
    }
}

/// Time by [`clock::monotonic`] until which each sample wakes the writer.
static NOTIFY_ON_SAMPLES_UNTIL: AtomicU64 = AtomicU64::new(0);

/// Makes each sample wake the writer until this time.
pub(crate) fn notify_on_samples_until(time: u64) {
    NOTIFY_ON_SAMPLES_UNTIL.store(time, Ordering::Relaxed);
}

/// Wakes the writer for a sample taken at `time`, if the recording is young. Safe in a signal handler.
pub(crate) fn notify_after_sample(time: u64) {
    if time < NOTIFY_ON_SAMPLES_UNTIL.load(Ordering::Relaxed) {
        request_drain();
    }
}

/// Wake count at the start of the last complete pass.
static COMPLETED_PASS: AtomicU32 = AtomicU32::new(0);
/// Number of threads that wait for a pass.
static WAITERS: AtomicU32 = AtomicU32::new(0);

/// Asks the writer to write all samples in the rings. Pass the result to [`is_write_done`].
pub(crate) fn request_write() -> u32 {
    DRAIN_REQUESTED.store(true, Ordering::Release);
    notify_writer();
    wake_count()
}

/// True once the writer has written everything that the [`request_write`] with this ticket asked for.
pub(crate) fn is_write_done(ticket: u32) -> bool {
    COMPLETED_PASS.load(Ordering::Acquire).wrapping_sub(ticket).cast_signed() >= 0
}

/// Publishes that the writer has completed a pass, which began at this wake count.
pub(crate) fn complete_pass(count: u32) {
    COMPLETED_PASS.store(count, Ordering::SeqCst);
    if WAITERS.load(Ordering::SeqCst) != 0 {
        futex_wake(&COMPLETED_PASS);
    }
}

/// Publishes the writer's last pass: waiting threads check their condition again. Later requests are meant for the next
/// writer.
pub(crate) fn complete_last_pass() {
    complete_pass(WAKE_COUNT.fetch_add(1, Ordering::AcqRel).wrapping_add(1));
}

/// Waits until `is_done` returns true after a pass of the writer, at most `timeout_ns`. Takes no lock, allocates
/// nothing.
pub(crate) fn wait_until(is_done: impl Fn() -> bool, timeout_ns: u64) {
    let deadline = clock::monotonic() + timeout_ns;
    WAITERS.fetch_add(1, Ordering::SeqCst);
    loop {
        let last_pass = COMPLETED_PASS.load(Ordering::SeqCst);
        let remaining_ns = deadline.saturating_sub(clock::monotonic());
        if remaining_ns == 0 || is_done() {
            break;
        }
        futex_wait(&COMPLETED_PASS, last_pass, Duration::from_nanos(remaining_ns));
    }
    WAITERS.fetch_sub(1, Ordering::SeqCst);
}

// Join the writer with the `pthread_join` of the library whose `pthread_create` started it. A sanitizer's
// `pthread_join` comes first and does not know the thread.

/// `pthread_t` of the writer thread until it is joined; 0 if none.
static WRITER_THREAD: AtomicU64 = AtomicU64::new(0);
pub(crate) fn set_writer_thread(thread: libc::pthread_t) {
    const { assert!(size_of::<libc::pthread_t>() == 8) };
    WRITER_THREAD.store(thread, Ordering::Release);
}

/// Forgets the writer in a fork child, which has none.
pub(crate) fn forget_writer_thread() {
    WRITER_THREAD.store(0, Ordering::Release);
}

/// Returns the writer thread to one caller only.
fn take_writer_thread() -> Option<libc::pthread_t> {
    Some(WRITER_THREAD.swap(0, Ordering::AcqRel)).filter(|&thread| thread != 0)
}

/// Waits until the writer thread has exited.
pub(crate) fn join_writer() -> i32 {
    let Some(thread) = take_writer_thread() else { return 0 };
    // SAFETY: a thread that nobody else joins; its result is not requested.
    unsafe { next::pthread_join(thread, ptr::null_mut()) }
}

/// Like [`join_writer`], with a timeout in ns.
pub(crate) fn join_writer_with_timeout(timeout_ns: u64) {
    let Some(thread) = take_writer_thread() else { return };
    let deadline = jitlisten::plumbing::nanoseconds_of(libc::CLOCK_REALTIME) + timeout_ns;
    let deadline =
        libc::timespec { tv_sec: (deadline / 1_000_000_000) as libc::time_t, tv_nsec: (deadline % 1_000_000_000) as _ };
    // SAFETY: a thread that nobody else joins; its result is not requested.
    let result = unsafe { next::pthread_timedjoin_np(thread, ptr::null_mut(), &raw const deadline) };
    if result != 0 {
        WRITER_THREAD.store(thread, Ordering::Release);
    }
}
