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

/// Returns a source path in the spelling that all parts of a report use. The compiler and the recorder write the same
/// file as `/a/b.py` and as `/a/c/../b.py`, and replace control characters and bytes that are not UTF-8 differently.
pub(crate) fn source_path(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "." | "" if !parts.is_empty() => {}
            ".." if parts.last().is_some_and(|parent| !["", ".", ".."].contains(parent)) => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/").replace(|character: char| character < ' ' || character == '\u{fffd}', "?")
}

/// Returns the file that [`source_path`] spells like `path`, if there is exactly one in its directory.
pub(crate) fn find_respelled(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str().filter(|name| name.contains('?'))?;
    let entries = std::fs::read_dir(path.parent()?).ok()?.flatten().take(MAX_DIRECTORY_ENTRIES);
    let mut matches = entries.filter(|entry| source_path(&entry.file_name().to_string_lossy()) == name);
    matches.next().filter(|_| matches.next().is_none()).map(|entry| entry.path())
}

/// Maximum number of directory entries that are compared with a name.
const MAX_DIRECTORY_ENTRIES: usize = 10_000;

/// Returns true if a file's build id is the recorded one. Some recorders pad build ids with zeros.
pub(crate) fn build_ids_match(ours: &[u8], recorded: &[u8]) -> bool {
    let length = ours.len().min(20);
    recorded.len() >= length && recorded[..length] == ours[..length] && recorded[length..].iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_one_spelling() {
        for (path, spelling) in [
            ("/a/out/../progs/p1.py", "/a/progs/p1.py"),
            ("/a//b/./c.py", "/a/b/c.py"),
            ("../x.py", "../x.py"),
            ("/../x.py", "/../x.py"),
            ("./x.py", "./x.py"),
            ("/a/we\nird.py", "/a/we?ird.py"),
            ("/a/caf\u{fffd}.py", "/a/caf?.py"),
            ("<string>", "<string>"),
        ] {
            assert_eq!(source_path(path), spelling);
        }
    }
}
