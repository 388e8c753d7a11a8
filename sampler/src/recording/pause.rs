//! Pauses the writer thread for system calls that would fail because of it.
//!
//! ```text
//!   RUN --caller--> PAUSE --writer--> PAUSED: its thread exits with its work as result --caller--> RUN, a new thread
//! ```

#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use jitlisten::log_line;
use jitlisten::plumbing::HostStateGuard;

use crate::recording::current::{self, Recording};
use crate::recording::recorder;
use crate::system::clock;
use crate::thread::scan;
use crate::transparency::exit::WRITER_TIMEOUT_NS;
use crate::transparency::next;
use crate::writer::thread::{self, PAUSE, PAUSED, RUN};

/// Performs `call`, which fails in a multithreaded process: if the writer is the only other thread, without it.
pub(crate) fn single_threaded<R>(call: impl FnOnce() -> R) -> R {
    if scan::may_be_single_threaded() { without_writer(call) } else { call() }
}

/// Performs `call` without a writer: it exits before the call, and a new writer resumes its work afterwards. If that
/// fails, the recording ends. Signals are blocked during the call.
pub(crate) fn without_writer<R>(call: impl FnOnce() -> R) -> R {
    let Some(recording) = current::own() else { return call() };
    // Block signals: a program's signal handler that forks would wait for the recorder's lock, which this thread holds.
    let host_state = HostStateGuard::enter();
    let state = recorder::try_lock();
    if state.is_some() {
        let _ = std::panic::catch_unwind(|| pause(recording));
    }
    let result = call();
    let saved_errno = next::errno();
    if state.is_some() {
        let _ = std::panic::catch_unwind(|| resume(recording));
    }
    drop(state);
    drop(host_state);
    next::set_errno(saved_errno);
    result
}

/// Waits until the writer thread has exited, for a limited time.
fn pause(recording: &Recording) {
    recording.requests.pause.store(PAUSE, Ordering::Release);
    recording.wake.notify();
    let deadline = clock::monotonic() + WRITER_TIMEOUT_NS;
    let is_writer_alive = || {
        recording.requests.pause.load(Ordering::Acquire) != PAUSED
            || scan::thread_exists(recording.pid, recording.writer.tid())
    };
    while is_writer_alive() && clock::monotonic() < deadline {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Starts a new writer thread with the work of the paused one.
fn resume(recording: &'static Recording) {
    if recording.requests.pause.swap(RUN, Ordering::AcqRel) != PAUSED {
        return;
    }
    let Some(work) = thread::join_paused(recording) else { return };
    if let Err((errno, work)) = thread::start(recording, work) {
        log_line!(Warn, "the recording ends: {}", recorder::Error::NoThread(errno));
        work.writer.finish();
    }
}
