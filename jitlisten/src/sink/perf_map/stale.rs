//! The path of this process's map, and a stale map there.

#![forbid(unsafe_code)]

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use crate::liveness;

/// perf looks for the process number of the innermost PID namespace, which is what `getpid(2)` returns.
pub(in crate::sink) fn path_of_this_process() -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()))
}

/// Whether no instruction of the program has run yet.
static IS_BEGINNING: AtomicBool = AtomicBool::new(false);

/// Runs `work` before the program has begun: what is in the way of its perf map then is not its own, however young it
/// is.
pub fn before_program<R>(work: impl FnOnce() -> R) -> R {
    IS_BEGINNING.store(true, Ordering::Relaxed);
    let done = work();
    IS_BEGINNING.store(false, Ordering::Relaxed);
    done
}

/// A perf map that was there when the process (or its latest `exec`) began: nothing in it describes this program. In a
/// process that runs already, a map that something was written to since it began is its own (CPython's `-X perf`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleMap {
    inode: u64,
    size: u64,
}

impl StaleMap {
    /// Looks for one.
    pub(crate) fn find() -> Option<StaleMap> {
        let metadata = std::fs::symlink_metadata(path_of_this_process()).ok()?;
        let began = if IS_BEGINNING.load(Ordering::Relaxed) { None } else { Some(liveness::began()?) };
        StaleMap::of_others(&metadata, began)
    }

    /// `began`: when this process did, unless the program is only beginning.
    pub(super) fn of_others(metadata: &Metadata, began: Option<SystemTime>) -> Option<StaleMap> {
        let is_older = began.is_none_or(|began| metadata.modified().is_ok_and(|written| written < began));
        (is_older && metadata.is_file() && metadata.size() > 0).then(|| StaleMap::of(metadata))
    }

    pub(super) fn of(metadata: &Metadata) -> StaleMap {
        StaleMap { inode: metadata.ino(), size: metadata.size() }
    }

    /// Whether the file `metadata` is about still begins with it.
    pub(in crate::sink) fn is_prefix_of(&self, metadata: &Metadata) -> bool {
        self.inode == metadata.ino() && self.size <= metadata.size()
    }

    /// Its length in bytes.
    pub(in crate::sink) fn size(self) -> u64 {
        self.size
    }
}
