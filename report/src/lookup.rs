//! Where files of a recording are looked for, and how one is known to be the right one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::recording::{MappedFile, Recording};
use crate::symbols::Lookup;

/// The folders in which paths are tried first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roots {
    /// Of the person who reads.
    asked: Vec<PathBuf>,
    /// Of the recordings.
    own: Vec<PathBuf>,
}

impl Roots {
    pub(crate) fn of(recording: &Recording, lookup: &Lookup) -> Roots {
        let own = recording.origins.iter().filter_map(|origin| origin.root.clone()).collect();
        Roots { asked: lookup.roots.clone(), own }
    }

    /// All, for files that are known by what is in them.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        self.asked.iter().chain(&self.own).cloned().collect()
    }

    /// Those of a file that was mapped.
    pub(crate) fn of_file(&self, file: &MappedFile) -> Vec<PathBuf> {
        match &file.build_id[..] {
            [] => self.asked.iter().chain(&file.root).cloned().collect(),
            _ => self.all(),
        }
    }
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

/// Opens a regular file, and nothing else: a recording may name anything, and to open a pipe is to wait for its writer, to open a
/// device may do something.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    File::open(path)
}
