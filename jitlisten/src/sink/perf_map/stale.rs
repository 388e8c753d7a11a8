//! Path of this process's perf map, and detection of a stale map at that path.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use crate::liveness;

/// Path at which perf looks for the map of this process. perf uses the PID of the innermost PID namespace, which is
/// also the result of `getpid(2)`.
pub(in crate::sink) fn own_map_path() -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()))
}

/// True until the first instruction of the program runs.
static IS_BEFORE_PROGRAM: AtomicBool = AtomicBool::new(false);

/// Runs `work` before the program starts. Any perf map that `work` finds was therefore written by another process, even
/// if it is recent.
pub fn run_before_program<R>(work: impl FnOnce() -> R) -> R {
    IS_BEFORE_PROGRAM.store(true, Ordering::Relaxed);
    let result = work();
    IS_BEFORE_PROGRAM.store(false, Ordering::Relaxed);
    result
}

/// A perf map that was last written before the process (or its latest `exec`) started, i.e., nothing in it describes
/// this program. A map that was written to since then is the program's own (CPython's `-X perf`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleMap {
    inode: u64,
    size: u64,
}

impl StaleMap {
    /// Finds a stale map at this process's perf map path.
    pub(crate) fn find() -> Option<StaleMap> {
        let metadata = std::fs::symlink_metadata(own_map_path()).ok()?;
        let started =
            if IS_BEFORE_PROGRAM.load(Ordering::Relaxed) { None } else { Some(liveness::process_start_time()?) };
        StaleMap::if_older(&metadata, started)
    }

    /// Returns the map if it was last written before `started`, the start time of this process. If `started` is `None`,
    /// the program has not started, and every map is stale.
    pub(super) fn if_older(metadata: &Metadata, started: Option<SystemTime>) -> Option<StaleMap> {
        let is_older = started.is_none_or(|started| metadata.modified().is_ok_and(|modified| modified < started));
        (is_older && metadata.is_file() && metadata.size() > 0).then(|| StaleMap::from_metadata(metadata))
    }

    pub(super) fn from_metadata(metadata: &Metadata) -> StaleMap {
        StaleMap { inode: metadata.ino(), size: metadata.size() }
    }

    /// Returns true if the file may still begin with the stale map: it has the same inode and is at least as long.
    pub(in crate::sink) fn is_prefix_of(&self, metadata: &Metadata) -> bool {
        self.inode == metadata.ino() && self.size <= metadata.size()
    }

    /// Length in bytes.
    pub(in crate::sink) fn size(self) -> u64 {
        self.size
    }
}
