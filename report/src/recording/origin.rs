//! Origin of a recording: its machine, and the directory of its files.

use std::path::PathBuf;

/// Distinguishes the files of two recordings that have the same path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Name of the machine; empty if the recording does not contain it.
    pub host: String,
    /// Directory that is searched first for this recording's own files.
    pub root: Option<PathBuf>,
}

impl Origin {
    /// Returns true if the recording was made on this machine; `None` if its machine is unknown.
    pub(crate) fn is_here(&self) -> Option<bool> {
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        (!self.host.is_empty()).then(|| self.host == hostname.trim_end())
    }
}
