//! Interposed functions that end or replace the program, after finishing the recording.
//!
//! `_exit(2)`, `_Exit(3)` and `quick_exit(3)` skip the library's destructor, so the recording ends here. It also ends
//! before the program's last thread exits, by `pthread_exit(3)` or the `exit` system call. `execve(2)` and its variants
//! kill the writer, so all samples are written first; if the call fails, the recording continues. During the call, the
//! calling thread must not have a pending counter signal: unlike a timer signal, it would stay pending for the next
//! program, which has no handler.
//!
//! These functions may be called while any lock is held: in a signal handler, or in a fork child. So they resolve no
//! symbol, take no lock, and wait for the writer with a timeout.

use std::ffi::{CStr, c_char, c_int};

use jitlisten::plumbing::HostStateGuard;

use crate::handler;
use crate::recording::current::{self, Recording};
use crate::thread::{arming, scan};
use crate::transparency::next::{CStringArray, errno, interpose, set_errno};

/// Maximum time to wait for the writer, in ns. The writer usually needs one or two milliseconds, unless the calling
/// thread holds a `malloc` lock.
pub(crate) const WRITER_TIMEOUT_NS: u64 = 250_000_000;

/// Ends the recording of this process, if there is one.
pub(crate) fn end_recording() {
    if let Some(recording) = current::own() {
        end(recording);
    }
}

fn end(recording: &Recording) {
    let _host_state = HostStateGuard::enter();
    let _ = std::panic::catch_unwind(|| {
        arming::retire_caller();
        recording.request(&recording.requests.stop);
        recording.wake.wait_until(|| recording.is_written(), WRITER_TIMEOUT_NS);
    });
}

/// Prepares for a direct `exit` system call, which ends the calling thread without libc.
pub(crate) fn end_thread() {
    if current::own().is_none() {
        return;
    }
    let _host_state = HostStateGuard::enter();
    let _ = std::panic::catch_unwind(|| {
        arming::retire_caller();
        end_before_last_thread();
    });
}

/// Ends the recording if the calling thread, whose slot has ended, is the program's last one. Otherwise the writer
/// would be the last thread, which determines the exit status and runs the handlers of `exit(3)`. Returns true if other
/// threads remain in a recorded program.
pub(crate) fn end_before_last_thread() -> bool {
    let Some(recording) = current::own() else { return false };
    let is_last = scan::is_last_program_thread(recording);
    if is_last {
        end_recording_and_writer(recording);
    }
    !is_last
}

/// Ends a recording of this process, and waits until the writer thread has exited.
pub(crate) fn end_recording_and_writer(recording: &Recording) {
    end(recording);
    if recording.is_written() {
        recording.writer.join_with_timeout(WRITER_TIMEOUT_NS);
    }
}

/// Returns true if the exec may succeed. A name without a slash is assumed to exist in one of libc's search
/// directories.
fn may_be_executed(file: *const c_char, is_searched: bool) -> bool {
    // SAFETY: the exec function itself reads this C string.
    let is_search_name = |file| !unsafe { CStr::from_ptr(file) }.to_bytes().contains(&b'/');
    // SAFETY: the kernel returns an error for a bad address, as it does for the call itself.
    !file.is_null() && (is_searched && is_search_name(file) || unsafe { libc::access(file, libc::X_OK) } == 0)
}

/// Writes all samples, if the exec may succeed, and discards our pending signals.
pub(crate) fn prepare_exec(may_be_executed: impl FnOnce() -> bool) {
    let saved_errno = errno();
    let host_state = HostStateGuard::enter();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if let Some(recording) = current::own() {
            arming::mute_caller();
            if may_be_executed() {
                arming::flush_caller();
                recording.write_samples(WRITER_TIMEOUT_NS);
            }
        }
        handler::drain_pending_ticks();
    }));
    drop(host_state);
    set_errno(saved_errno);
}

pub(crate) fn resume_after_failed_exec() {
    let saved_errno = errno();
    if current::own().is_some() {
        arming::unmute_caller();
    }
    set_errno(saved_errno);
}

/// Writes all samples, then invokes `call`, which executes another program.
fn execute(may_be_executed: impl FnOnce() -> bool, call: impl FnOnce() -> c_int) -> c_int {
    prepare_exec(may_be_executed);
    let result = call();
    resume_after_failed_exec();
    result
}

type FilePath = *const c_char;

interpose! {
    execve(file: FilePath, arguments: CStringArray, environment: CStringArray) -> c_int,
        |call| execute(|| may_be_executed(file, false), call);
    execvp(file: FilePath, arguments: CStringArray) -> c_int, |call| execute(|| may_be_executed(file, true), call);
    execvpe(file: FilePath, arguments: CStringArray, environment: CStringArray) -> c_int,
        |call| execute(|| may_be_executed(file, true), call);
    fexecve(file: c_int, arguments: CStringArray, environment: CStringArray) -> c_int, |call| execute(|| true, call);
    execveat(directory: c_int, file: FilePath, arguments: CStringArray, environment: CStringArray, flags: c_int)
        -> c_int, |call| execute(|| true, call);
    _exit(status: c_int) -> !, |call| {
        end_recording();
        call()
    };
    _Exit(status: c_int) -> !, |call| {
        end_recording();
        call()
    };
    // The handlers that `quick_exit` calls are not recorded.
    quick_exit(status: c_int) -> !, |call| {
        end_recording();
        call()
    };
}
