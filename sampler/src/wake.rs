//! Wakes the writer with a futex, because hooks do it, also under locks of the loader; and waits for it.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::disposition::{Next, next};

static WAKE: AtomicU32 = AtomicU32::new(0);

/// A ring fills up: it is to be emptied at once.
pub(crate) static DRAIN: AtomicBool = AtomicBool::new(false);

/// How often it was woken so far.
pub(crate) fn seen() -> u32 {
    WAKE.load(Ordering::Acquire)
}

/// Waits until [`writer`] is called, or was after [`seen`] returned this, or the time is over.
pub(crate) fn wait(seen: u32, time: Duration) {
    wait_while(&WAKE, seen, time);
}

/// Wakes it: it looks at once.
pub(crate) fn writer() {
    WAKE.fetch_add(1, Ordering::AcqRel);
    wake(&WAKE);
}

/// Waits while the word is this, for less than a second.
fn wait_while(word: &AtomicU32, value: u32, time: Duration) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that lives for ever, and a time.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, &raw const time) };
}

fn wake(word: &AtomicU32) {
    let none: *const libc::timespec = ptr::null();
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a word that lives for ever; no time is passed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX, none) };
}

/// The same to empty the rings, once until it does. Safe in a signal handler.
pub(crate) fn writer_to_drain() {
    if !DRAIN.load(Ordering::Relaxed) && !DRAIN.swap(true, Ordering::AcqRel) {
        writer();
    }
}

/// By [`clock::monotonic`].
static AT_EACH_SAMPLE_UNTIL: AtomicU64 = AtomicU64::new(0);

pub(crate) fn at_each_sample_until(time: u64) {
    AT_EACH_SAMPLE_UNTIL.store(time, Ordering::Relaxed);
}

/// A sample was made at that time. Safe in a signal handler.
pub(crate) fn after_sample(time: u64) {
    if time < AT_EACH_SAMPLE_UNTIL.load(Ordering::Relaxed) {
        writer_to_drain();
    }
}

/// How often it had been woken before its last whole look.
static LOOKED: AtomicU32 = AtomicU32::new(0);
/// Threads that wait for a look.
static WAITING: AtomicU32 = AtomicU32::new(0);

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
    LOOKED.store(seen, Ordering::SeqCst);
    if WAITING.load(Ordering::SeqCst) != 0 {
        wake(&LOOKED);
    }
}

/// It looks no more: those that wait look whether it is done. What the next one is asked for has not been done.
pub(crate) fn has_ended() {
    has_looked(WAKE.fetch_add(1, Ordering::AcqRel).wrapping_add(1));
}

/// Waits for the writer until `is_done`, or for so many nanoseconds. Takes no lock, allocates nothing.
pub(crate) fn wait_until(is_done: impl Fn() -> bool, patience: u64) {
    let until = clock::monotonic() + patience;
    WAITING.fetch_add(1, Ordering::SeqCst);
    loop {
        let looked = LOOKED.load(Ordering::SeqCst);
        let left = until.saturating_sub(clock::monotonic());
        if left == 0 || is_done() {
            break;
        }
        wait_while(&LOOKED, looked, Duration::from_nanos(left));
    }
    WAITING.fetch_sub(1, Ordering::SeqCst);
}

// The writer is waited for by the `pthread_join` that belongs to the `pthread_create` of the next library: a sanitizer
// in the program, whose functions come first, does not know the thread.

/// The `pthread_t` of a writer that nothing has waited for; 0 if there is none.
static THREAD: AtomicU64 = AtomicU64::new(0);
static JOIN: Next = Next::of(c"pthread_join");
static JOIN_IN_TIME: Next = Next::of(c"pthread_timedjoin_np");

/// Looks up libc's functions, for a constructor.
pub(crate) fn find_join() {
    JOIN.address();
    JOIN_IN_TIME.address();
}

pub(crate) fn writer_began(thread: libc::pthread_t) {
    const { assert!(size_of::<libc::pthread_t>() == 8) };
    THREAD.store(thread, Ordering::Release);
}

/// In the child of a fork, which has no writer.
pub(crate) fn forget_writer() {
    THREAD.store(0, Ordering::Release);
}

/// The writer, for one caller.
fn take_writer() -> Option<libc::pthread_t> {
    Some(THREAD.swap(0, Ordering::AcqRel)).filter(|&thread| thread != 0)
}

/// Waits until the writer's thread has ended.
pub(crate) fn join_writer() -> i32 {
    let Some(thread) = take_writer() else { return 0 };
    next!(JOIN, fn(libc::pthread_t, *mut *mut c_void) -> i32, libc::ENOSYS, thread, ptr::null_mut())
}

/// [`join_writer`] with a limit in nanoseconds.
pub(crate) fn join_writer_within(patience: u64) {
    let Some(thread) = take_writer() else { return };
    let until = jitlisten::plumbing::nanoseconds_of(libc::CLOCK_REALTIME) + patience;
    let until =
        libc::timespec { tv_sec: (until / 1_000_000_000) as libc::time_t, tv_nsec: (until % 1_000_000_000) as _ };
    let result = join_in_time(thread, &raw const until);
    if result != 0 {
        THREAD.store(thread, Ordering::Release);
    }
}

fn join_in_time(thread: libc::pthread_t, until: *const libc::timespec) -> i32 {
    next!(
        JOIN_IN_TIME,
        fn(libc::pthread_t, *mut *mut c_void, *const libc::timespec) -> i32,
        libc::ENOSYS,
        thread,
        ptr::null_mut(),
        until
    )
}
