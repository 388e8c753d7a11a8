//! The directories that are searched first for the files of a recording.

use std::path::PathBuf;

use crate::lookup::Lookup;
use crate::recording::{MappedFile, Recording};

/// See the module's head.
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
