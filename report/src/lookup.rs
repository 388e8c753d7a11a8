//! Finds the files that a recording names, and verifies that they are the recorded ones.

use std::path::{Path, PathBuf};

/// Where symbols are looked for, and how many of them.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Directories in which the recording's paths are tried first.
    pub roots: Vec<PathBuf>,
    /// Lines of code that a compiler wrote into files, too: of C and Rust libraries with debug information.
    pub native_lines: bool,
    /// Names of the kernel's functions.
    pub kernel: bool,
}

/// A path in each of the roots, then as it is.
pub(crate) fn candidates(roots: &[PathBuf], path: &Path) -> impl Iterator<Item = PathBuf> {
    let relative = path.strip_prefix("/").unwrap_or(path).to_owned();
    roots.iter().map(move |root| root.join(&relative)).chain([path.to_owned()])
}

/// Whether a file's build id is the recorded one. Some recorders fill build ids up with zeros.
pub(crate) fn same_id(ours: &[u8], recorded: &[u8]) -> bool {
    let length = ours.len().min(20);
    recorded.len() >= length && recorded[..length] == ours[..length] && recorded[length..].iter().all(|byte| *byte == 0)
}
