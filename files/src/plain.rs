//! Files at a path that the user chose, in a directory that others may be able to write to.

use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawMode};
use rustix::io::retry_on_intr;

/// Never follows a link, never waits for the reader of a pipe, never becomes a controlling terminal.
pub(crate) const SAFELY: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY).union(OFlags::NONBLOCK);
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

/// Opens a file for reading and appending. A new one has mode 0600. For an existing one see [`unacceptable`].
///
/// # Errors
/// Also for a link.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    match create_in(CWD, path, OFlags::APPEND, PRIVATE) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open_to_append(path),
        made => made,
    }
}

/// Opens an existing file for reading and appending.
///
/// # Errors
/// Also for a link.
pub fn open_to_append(path: &Path) -> io::Result<File> {
    let open = |access| retry_on_intr(|| rustix::fs::openat(CWD, path, access | SAFELY, Mode::empty()));
    // A device may allow only writing.
    Ok(open(OFlags::RDWR | OFlags::APPEND).or_else(|_| open(OFlags::WRONLY | OFlags::APPEND))?.into())
}

/// Opens an existing file for reading and writing.
///
/// # Errors
/// Also for a link.
pub fn open_existing(path: &Path) -> io::Result<File> {
    Ok(retry_on_intr(|| rustix::fs::openat(CWD, path, OFlags::RDWR | SAFELY, Mode::empty()))?.into())
}

/// Why a file is not one to add to; `None` for a regular file of this user with one name.
pub fn unacceptable(file: &Metadata) -> Option<&'static str> {
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

/// Creates a directory and its missing parents with mode 0700; existing ones stay as they are.
///
/// # Errors
/// When one cannot be made.
pub fn create_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Calls `create` with 0, 1, ... until it does not fail because the name exists: an earlier process may have left it.
///
/// # Errors
/// Its error; [`io::ErrorKind::AlreadyExists`] after a thousand names.
pub fn with_free_name<T>(mut create: impl FnMut(u64) -> io::Result<T>) -> io::Result<T> {
    const MAX_ATTEMPTS: u64 = 1000;
    let mut attempt = 0;
    loop {
        match create(attempt) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < MAX_ATTEMPTS => attempt += 1,
            created => return created,
        }
    }
}

/// Creates a file in a directory, for reading and writing. One with the mode [`PRIVATE`] has it whatever the umask.
pub(crate) fn create_in(directory: impl AsFd, name: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | SAFELY;
    let file = retry_on_intr(|| rustix::fs::openat(&directory, name, flags, mode))?;
    if mode == PRIVATE {
        set_mode(&file, mode)?;
    }
    Ok(file.into())
}

/// Gives a new file or directory its mode, of which the umask may have taken a part.
pub(crate) fn set_mode(made: &OwnedFd, mode: Mode) -> io::Result<()> {
    const PERMISSIONS: RawMode = 0o777;
    let status = rustix::fs::fstat(made)?;
    if status.st_mode & PERMISSIONS == mode.as_raw_mode() || status.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    // `fchmod(2)` refuses a descriptor made with `O_PATH`.
    let path = format!("/proc/self/fd/{}", made.as_raw_fd());
    rustix::fs::fchmod(made, mode).or_else(|_| rustix::fs::chmodat(CWD, path, mode, AtFlags::empty()))?;
    Ok(())
}
