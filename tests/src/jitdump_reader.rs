//! Locates and reads the jitdumps of a host.

use std::fs;
use std::path::{Path, PathBuf};

use crate::jitdump_second_reader;

pub use crate::jitdump_format::Jitdump;

/// Finds the jitdumps below a directory; each process writes at most one.
///
/// # Panics
/// If a directory cannot be read.
#[must_use]
pub fn find(directory: &Path) -> Vec<PathBuf> {
    let mut dumps = Vec::new();
    for entry in fs::read_dir(directory).unwrap_or_else(|error| panic!("read {}: {error}", directory.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.is_symlink() {
            dumps.extend(find(&path));
        } else if path.extension().is_some_and(|extension| extension == "dump") {
            dumps.push(path);
        }
    }
    dumps.sort();
    dumps
}

/// Parses a file with both readers: [`jitdump_format`](crate::jitdump_format) and the `linux-perf-data` crate.
///
/// # Panics
/// If a reader rejects the file, or their results differ.
#[must_use]
pub fn read(path: &Path) -> Jitdump {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()));
    let dump = Jitdump::parse(&bytes).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    assert_eq!(name, Some(format!("jit-{}.dump", dump.pid)));
    jitdump_second_reader::assert_agrees(&bytes, &dump);
    dump
}
