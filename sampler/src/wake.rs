//! Wakes the writer with a futex, because hooks do it, also under locks of the loader; and waits for it.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::disposition::{NextFunction, next};

static WAKE_COUNT: AtomicU32 = AtomicU32::new(0);

/// A ring fills up: it is to be emptied at once.
pub(crate) static DRAIN_REQUESTED: AtomicBool = AtomicBool::new(false);

/// How often it was woken so far.
pub(crate) fn wake_count() -> u32 {
    WAKE_COUNT.load(Ordering::Acquire)
}

/// Waits until [`writer`] is called, or was after [`seen`] returned this, or the time is over.
pub(crate) fn wait_for_wake(seen: u32, time: Duration) {
    futex_wait(&WAKE_COUNT, seen, time);
}

/// Wakes it: it looks at once.
pub(crate) fn notify_writer() {
    WAKE_COUNT.fetch_add(1, Ordering::AcqRel);
    futex_wake(&WAKE_COUNT);
}

/// Waits while the word is this, for less than a second.
fn futex_wait(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that lives for ever, and a time.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const time) };
}

fn futex_wake(word: &AtomicU32) {
    let none: *const libc::timespec = ptr::null();
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that lives for ever; no time is passed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX, none) };
}

/// The same to empty the rings, once until it does. Safe in a signal handler.
pub(crate) fn request_drain() {
    if !DRAIN_REQUESTED.load(Ordering::Relaxed) && !DRAIN_REQUESTED.swap(true, Ordering::AcqRel) {
        notify_writer();
    }
}

/// By [`clock::monotonic`].
static NOTIFY_ON_SAMPLES_UNTIL: AtomicU64 = AtomicU64::new(0);

pub(crate) fn notify_on_samples_until(time: u64) {
    NOTIFY_ON_SAMPLES_UNTIL.store(time, Ordering::Relaxed);
}

/// A sample was made at that time. Safe in a signal handler.
pub(crate) fn notify_after_sample(time: u64) {
    if time < NOTIFY_ON_SAMPLES_UNTIL.load(Ordering::Relaxed) {
        request_drain();
    }
}

/// How often it had been woken before its last whole look.
static COMPLETED_PASS: AtomicU32 = AtomicU32::new(0);
/// Threads that wait for a look.
static WAITERS: AtomicU32 = AtomicU32::new(0);

/// Has it write all that is in the rings; [`has_written`] tells whether it has.
pub(crate) fn request_write() -> u32 {
    DRAIN_REQUESTED.store(true, Ordering::Release);
    notify_writer();
    wake_count()
}

/// Whether it has since [`writer_to_write`] returned this.
pub(crate) fn is_write_done(ticket: u32) -> bool {
    COMPLETED_PASS.load(Ordering::Acquire).wrapping_sub(ticket).cast_signed() >= 0
}

/// It has looked, after [`seen`] returned this.
pub(crate) fn complete_pass(seen: u32) {
    COMPLETED_PASS.store(seen, Ordering::SeqCst);
    if WAITERS.load(Ordering::SeqCst) != 0 {
        futex_wake(&COMPLETED_PASS);
    }
}

/// It looks no more: those that wait look whether it is done. What the next one is asked for has not been done.
pub(crate) fn complete_last_pass() {
    complete_pass(WAKE_COUNT.fetch_add(1, Ordering::AcqRel).wrapping_add(1));
}

/// Waits for the writer until `is_done`, or for so many nanoseconds. Takes no lock, allocates nothing.
pub(crate) fn wait_until(is_done: impl Fn() -> bool, patience: u64) {
    let until = clock::monotonic() + patience;
    WAITERS.fetch_add(1, Ordering::SeqCst);
    loop {
        let looked = COMPLETED_PASS.load(Ordering::SeqCst);
        let left = until.saturating_sub(clock::monotonic());
        if left == 0 || is_done() {
            break;
        }
        futex_wait(&COMPLETED_PASS, looked, Duration::from_nanos(left));
    }
    WAITERS.fetch_sub(1, Ordering::SeqCst);
}

// The writer is waited for by the `pthread_join` that belongs to the `pthread_create` of the next library: a sanitizer
// in the program, whose functions come first, does not know the thread.

/// The `pthread_t` of a writer that nothing has waited for; 0 if there is none.
static WRITER_THREAD: AtomicU64 = AtomicU64::new(0);
static JOIN: NextFunction = NextFunction::new(c"pthread_join");
static TIMED_JOIN: NextFunction = NextFunction::new(c"pthread_timedjoin_np");

/// Looks up libc's functions, for a constructor.
pub(crate) fn resolve_join_functions() {
    JOIN.address();
    TIMED_JOIN.address();
}

pub(crate) fn set_writer_thread(thread: libc::pthread_t) {
    const { assert!(size_of::<libc::pthread_t>() == 8) };
    WRITER_THREAD.store(thread, Ordering::Release);
}

/// In the child of a fork, which has no writer.
pub(crate) fn forget_writer_thread() {
    WRITER_THREAD.store(0, Ordering::Release);
}

/// The writer, for one caller.
fn take_writer_thread() -> Option<libc::pthread_t> {
    Some(WRITER_THREAD.swap(0, Ordering::AcqRel)).filter(|&thread| thread != 0)
}

/// Waits until the writer's thread has ended.
pub(crate) fn join_writer() -> i32 {
    let Some(thread) = take_writer_thread() else { return 0 };
    next!(JOIN, fn(libc::pthread_t, *mut *mut c_void) -> i32, libc::ENOSYS, thread, ptr::null_mut())
}

/// [`join_writer`] with a limit in nanoseconds.
pub(crate) fn join_writer_with_timeout(patience: u64) {
    let Some(thread) = take_writer_thread() else { return };
    let until = jitlisten::plumbing::nanoseconds_of(libc::CLOCK_REALTIME) + patience;
    let until =
        libc::timespec { tv_sec: (until / 1_000_000_000) as libc::time_t, tv_nsec: (until % 1_000_000_000) as _ };
    let result = timed_join(thread, &raw const until);
    if result != 0 {
        WRITER_THREAD.store(thread, Ordering::Release);
    }
}

fn timed_join(thread: libc::pthread_t, until: *const libc::timespec) -> i32 {
    next!(
        TIMED_JOIN,
        fn(libc::pthread_t, *mut *mut c_void, *const libc::timespec) -> i32,
        libc::ENOSYS,
        thread,
        ptr::null_mut(),
        until
    )
}
