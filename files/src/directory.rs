//! Directories that only this user can change.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::retry_on_intr;

use crate::replacement::Replacement;
use crate::user_paths::{PRIVATE, SAFE_FLAGS, check_appendable, create_in, create_with_free_name, set_mode};

/// Open directory that belongs to this user, and that only this user may write to. Do not keep it open across calls
/// into a host program: see the crate documentation.
#[derive(Debug)]
pub struct OwnDirectory {
    directory: OwnedFd,
    path: PathBuf,
}

impl OwnDirectory {
    /// Opens an existing directory.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if it is a link, belongs to another user, or others may write to it.
    pub fn open(path: &Path) -> io::Result<OwnDirectory> {
        OwnDirectory::open_in(CWD, path.as_os_str(), path.to_owned())
    }

    /// Creates the directory with mode 0700, or opens an existing one.
    ///
    /// # Errors
    /// See [`OwnDirectory::open`].
    pub fn create(path: &Path) -> io::Result<OwnDirectory> {
        OwnDirectory::create_in(CWD, path.as_os_str(), path.to_owned())
    }

    /// Creates the directory with mode 0700.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the name exists, even as a link.
    pub fn create_new(path: &Path) -> io::Result<OwnDirectory> {
        make_directory(CWD, path.as_os_str())?;
        OwnDirectory::open(path)
    }

