//! Our lines of the perf map: written, unwritten, or retained by a disabled sink.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::space::Space;
use crate::ObjectId;
use crate::process::checked_file::FileIdentity;

/// A line that we wrote to the perf map.
#[derive(Debug)]
pub(super) struct Line {
    /// End address of the code.
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) length: usize,
    pub(super) is_live: bool,
}
impl Line {
    /// Returns the line's text up to the name, for code that starts at `start`.
    pub(super) fn prefix(&self, start: u64) -> String {
        format!("{start:x} {:x} ", self.end - start)
    }
}

/// Text at the start of a tombstone.
pub(super) const FREED: &str = "0 0 freed";

/// Returns a line of `length` bytes, including the newline, that describes no code.
pub(super) fn tombstone(length: usize) -> String {
    // The width of a format is limited to 65,535.
    let padding = "-".repeat(length.saturating_sub(FREED.len() + 1));
    format!("{FREED}{padding}\n")
}

/// Lines that a disabled perf map sink has left in the file.
#[derive(Debug, Default)]
pub(crate) struct RetainedLines {
    pub(super) file: Option<FileIdentity>,
    /// Length of the file. A map never shrinks, so a shorter file with the same inode number is a new file.
    pub(super) size: u64,
    pub(super) lines: BTreeMap<u64, Line>,
    pub(super) space: Space,
}

impl RetainedLines {
    /// Returns true if no sink has left lines.
    pub(in crate::sink) fn is_empty(&self) -> bool {
        self.file.is_none()
    }
}

/// Lines of several objects that are written together.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) text: String,
    pub(super) blocks: Vec<UnwrittenBlock>,
    pub(super) written_bytes: u64,
}

/// Lines of one object in a batch; their offsets are relative to the object's first line.
pub(super) struct UnwrittenBlock {
    pub(super) object: ObjectId,
    pub(super) length: u64,
    pub(super) lines: Vec<(u64, Line)>,
}
