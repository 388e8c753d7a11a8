//! The jitdumps that a host has written, found and read.

use std::fs;
use std::path::{Path, PathBuf};

use crate::jitdump_second_reader;

pub use crate::jitdump_format::Jitdump;

/// The jitdumps below a directory, one per process that wrote one.
///
/// # Panics
/// When the directory or a file cannot be read.
#[must_use]
pub fn find(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("read {}: {error}", directory.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(find(&path));
        } else if path.extension().is_some_and(|extension| extension == "dump") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Reads a file with both readers: [`jitdump_format`](crate::jitdump_format) and the crate `linux-perf-data`.
///
/// # Panics
/// When one of them refuses it, or they differ.
#[must_use]
pub fn read(path: &Path) -> Jitdump {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let dump = Jitdump::parse(&bytes).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    assert_eq!(name, Some(format!("jit-{}.dump", dump.pid)));
    jitdump_second_reader::agrees(&bytes, &dump);
    dump
}
