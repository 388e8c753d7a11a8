//! The clock that samples are stamped with: what perf calls `-k mono`.

use std::mem::MaybeUninit;

/// `CLOCK_MONOTONIC` in nanoseconds, by a system call of our own: libfaketime and its kin stand in for libc's. Safe in a
/// signal handler.
pub(crate) fn monotonic() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: writable memory for a timespec.
    let failed = unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, now.as_mut_ptr()) } != 0;
    if failed {
        return 0;
    }
    // SAFETY: the call has succeeded and written it.
    let now = unsafe { now.assume_init() };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