    /// Creates a directory with a random name: the prefix and six letters or digits.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn create_random(parent: &Path, prefix: &str) -> io::Result<OwnDirectory> {
        create_with_free_name(|attempt| {
            OwnDirectory::create_new(&parent.join(format!("{prefix}{}", random_letters(attempt))))
        })
    }

    /// Creates or opens a directory below this one. Creates each missing component of `relative`.
    ///
    /// # Errors
    /// Same as [`OwnDirectory::open`]; a component such as `..` is refused.
    pub fn create_below(&self, relative: &Path) -> io::Result<OwnDirectory> {
        let mut directory = OwnDirectory { directory: self.directory.try_clone()?, path: self.path.clone() };
        for component in relative.components() {
            let Component::Normal(name) = component else {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain relative path"));
            };
            directory = OwnDirectory::create_in(&directory.directory, name, directory.path.join(name))?;
        }
        Ok(directory)
    }

    /// Opens an existing directory in this one.
    ///
    /// # Errors
    /// Same as [`OwnDirectory::open`].
    pub fn open_directory(&self, name: impl AsRef<OsStr>) -> io::Result<OwnDirectory> {
        let name = plain_name(name.as_ref())?.as_os_str();
        OwnDirectory::open_in(&self.directory, name, self.path.join(name))
    }

    fn create_in(parent: impl AsFd, name: &OsStr, path: PathBuf) -> io::Result<OwnDirectory> {
        match make_directory(&parent, name) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => OwnDirectory::open_in(parent, name, path),
        }
    }

    fn open_in(parent: impl AsFd, name: &OsStr, path: PathBuf) -> io::Result<OwnDirectory> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = match retry_on_intr(|| rustix::fs::openat(&parent, name, flags, Mode::empty())) {
            // The path is a link or a file: `O_NOFOLLOW | O_DIRECTORY` may report either error for both.
            Err(rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => {
                return Err(permission_denied("not a directory"));
            }
            opened => opened?,
        };
        let status = rustix::fs::fstat(&directory)?;
        if status.st_uid != rustix::process::geteuid().as_raw() {
            return Err(permission_denied("owned by another user"));
        }
        if Mode::from_raw_mode(status.st_mode).intersects(Mode::WGRP | Mode::WOTH) {
            return Err(permission_denied("other users may write to it"));
        }
        Ok(OwnDirectory { directory, path })
    }

    /// Path of the directory, as it was passed to the constructor.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a file with mode 0600, for reading and writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the name exists, even as a link.
    pub fn create_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        create_in(&self.directory, plain_name(name.as_ref())?, OFlags::empty(), PRIVATE)
    }

    /// Opens an existing regular file for reading.
    ///
    /// # Errors
    /// If the file cannot be opened, is a link, or is not a regular file.
    pub fn open_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let name = plain_name(name.as_ref())?;
        let file = retry_on_intr(|| rustix::fs::openat(&self.directory, name, SAFE_FLAGS, Mode::empty()))?;
        let is_regular = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file();
        if is_regular { Ok(file.into()) } else { Err(permission_denied("not a regular file")) }
    }

    /// Returns true if a regular file of this user has exactly this content. Used to recognise marker files.
    pub fn has_file(&self, name: impl AsRef<OsStr>, content: &[u8]) -> bool {
        let Ok(file) = self.open_file(name) else { return false };
        if !file.metadata().is_ok_and(|metadata| check_appendable(&metadata).is_none()) {
            return false;
        }
        let mut actual_content = Vec::new();
        file.take(content.len() as u64 + 1).read_to_end(&mut actual_content).is_ok() && actual_content == content
    }

    /// Creates a file with mode 0600 under a temporary name. Committing it renames the file, which replaces any file
    /// with the same name.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn replacement(&self, name: impl AsRef<OsStr>) -> io::Result<Replacement> {
        Replacement::in_directory(self.directory.try_clone()?, plain_name(name.as_ref())?.as_os_str())
    }

    /// Writes a file with mode 0600 through [`OwnDirectory::replacement`].
    ///
    /// # Errors
    /// If the file cannot be written; an existing file then stays as it was.
    pub fn write(&self, name: impl AsRef<OsStr>, bytes: &[u8]) -> io::Result<()> {
        let mut replacement = self.replacement(name)?;
        io::Write::write_all(replacement.file(), bytes)?;
        replacement.commit()
    }

    /// Creates a hard link in this directory to a file on the same file system.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the name exists; [`io::ErrorKind::CrossesDevices`] for another file system.
    pub fn link(&self, from: &Path, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = plain_name(name.as_ref())?;
        Ok(retry_on_intr(|| rustix::fs::linkat(CWD, from, &self.directory, name, AtFlags::empty()))?)
    }

    /// Copies the rest of an open file through [`OwnDirectory::replacement`]. Returns the number of bytes.
    ///
    /// # Errors
    /// If the copy cannot be written; an existing file then stays as it was.
    pub fn copy(&self, mut from: impl io::Read, name: impl AsRef<OsStr>) -> io::Result<u64> {
        let mut replacement = self.replacement(name)?;
        let size = io::copy(&mut from, replacement.file())?;
        replacement.commit().map(|()| size)
    }

    /// Returns true if the name exists, even as a dangling link.
    pub fn contains(&self, name: impl AsRef<OsStr>) -> bool {
        plain_name(name.as_ref())
            .is_ok_and(|name| rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    /// Returns the names of all entries except `.` and `..`.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Removes a file or a link.
    ///
    /// # Errors
    /// If the file or link cannot be removed.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, plain_name(name.as_ref())?, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If the directory cannot be removed, for example because it has entries.
    pub fn remove_directory(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, plain_name(name.as_ref())?, AtFlags::REMOVEDIR)?)
    }
}

impl AsFd for OwnDirectory {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Returns six random letters or digits, from the standard library's randomly seeded hasher.
fn random_letters(attempt: u64) -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut rest = RandomState::new().hash_one(attempt);
    let mut letter = || {
        let letter = LETTERS[(rest % LETTERS.len() as u64) as usize];
        rest /= LETTERS.len() as u64;
        char::from(letter)
    };
    (0..6).map(|_| letter()).collect()
}

pub(crate) fn permission_denied(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

/// Returns the name as a path, or an error if it has a directory part.
fn plain_name(name: &OsStr) -> Result<&Path, rustix::io::Errno> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(component)), None) if component == name => Ok(Path::new(name)),
        _ => Err(rustix::io::Errno::INVAL),
    }
}

/// Creates a directory with mode 0700, regardless of the umask.
fn make_directory(parent: impl AsFd, name: &OsStr) -> io::Result<()> {
    let mode = Mode::RWXU;
    retry_on_intr(|| rustix::fs::mkdirat(&parent, name, mode))?;
    // `O_PATH` is needed because the umask may have removed the read permission.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    set_mode(&retry_on_intr(|| rustix::fs::openat(&parent, name, flags, Mode::empty()))?, mode)
}
