//! The clock that samples are stamped with (what perf calls `-k mono`), and whose they are: the vDSO's where there is one, else
//! jitlisten's, which asks the kernel.

use crate::{timer, vdso};

/// `CLOCK_MONOTONIC` in nanoseconds, not by libc, which libfaketime and its kin stand in for. Safe in a signal handler.
pub(crate) fn monotonic() -> u64 {
    vdso::read(libc::CLOCK_MONOTONIC).unwrap_or_else(jitlisten::monotonic)
}

/// The time that a thread of this process has spent on a processor; 0 for one that is gone.
pub(crate) fn thread_cpu(tid: u32) -> u64 {
    jitlisten::nanoseconds_of(timer::thread_cpu_clock(tid))
}

/// The number of the calling thread.
pub(crate) fn own_tid() -> u32 {
    // SAFETY: has no precondition.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}
