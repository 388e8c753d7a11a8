//! Files at a path that the user chose, in a directory that others may be able to write to.

use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::retry_on_intr;

use crate::directory::set_mode;

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

/// Opens a file for reading and appending. A new one has mode 0600. For an existing one see [`unacceptable`].
///
/// # Errors
/// Also for a link.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    match create_in(CWD, path, OFlags::APPEND, PRIVATE) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let open = |access| retry_on_intr(|| rustix::fs::openat(CWD, path, access | SAFELY, Mode::empty()));
            // A device may allow only writing.
            let opened = open(OFlags::RDWR | OFlags::APPEND).or_else(|_| open(OFlags::WRONLY | OFlags::APPEND));
            Ok(opened?.into())
        }
        made => made,
    }
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

/// Creates a file in a directory, for reading and writing. One with the mode [`PRIVATE`] has it whatever the umask.
pub(crate) fn create_in(directory: impl AsFd, name: &Path, flags: OFlags, mode: Mode) -> io::Result<File> {
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | SAFELY;
    let file = retry_on_intr(|| rustix::fs::openat(&directory, name, flags, mode))?;
    if mode == PRIVATE {
        set_mode(&file, mode)?;
    }
    Ok(file.into())
}
