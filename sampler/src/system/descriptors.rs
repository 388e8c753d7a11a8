//! Descriptors with high numbers, away from those that programs print or compare.

use std::fs::File;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};

/// Moves a file to a descriptor number that programs rarely reach. The file must not be locked yet, because closing a
/// descriptor unlocks it.
pub(crate) fn move_file_to_high_descriptor(file: File) -> File {
    // SAFETY: only `file` owned this number.
    unsafe { File::from_raw_fd(move_to_high_descriptor(file.into_raw_fd())) }
}

/// Maximum number of open descriptors of this process. Safe in a signal handler.
pub(crate) fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    // SAFETY: the call writes to `limit`.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur
}

/// Moves a descriptor above three quarters of the descriptor limit (or of 1,024, if that is less), and closes the old
/// number. A larger number would enlarge the kernel's descriptor table, which each fork copies. Returns the old one if
/// none is free.
pub(crate) fn move_to_high_descriptor(descriptor: libc::c_int) -> libc::c_int {
    let lowest = (descriptor_limit().min(1024) / 4 * 3) as libc::c_int;
    // SAFETY: the descriptor is open.
    let number = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, lowest) };
    if number < 0 {
        return descriptor;
    }
    // SAFETY: the caller no longer uses this descriptor. libc's `close` would be a cancellation point.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
    number
}
