//! Small file systems with odd properties, for tests that are allowed to mount (root, in CI).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tool::{self, Absence};

/// A tmpfs. Unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
}

impl Mount {
    /// Mounts a tmpfs with these options at a directory, which is made; `None` after a loud skip.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn tmpfs(path: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir_all(path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        let mounted = tool::run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "jitlisten"]).arg(path));
        if mounted.status.success() {
            return Some(Self { path: path.to_owned() });
        }
        // Containers may not, even as root; nothing that CI installs would help.
        let why = String::from_utf8_lossy(&mounted.stderr).trim().to_owned();
        tool::skip("mount -t tmpfs", &why, Absence::IsAllowed);
        None
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
