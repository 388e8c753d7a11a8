//! Descriptors of the recorder, in a process whose program may close or reuse any descriptor.
//!
//! They have high numbers, away from those that programs print or compare.

use std::fs::{self, File};
use std::io;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::os::unix::fs::MetadataExt as _;

/// An open file whose descriptor the program may close or reuse.
#[derive(Debug)]
pub(super) struct HeldFile {
    /// `None` once the program owns the descriptor.
    pub(super) file: Option<File>,
    /// Device and inode.
    pub(super) identity: (u64, u64),
}

impl HeldFile {
    pub(super) fn new(file: File) -> io::Result<HeldFile> {
        let identity = identity(&file.metadata()?);
        Ok(HeldFile { file: Some(file), identity })
    }

    /// Returns the file, unless the program has closed or replaced the descriptor.
    pub(super) fn verified(&mut self) -> Option<&File> {
        let is_ours = |file: &File| file.metadata().is_ok_and(|metadata| identity(&metadata) == self.identity);
        if !self.file.as_ref().is_some_and(is_ours) {
            // The program now owns the descriptor, so do not close it.
            std::mem::forget(self.file.take());
        }
        self.file.as_ref()
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        self.verified();
    }
}

pub(super) fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// The process that writes a recording.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    pub(crate) pid: u32,
    /// True for a tool that leaves its file to the program that it starts, and therefore does not lock it.
    pub(crate) hands_over: bool,
}

impl Owner {
    pub(crate) fn lock(self, file: &File) {
        if !self.hands_over {
            jitlisten_files::try_lock(file);
        }
    }
}

/// Moves a file to a descriptor number that programs rarely reach. The file must not be locked yet, because closing a
/// descriptor unlocks it.
pub(super) fn move_file_to_high_descriptor(file: File) -> File {
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
