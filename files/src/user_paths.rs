//! Files at paths that the user chose, in directories that others may be able to write to.

use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RawMode};
use rustix::io::{Errno, retry_on_intr};

/// Flags that never follow a link, never block on a pipe, and never acquire a controlling terminal.
pub(crate) const SAFE_FLAGS: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
/// Mode 0600.
pub(crate) const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates a file with mode 0600, for reading and writing.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the name exists, even as a link.
pub fn create_new(path: &Path) -> io::Result<File> {
    create_in(CWD, path, OFlags::empty(), PRIVATE)
}

/// Creates a file with mode 0600 in an open directory, for reading and appending.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if the name exists, even as a link.
pub fn create_new_in(directory: impl AsFd, name: &str) -> io::Result<File> {
    create_in(directory, Path::new(name), OFlags::APPEND, PRIVATE)
}

/// Opens a file for reading and appending, or creates it with mode 0600. Check an existing file with
/// [`check_appendable`] before writing to it.
///
/// # Errors
/// If the file cannot be opened or created, or is a link.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    match create_in(CWD, path, OFlags::APPEND, PRIVATE) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_to_append(path),
        created => created,
    }
}

/// Opens an existing file for reading and appending.
///
/// # Errors
/// If the file cannot be opened, or is a link.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let open = |access| retry_on_intr(|| rustix::fs::openat(CWD, path, access | SAFE_FLAGS, Mode::empty()));
    // Some devices only allow writing.
    Ok(open(OFlags::RDWR | OFlags::APPEND).or_else(|_| open(OFlags::WRONLY | OFlags::APPEND))?.into())
}

/// Opens an existing file for reading and writing.
///
/// # Errors
/// If the file cannot be opened, or is a link.
pub fn open_existing(path: &Path) -> io::Result<File> {
    Ok(retry_on_intr(|| rustix::fs::openat(CWD, path, OFlags::RDWR | SAFE_FLAGS, Mode::empty()))?.into())
}

/// Locks a file for this process, until it closes any of its descriptors of the file (`F_SETLK` in `fcntl_locking(2)`).
/// Returns false if another process holds the lock. Children of a fork do not inherit the lock, and a file system
/// without locks grants it to everyone. A file that is open only for reading can be locked by several such readers.
pub fn try_lock(file: &File) -> bool {
    let lock = |operation| rustix::fs::fcntl_lock(file, operation);
    let result = match lock(FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::BADF) => lock(FlockOperation::NonBlockingLockShared),
        result => result,
    };
    !matches!(result, Err(Errno::ACCESS | Errno::AGAIN))
}

/// Returns the reason why we must not append to a file; `None` if it is a regular file of this user with a single link.
pub fn check_appendable(file: &Metadata) -> Option<&'static str> {
    Some(if !file.is_file() {
        "not a regular file"
    } else if file.uid() != rustix::process::geteuid().as_raw() {
        "owned by another user"
    } else if file.nlink() == 0 {
        "a file without a name"
    } else if file.nlink() != 1 {
        "a file with several names"
    } else {
        return None;
    })
}

/// Creates a directory and its missing parents with mode 0700. Existing directories stay as they are.
///
/// # Errors
/// If a directory cannot be created.
pub fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Calls `create` with 0, 1, ... until it does not fail with `AlreadyExists`, because an earlier process may have left
/// files.
///
/// # Errors
/// The error of `create`, or [`io::ErrorKind::AlreadyExists`] after a thousand names.
pub fn create_with_free_name<T>(mut create: impl FnMut(u64) -> io::Result<T>) -> io::Result<T> {
    const MAX_ATTEMPTS: u64 = 1000;
    let mut attempt = 0;
    loop {
        match create(attempt) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < MAX_ATTEMPTS => attempt += 1,
            created => return created,
        }
    }
}

/// Creates a file in a directory, for reading and writing. The mode [`PRIVATE`] is set regardless of the umask; other
/// modes are subject to the umask.
pub(crate) fn create_in(directory: impl AsFd, name: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | SAFE_FLAGS;
    let file = retry_on_intr(|| rustix::fs::openat(&directory, name, flags, mode))?;
    if mode == PRIVATE {
        set_mode(&file, mode)?;
    }
    Ok(file.into())
}

/// Sets the mode of a new file or directory, because the umask may have removed bits.
pub(crate) fn set_mode(file: &OwnedFd, mode: Mode) -> io::Result<()> {
    const PERMISSIONS: RawMode = 0o777;
    let status = rustix::fs::fstat(file)?;
    if status.st_mode & PERMISSIONS == mode.as_raw_mode() || status.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    // `fchmod(2)` rejects a descriptor opened with `O_PATH`.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::fchmod(file, mode).or_else(|_| rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()))?;
    Ok(())
}
