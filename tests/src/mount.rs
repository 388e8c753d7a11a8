//! Small file systems with unusual properties, for tests that may mount (as root, in CI).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::paths::{self, Scratch};
use crate::tool::{self, Absence};

/// A mounted file system in its own directory. Dropping it unmounts the file system and removes the directory.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    _scratch: Scratch,
}

impl Mount {
    /// Mounts a tmpfs with these options; `None` if the test is skipped.
    #[must_use]
    pub fn tmpfs(options: &str) -> Option<Self> {
        Mount::mount_in(Scratch::new("tmpfs"), &["-t", "tmpfs", "-o", options, "jitlisten"])
    }

    /// Mounts a btrfs image. The directory [`Mount::quota_directory`] has a quota of `bytes`, metadata included: writes
    /// beyond it fail with `EDQUOT`. Returns `None` if the test is skipped.
    ///
    /// User quotas on ext4 would be more common, but more kernels lack ext4 quota support than btrfs.
    ///
    /// # Panics
    /// If the file system cannot be created.
    #[must_use]
    pub fn with_quota(bytes: u32) -> Option<Self> {
        let mkfs = tool::require("mkfs.btrfs", Absence::FailsInCi)?;
        let scratch = Scratch::new("btrfs");
        let disk = scratch.join("file");
        let creation = std::fs::File::create(&disk).and_then(|file| file.set_len(128 << 20));
        creation.unwrap_or_else(|error| panic!("create {}: {error}", disk.display()));
        run_checked(Command::new(mkfs).args(["--quiet", "--mixed"]).arg(&disk));
        let mount = Mount::mount_in(scratch, &["-o", "loop", &disk.display().to_string()])?;
        let btrfs =
            |arguments: &[&str]| run_checked(Command::new("btrfs").args(arguments).arg(mount.quota_directory()));
        btrfs(&["--quiet", "subvolume", "create"]);
        // Tests may mount this directory over a parent of the repository (`Host::in_mount_namespace`). Create the
        // repository's mount point now, because the quota may be exhausted later.
        for parent in ["/tmp", "/var/tmp"] {
            if let Ok(relative) = paths::root().strip_prefix(parent) {
                let mount_point = mount.quota_directory().join(relative);
                std::fs::create_dir_all(&mount_point)
                    .unwrap_or_else(|error| panic!("create {}: {error}", mount_point.display()));
            }
        }
        btrfs(&["quota", "enable"]);
        btrfs(&["qgroup", "limit", &bytes.to_string()]);
        Some(mount)
    }

    fn mount_in(scratch: Scratch, arguments: &[&str]) -> Option<Self> {
        let path = scratch.join("mounted");
        std::fs::create_dir(&path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        let mount_run = tool::run(Command::new("mount").args(arguments).arg(&path));
        if mount_run.status.success() {
            return Some(Self { path, _scratch: scratch });
        }
        // Containers may forbid mounting, even for root, and no package that CI could install would change that.
        let reason = String::from_utf8_lossy(&mount_run.stderr).trim().to_owned();
        tool::skip(&format!("mount {}", arguments[..2].join(" ")), &reason, Absence::IsAllowed);
        None
    }

    /// Directory with the quota.
    #[must_use]
    pub fn quota_directory(&self) -> PathBuf {
        self.path.join("limited")
    }

    /// Mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn run_checked(command: &mut Command) {
    let output = tool::run(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}
