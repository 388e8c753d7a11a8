//! A file that is written under a temporary name, and renamed when it is complete.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::user_paths::{PRIVATE, create_in, create_with_free_name};

/// File mode of a [`Replacement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Visibility {
    /// Mode 0600, accessible only to this user.
    Private,
    /// Mode according to the umask; a replaced file keeps its mode. Meant for pages and tables that the user asked for.
    Umask,
}

/// A new file with a temporary name, `.jitlisten-PID-N.new`, in the directory of its final name. If it is dropped
/// without [`Replacement::commit`], the new file is removed, and an existing file stays as it was.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    /// Temporary and final name; `None` for a pipe or a device, which is written directly.
    pending: Option<Pending>,
}

/// Uncommitted file, removed on drop.
#[derive(Debug)]
struct Pending {
    directory: OwnedFd,
    temporary: OsString,
    name: OsString,
}

impl Replacement {
    /// Creates a replacement for a path that the user chose. A symbolic link of this user is followed if its target
    /// exists. A pipe or a device is opened, not replaced.
    ///
    /// # Errors
    /// If the file cannot be created, or the path is a dangling link, a link of another user, or a directory.
    pub fn for_user_path(path: &Path, visibility: Visibility) -> io::Result<Replacement> {
        let (path, existing) = resolve_link(path)?;
        let (directory, name) = open_parent(&path)?;
        if let Some(existing) = &existing {
            let kind = existing.file_type();
            if kind.is_fifo() || kind.is_char_device() || kind.is_block_device() {
                let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY;
                let file = retry_on_intr(|| rustix::fs::openat(&directory, name, flags, Mode::empty()))?;
                return Ok(Replacement { file: file.into(), pending: None });
            }
            if !kind.is_file() {
                return Err(io::Error::other("not a regular file"));
            }
        }
        let mode = match visibility {
            Visibility::Private => PRIVATE,
            Visibility::Umask => Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH,
        };
        let replacement = Replacement::with_mode(directory, name, mode)?;
        if visibility == Visibility::Umask
            && let Some(existing) = existing
        {
            rustix::fs::fchmod(&replacement.file, Mode::from_raw_mode(existing.mode() & 0o777))?;
        }
        Ok(replacement)
    }

    /// Creates a replacement with mode 0600 for exactly this path. A link at the path is replaced, not followed.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn at_exact_path(path: &Path) -> io::Result<Replacement> {
        let (directory, name) = open_parent(path)?;
        Replacement::in_directory(directory, name)
    }

    pub(crate) fn in_directory(directory: OwnedFd, name: &OsStr) -> io::Result<Replacement> {
        Replacement::with_mode(directory, name, PRIVATE)
    }

    fn with_mode(directory: OwnedFd, name: &OsStr, mode: Mode) -> io::Result<Replacement> {
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        let (file, temporary) = create_with_free_name(|_| {
            let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
            let temporary = OsString::from(format!(".jitlisten-{}-{number}.new", std::process::id()));
            create_in(&directory, Path::new(&temporary), OFlags::empty(), mode).map(|file| (file, temporary))
        })?;
        Ok(Replacement { file, pending: Some(Pending { directory, temporary, name: name.to_owned() }) })
    }

    /// Returns the new file, open for reading and writing.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Returns the replacement with another descriptor of the new file.
    #[must_use]
    pub fn map_file(self, duplicate: impl FnOnce(File) -> File) -> Replacement {
        Replacement { file: duplicate(self.file), pending: self.pending }
    }

    /// Renames the file to its final name. Replaces an existing file or link; a link is not followed.
    ///
    /// # Errors
    /// If the file cannot be renamed; an existing file then stays as it was.
    pub fn commit(self) -> io::Result<()> {
        self.into_file().map(drop)
    }

    /// Commits like [`Replacement::commit`], and returns the open file.
    ///
    /// # Errors
    /// Same as [`Replacement::commit`].
    pub fn into_file(self) -> io::Result<File> {
        if let Some(pending) = &self.pending {
            // The file now has its final name, so dropping `pending` removes nothing.
            let Pending { directory, temporary, name } = pending;
            retry_on_intr(|| rustix::fs::renameat(directory, temporary, directory, name))?;
        }
        Ok(self.file)
    }

    /// Gives the file its final name, if nothing has that name, and returns the open file.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] if the name exists, even as a link; otherwise, if the file cannot be renamed.
    pub fn into_new_file(self) -> io::Result<File> {
        if let Some(Pending { directory, temporary, name }) = &self.pending {
            let rename = || rustix::fs::renameat_with(directory, temporary, directory, name, RenameFlags::NOREPLACE);
            match retry_on_intr(rename) {
                // Some file systems support only links.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    match rustix::fs::linkat(directory, temporary, directory, name, AtFlags::empty()) {
                        // Others do not even support links, so another process may create the file between two calls.
                        Err(Errno::PERM | Errno::NOSYS | Errno::NOTSUP) => {
                            if rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
                                return Err(io::ErrorKind::AlreadyExists.into());
                            }
                            retry_on_intr(|| rustix::fs::renameat(directory, temporary, directory, name))?;
                        }
                        result => {
                            result?;
                            rustix::fs::unlinkat(directory, temporary, AtFlags::empty())?;
                        }
                    }
                }
                result => result?,
            }
        }
        Ok(self.file)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.directory, &self.temporary, AtFlags::empty());
    }
}

/// Opens the parent directory of a path. Returns it together with the file name.
fn open_parent(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (Some(name), Some(parent)) = (path.file_name(), path.parent()) else {
        return Err(io::ErrorKind::IsADirectory.into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((retry_on_intr(|| rustix::fs::openat(CWD, parent, flags, Mode::empty()))?, name))
}

/// Resolves a link of this user. Returns the target's path, and the metadata of an existing file.
fn resolve_link(path: &Path) -> io::Result<(PathBuf, Option<fs::Metadata>)> {
    match fs::symlink_metadata(path) {
        Ok(link) if link.is_symlink() => {
            // The kernel applies this rule only in sticky directories (`fs.protected_symlinks`); we apply it
            // everywhere.
            if link.uid() != rustix::process::geteuid().as_raw() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "a link of another user"));
            }
            let path = fs::canonicalize(path)?;
            let existing = fs::symlink_metadata(&path)?;
            Ok((path, Some(existing)))
        }
        Ok(existing) => Ok((path.to_owned(), Some(existing))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((path.to_owned(), None)),
        Err(error) => Err(error),
    }
}
