//! A file of ours among the descriptors of the host.
//!
//! * **Programs close unknown descriptors**: a daemon calls `closefrom(3)` and opens files of its own, which get our
//!   numbers. Our writes would destroy them. Therefore a file remembers its inode, compares it before each use, and is
//!   closed only if it is still the same.
//! * **Programs expect numbers**: `open(2)` returns the lowest free number. Ours are high.

#![forbid(unsafe_code)]

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, IntoRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

use crate::process::write_nosignal::duplicate_high;

/// What a descriptor was opened on. The number of a file that was removed is soon that of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    born: Option<SystemTime>,
}

impl FileIdentity {
    pub(crate) fn of(metadata: &Metadata) -> FileIdentity {
        FileIdentity { device: metadata.dev(), inode: metadata.ino(), born: metadata.created().ok() }
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct CheckedFile {
    /// `None` only while it is dropped.
    file: Option<File>,
    identity: FileIdentity,
}

impl CheckedFile {
    /// Takes a file over.
    pub(crate) fn new(file: File) -> io::Result<CheckedFile> {
        let identity = FileIdentity::of(&file.metadata()?);
        // Where no number above is free, the low one will do.
        let file = duplicate_high(file.as_fd()).unwrap_or(file);
        Ok(CheckedFile { file: Some(file), identity })
    }

    /// The file, unless the host has closed it.
    pub(crate) fn get(&self) -> Option<&File> {
        self.file.as_ref().filter(|file| file.metadata().is_ok_and(|now| FileIdentity::of(&now) == self.identity))
    }

    /// The file, for a caller that has just called [`CheckedFile::get`]: asking twice takes two system calls.
    pub(crate) fn unchecked(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// What it is, open or not.
    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }
}

impl Drop for CheckedFile {
    fn drop(&mut self) {
        let is_closed = self.get().is_none();
        if let Some(file) = self.file.take().filter(|_| is_closed) {
            // The number is free, or means another file.
            let _ = file.into_raw_fd();
        }
    }
}
