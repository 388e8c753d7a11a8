//! Directories that are searched first for the files that a recording names.

use std::path::PathBuf;

use crate::lookup::Lookup;
use crate::recording::{MappedFile, Recording};

/// Roots from the command line and from the recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roots {
    /// Directories that the user passed.
    requested: Vec<PathBuf>,
    /// Directories of the recordings.
    recorded: Vec<PathBuf>,
}

impl Roots {
    pub(crate) fn new(recording: &Recording, lookup: &Lookup) -> Roots {
        let recorded = recording.origins.iter().filter_map(|origin| origin.root.clone()).collect();
        Roots { requested: lookup.roots.clone(), recorded }
    }

    /// Returns all roots, for files that are identified by their content.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        self.requested.iter().chain(&self.recorded).cloned().collect()
    }

    /// Returns the roots for a mapped file. A file without a build id is searched only in the user's roots and in the
    /// root of its own recording, because other roots may have a different file at the same path.
    pub(crate) fn for_file(&self, file: &MappedFile) -> Vec<PathBuf> {
        match &file.build_id[..] {
            [] => self.requested.iter().chain(&file.root).cloned().collect(),
            _ => self.all(),
        }
    }
}
