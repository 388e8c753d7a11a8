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
    pub(crate) role: Role,
    /// The command that the process belongs to.
    pub(crate) run: Option<Run>,
}

impl Owner {
    pub(crate) fn lock(self, file: &File) {
        if !self.role.hands_over() {
            jitlisten_files::try_lock(file);
        }
    }
}

/// Part of a process in the command that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The program, or a child of it.
    Program,
    /// What the user named, which may start the program.
    Command,
    /// A shell or another launcher. It leaves a file only if it has compiled code or takes long.
    Launcher,
    /// What a launcher has started, such as `readlink`. It leaves a file only in the same cases.
    Tool,
}

impl Role {
    /// Returns true for a process that leaves its file to the program that it starts, and therefore does not lock it.
    pub(crate) fn hands_over(self) -> bool {
        self != Role::Program
    }

    /// Returns true for a process that leaves no file unless it is worth it.
    pub(crate) fn is_minor(self) -> bool {
        matches!(self, Role::Launcher | Role::Tool)
    }
}
