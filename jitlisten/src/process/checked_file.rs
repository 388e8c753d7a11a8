//! File handle for descriptors that the host may close or replace without our knowledge.
//!
//! * **Programs close unknown descriptors.** A daemon calls `closefrom(3)` and then opens files of its own, which get
//!   our descriptor numbers; our writes would destroy those files. Therefore a `CheckedFile` remembers its inode,
//!   compares it before each use, and is closed only if it still matches.
//! * **Programs expect low descriptor numbers.** `open(2)` returns the lowest free number, so we move ours to high
//!   numbers.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, IntoRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

use crate::process::write_nosignal::duplicate_high;

/// Identity of an open file. The birth time is compared too, because inode numbers are reused soon after a file is
/// removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
    born: Option<SystemTime>,
}

impl FileIdentity {
    pub(crate) fn from_metadata(metadata: &Metadata) -> FileIdentity {
        FileIdentity { device: metadata.dev(), inode: metadata.ino(), born: metadata.created().ok() }
    }
}

/// An open file that is verified before use; see the module documentation.
#[derive(Debug)]
pub(crate) struct CheckedFile {
    /// `None` only during drop.
    file: Option<File>,
    identity: FileIdentity,
}

impl CheckedFile {
    /// Takes ownership of a file and moves it to a high descriptor number.
    pub(crate) fn new(file: File) -> io::Result<CheckedFile> {
        let identity = FileIdentity::from_metadata(&file.metadata()?);
        // If no high number is free, keep the low one.
        let file = duplicate_high(file.as_fd()).unwrap_or(file);
        Ok(CheckedFile { file: Some(file), identity })
    }

    /// Returns the file, unless the host has closed it.
    pub(crate) fn get(&self) -> Option<&File> {
        self.file
            .as_ref()
            .filter(|file| file.metadata().is_ok_and(|now| FileIdentity::from_metadata(&now) == self.identity))
    }

    /// Returns the file without verification, for callers that have just called [`CheckedFile::get`]. Saves a system
    /// call.
    pub(crate) fn unchecked(&self) -> Option<&File> {
        self.file.as_ref()
    }

    pub(crate) fn identity(&self) -> FileIdentity {
        self.identity
    }
}

impl Drop for CheckedFile {
    fn drop(&mut self) {
        let is_closed = self.get().is_none();
        if let Some(file) = self.file.take().filter(|_| is_closed) {
            // The descriptor number is closed, or belongs to another file now.
            let _ = file.into_raw_fd();
        }
    }
}
