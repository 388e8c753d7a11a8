//! Where the map of this process is, and what was there before it.

#![forbid(unsafe_code)]

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// perf looks for the process number of the innermost PID namespace, which is what `getpid(2)` returns.
pub(in crate::sink) fn path_of_this_process() -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{}.map", std::process::id()))
}

/// A perf map that was there when the process (or its latest `exec`) began: nothing in it speaks of this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleMap {
    inode: u64,
    size: u64,
}

impl StaleMap {
    /// Looks for one. Call it before anything in this process can have written a perf map.
    pub(crate) fn find() -> Option<StaleMap> {
        let metadata = std::fs::symlink_metadata(path_of_this_process()).ok()?;
        (metadata.is_file() && metadata.size() > 0).then(|| StaleMap::of(&metadata))
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
