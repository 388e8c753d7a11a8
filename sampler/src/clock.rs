//! The clock that samples are stamped with (what perf calls `-k mono`), and whose they are.

use std::mem::MaybeUninit;

use crate::{timer, vdso};

/// `CLOCK_MONOTONIC` in nanoseconds, not by libc, which libfaketime and its kin stand in for. Safe in a signal handler.
pub(crate) fn monotonic() -> u64 {
    vdso::read(libc::CLOCK_MONOTONIC).unwrap_or_else(of_kernel)
}

/// The same by a system call.
pub(crate) fn of_kernel() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The time that a thread of this process has spent on a processor; 0 for one that is gone.
pub(crate) fn thread_cpu(tid: u32) -> u64 {
    read(timer::thread_cpu_clock(tid))
}

/// The number of the calling thread.
pub(crate) fn own_tid() -> u32 {
    // SAFETY: has no precondition.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: writable memory for a timespec.
    let failed = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, now.as_mut_ptr()) } != 0;
    if failed {
        return 0;
    }
    // SAFETY: the call has succeeded and written it.
    let now = unsafe { now.assume_init() };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
