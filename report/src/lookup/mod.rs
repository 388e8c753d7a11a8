//! Lookup of the files that a recording names, by path and build id.

pub(crate) mod segments;
pub(crate) mod source;
pub(crate) mod source_hashes;

use std::path::{Path, PathBuf};

/// Options for finding symbols.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Directories below which the recording's paths are tried first.
    pub roots: Vec<PathBuf>,
    /// Also reads the lines of code that was compiled ahead of time: C and Rust libraries with debug information.
    pub native_lines: bool,
    /// Also reads the names of kernel functions.
    pub kernel: bool,
}

/// Returns a path below each of the roots, then the path itself.
pub(crate) fn candidates(roots: &[PathBuf], path: &Path) -> impl Iterator<Item = PathBuf> {
    let relative = path.strip_prefix("/").unwrap_or(path).to_owned();
    roots.iter().map(move |root| root.join(&relative)).chain([path.to_owned()])
}

/// Returns true if a file's build id is the recorded one. Some recorders pad build ids with zeros.
pub(crate) fn build_ids_match(ours: &[u8], recorded: &[u8]) -> bool {
    let length = ours.len().min(20);
    recorded.len() >= length && recorded[..length] == ours[..length] && recorded[length..].iter().all(|byte| *byte == 0)
}
