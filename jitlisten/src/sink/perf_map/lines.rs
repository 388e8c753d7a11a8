//! Our lines: in the file, kept by a sink that was turned off, or not written yet.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::space::Space;
use crate::ObjectId;
use crate::process::checked_file::FileIdentity;

/// A line of ours in the file.
#[derive(Debug)]
pub(super) struct Line {
    /// Where the code ends.
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) length: usize,
    pub(super) alive: bool,
}
impl Line {
    /// What it begins with, at the address `start`.
    pub(super) fn beginning(&self, start: u64) -> String {
        format!("{start:x} {:x} ", self.end - start)
    }
}

/// What every line about no code begins with.
pub(super) const FREED: &str = "0 0 freed";

/// A line of `length` bytes, newline included, about no code at all.
pub(super) fn tombstone(length: usize) -> String {
    let padded = length.saturating_sub(1);
    format!("{FREED:-<padded$}\n")
}

/// What a perf map sink that was switched off has left in the file.
#[derive(Debug, Default)]
pub(crate) struct LeftLines {
    pub(super) file: Option<FileIdentity>,
    /// The file never becomes shorter: one that is, is another with the same number.
    pub(super) size: u64,
    pub(super) lines: BTreeMap<u64, Line>,
    pub(super) space: Space,
}

/// Lines of many objects that are not written yet.
#[derive(Default)]
pub(super) struct Many {
    pub(super) text: String,
    pub(super) blocks: Vec<Unwritten>,
    pub(super) written: u64,
}

/// The lines of one of them, with offsets in their text.
pub(super) struct Unwritten {
    pub(super) object: ObjectId,
    pub(super) length: u64,
    pub(super) lines: Vec<(u64, Line)>,
}
