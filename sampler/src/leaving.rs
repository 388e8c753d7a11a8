//! `_exit(2)`, `_Exit(3)` and `quick_exit(3)`: the process ends without the destructor, so the recording ends here.
//!
//! They may be called where anything is locked: by a signal's handler, or in the child of a fork. So nothing is looked
//! up here, no lock is taken, and the wait for the writer has a bound.

use std::ffi::{c_int, c_void};
use std::mem;
use std::sync::atomic::Ordering;
use std::time::Duration;

use jitlisten::plumbing::HostStateGuard;

use crate::disposition::Next;
use crate::interpose::ACTIVE;
use crate::slot::PROCESS;
use crate::writer::{STOP, WRITTEN};
use crate::{clock, threads, wake};

/// The longest wait for the writer, in nanoseconds. It needs one or two milliseconds, unless the caller's thread holds
/// a lock of `malloc`.
const PATIENCE: u64 = 250_000_000;

static LEAVE: Next = Next::of(c"_exit");
static LEAVE_C: Next = Next::of(c"_Exit");
static LEAVE_QUICKLY: Next = Next::of(c"quick_exit");

/// Looks up libc's functions, for a constructor.
pub fn find_exits() {
    for next in [&LEAVE, &LEAVE_C, &LEAVE_QUICKLY] {
        next.address();
    }
}

/// Ends the recording of this process, if there is one.
fn end_recording() {
    // The child of a vfork has its parent's memory, and another number.
    if !ACTIVE.load(Ordering::Acquire) || PROCESS.load(Ordering::Acquire) != std::process::id() {
        return;
    }
    let _host_state = HostStateGuard::enter();
    let _ = std::panic::catch_unwind(|| {
        threads::caller_ends();
        STOP.store(true, Ordering::Release);
        wake::writer();
        let until = clock::monotonic() + PATIENCE;
        while !WRITTEN.load(Ordering::Acquire) && clock::monotonic() < until {
            std::thread::sleep(Duration::from_micros(100));
        }
    });
}

fn leave(next: &Next, status: c_int) -> ! {
    end_recording();
    let found = next.known();
    if !found.is_null() {
        // SAFETY: functions of these names have this type.
        let found = unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> !>(found) };
        // SAFETY: the caller's argument.
        unsafe { found(status) }
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Stands in for `_exit(2)`.
pub fn exit_now(status: c_int) -> ! {
    leave(&LEAVE, status)
}

/// Stands in for `_Exit(3)`.
pub fn exit_now_c(status: c_int) -> ! {
    leave(&LEAVE_C, status)
}

/// Stands in for `quick_exit(3)`. What its handlers do is not recorded.
pub fn exit_quickly(status: c_int) -> ! {
    LEAVE_QUICKLY.address();
    leave(&LEAVE_QUICKLY, status)
}
