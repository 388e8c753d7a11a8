//! The machine of a recording, and the directory that it is in.

use std::path::PathBuf;

/// What tells the files of two recordings apart that have one path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The machine; empty where the recording does not say it.
    pub host: String,
    /// The folder in which this recording's own files are looked for first.
    pub root: Option<PathBuf>,
}

impl Origin {
    /// Whether the recording was made on the machine that reads it; unknown where it does not say its machine.
    pub(crate) fn is_here(&self) -> Option<bool> {
        let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        (!self.host.is_empty()).then(|| self.host == here.trim_end())
    }
}
