//! The libraries of a process that may make code executable of which nothing else is known: see
//! `channels/unwind_tables.rs`.

#![forbid(unsafe_code)]

use std::path::Path;

use crate::process::held::Identity;
use crate::process::library::Library;

/// These libraries, with their names.
#[derive(Default)]
pub(crate) struct Unnamed {
    pub(crate) libraries: Vec<(Identity, String)>,
    pub(crate) said: bool,
}

impl Unnamed {
    /// A library was loaded that may compile, or load what it has cached.
    pub(crate) fn add(&mut self, library: &Library<'_>) {
        self.libraries.push((library.identity, file_name(&library.path)));
    }

    pub(crate) fn has(&self, library: Identity) -> bool {
        self.libraries.iter().any(|(identity, _)| *identity == library)
    }

    /// Whether there is one.
    pub(crate) fn any(&self) -> bool {
        !self.libraries.is_empty()
    }

    pub(crate) fn forget(&mut self, library: Identity) {
        self.libraries.retain(|(identity, _)| *identity != library);
    }
}

pub(crate) fn file_name(path: &Path) -> String {
    let program = if path == Path::new("/proc/self/exe") { std::fs::read_link(path).ok() } else { None };
    let path = program.as_deref().unwrap_or(path);
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
