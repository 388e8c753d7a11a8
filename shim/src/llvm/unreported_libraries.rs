//! Libraries that may make code executable without any other source reporting that code; `trackers/unwind_tables.rs`
//! finds that code.

#![forbid(unsafe_code)]

use std::path::Path;

use crate::process::library::Library;
use crate::process::mapped_proof::Identity;

/// File names of the libraries that may make unreported code executable.
#[derive(Default)]
pub(crate) struct UnreportedLibraries {
    pub(crate) libraries: Vec<(Identity, String)>,
    /// True once the log has mentioned these libraries.
    pub(crate) was_logged: bool,
}

impl UnreportedLibraries {
    /// Adds a newly loaded library that may compile code or load cached code.
    pub(crate) fn add(&mut self, library: &Library<'_>) {
        self.libraries.push((library.identity, file_name(&library.path)));
    }

    pub(crate) fn contains(&self, library: Identity) -> bool {
        self.libraries.iter().any(|(identity, _)| *identity == library)
    }

    /// Returns true if no library is loaded that may make unreported code executable.
    pub(crate) fn is_empty(&self) -> bool {
        self.libraries.is_empty()
    }

    pub(crate) fn forget(&mut self, library: Identity) {
        self.libraries.retain(|(identity, _)| *identity != library);
    }
}

/// Returns a library's file name, or the name of the executable for the program itself.
pub(crate) fn file_name(path: &Path) -> String {
    let program = if path == Path::new("/proc/self/exe") { std::fs::read_link(path).ok() } else { None };
    let path = program.as_deref().unwrap_or(path);
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
