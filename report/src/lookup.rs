//! Where files of a recording are looked for, and how one is known to be the right one.

use std::path::{Path, PathBuf};

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
