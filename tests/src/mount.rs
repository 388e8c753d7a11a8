//! Small file systems with odd properties, for tests that are allowed to mount (root, in CI).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::{self, Scratch};
use crate::tool::{self, Absence};

/// A file system in a directory of its own. Unmounted when dropped, and then the directory is removed.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    _scratch: Scratch,
}

impl Mount {
    /// Mounts a tmpfs with these options; `None` after a loud skip.
    #[must_use]
    pub fn tmpfs(options: &str) -> Option<Self> {
        Mount::at(Scratch::new("tmpfs"), &["-t", "tmpfs", "-o", options, "jitlisten"])
    }

    /// Mounts a btrfs in a file. In its directory [`Mount::limited`] there may be `bytes`, what the file system itself
    /// needs for them included: from there on the kernel returns `EDQUOT`. `None` after a loud skip.
    ///
    /// A quota of users on ext4 would be more usual; but kernels are built without its format more often than without
    /// btrfs.
    ///
    /// # Panics
    /// When the file system cannot be made.
    #[must_use]
    pub fn with_quota(bytes: u32) -> Option<Self> {
        let mkfs = tool::require("mkfs.btrfs", Absence::FailsInCi)?;
        let scratch = Scratch::new("btrfs");
        let disk = scratch.join("file");
        let made = std::fs::File::create(&disk).and_then(|file| file.set_len(128 << 20));
        made.unwrap_or_else(|error| panic!("create {}: {error}", disk.display()));
        done(Command::new(mkfs).args(["--quiet", "--mixed"]).arg(&disk));
        let mount = Mount::at(scratch, &["-o", "loop", &disk.display().to_string()])?;
        let btrfs = |words: &[&str]| done(Command::new("btrfs").args(words).arg(mount.limited()));
        btrfs(&["--quiet", "subvolume", "create"]);
        // A place for the repository, where this is mounted over a directory above it (`Host::in_mount_namespace`);
        // later the quota may not allow it.
        for below in ["/tmp", "/var/tmp"] {
            if let Ok(inside) = paths::root().strip_prefix(below) {
                let place = mount.limited().join(inside);
                std::fs::create_dir_all(&place).unwrap_or_else(|error| panic!("create {}: {error}", place.display()));
            }
        }
        btrfs(&["quota", "enable"]);
        btrfs(&["qgroup", "limit", &bytes.to_string()]);
        Some(mount)
    }

    fn at(scratch: Scratch, words: &[&str]) -> Option<Self> {
        let path = scratch.join("mounted");
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        let mounted = tool::run(Command::new("mount").args(words).arg(&path));
        if mounted.status.success() {
            return Some(Self { path, _scratch: scratch });
        }
        // Containers may not, even as root; nothing that CI installs would help.
        let why = String::from_utf8_lossy(&mounted.stderr).trim().to_owned();
        tool::skip(&format!("mount {}", words[..2].join(" ")), &why, Absence::IsAllowed);
        None
    }

    /// The directory that has the quota.
    #[must_use]
    pub fn limited(&self) -> PathBuf {
        self.path.join("limited")
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn done(command: &mut Command) {
    let done = tool::run(command);
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
