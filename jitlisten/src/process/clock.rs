//! The clock that profilers share with us.

use std::mem::MaybeUninit;

/// `CLOCK_MONOTONIC` in nanoseconds: what `perf record -k mono` writes beside its samples, and what a jitdump is in.
///
/// In a time namespace of its own (`time_namespaces(7)`) a process sees a shifted clock and perf does not; such a process
/// cannot know by how much.
///
/// The kernel is asked directly: libfaketime and its kin stand in for `clock_gettime` of libc, and perf is not fooled.
pub(crate) fn monotonic() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `now` is writable memory for a timespec; this clock exists on every Linux.
    let failed = unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, now.as_mut_ptr()) } != 0;
    if failed {
        return 0;
    }
    // SAFETY: the call has succeeded and written it.
    let now = unsafe { now.assume_init() };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
