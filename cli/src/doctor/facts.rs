//! Facts about each LLVM instance in a process, published by our library in that process and read from its memory: see
//! [`wire::facts`]. Without facts, doctor only uses information that it can read from outside the process.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use wire::facts::{Facts, Reading, SYMBOL, Snapshot};

use crate::process::Process;
use crate::process::memory;
use crate::process::symbols;

/// Maximum number of attempts to read the facts. The library rewrites them within microseconds.
const MAX_READS: usize = 50;

/// Reads the facts. Returns `None` if the library publishes no facts, because it has another version or is inactive, or
/// if it rewrites them during every attempt.
pub(super) fn read(process: &Process, library: &Path) -> Option<Snapshot> {
    let address = symbols::address(process, library, SYMBOL)?;
    for _ in 0..MAX_READS {
        match Facts::read(|offset, size| memory::read(process.pid, address + offset as u64, size).ok()) {
            Reading::Complete(snapshot) => return Some(*snapshot),
            Reading::Absent => return None,
            Reading::Changing => sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Returns the path of the mapping at `start`, or else the path by which the library was opened.
pub(super) fn library_path(process: &Process, start: u64, file: &str) -> PathBuf {
    let mappings_below = process.mappings.iter().filter(|mapping| mapping.start <= start);
    let mapped_path = mappings_below.max_by_key(|mapping| mapping.start).map(|mapping| &mapping.path);
    mapped_path.filter(|path| path.is_absolute()).cloned().unwrap_or_else(|| file.into())
}
