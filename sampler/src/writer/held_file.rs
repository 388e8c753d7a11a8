//! Files of the recorder, in a process whose program may close or reuse any descriptor.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;

use jitlisten::plumbing::Run;

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
    /// Set if the process may start the program, or is started before it.
    pub(crate) tool: Option<Tool>,
    /// The command that the process belongs to.
    pub(crate) run: Option<Run>,
}

impl Owner {
    pub(crate) fn lock(self, file: &File) {
        if !self.hands_over {
            jitlisten_files::try_lock(file);
        }
    }
}

/// A process that leaves a file only if it has compiled code or takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// A shell or another launcher.
    Launcher,
    /// What a launcher has started, such as `readlink`.
    Other,
}
