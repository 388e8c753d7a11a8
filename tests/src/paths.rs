//! Paths of the library under test, the hosts, the virtual environments and the tests' scratch directories.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}

/// Path of the library under test: `$JITLISTEN_LIBRARY`, or the output of `cargo build --release`.
///
/// # Panics
/// If it has not been built.
#[must_use]
pub fn library() -> PathBuf {
    let path =
        env::var_os("JITLISTEN_LIBRARY").map_or_else(|| root().join("target/release/libjitlisten.so"), PathBuf::from);
    assert!(path.is_file(), "{} is missing: run `cargo build --release` first", path.display());
    path
}

/// A host program under `tests/hosts`.
#[must_use]
pub fn host(name: &str) -> PathBuf {
    root().join("tests/hosts").join(name)
}

/// Directory of a virtual environment that `ci/setup.sh` created, below `$JITLISTEN_VENVS` or `target/venv`.
#[must_use]
pub fn venv(name: &str) -> PathBuf {
    env::var_os("JITLISTEN_VENVS").map_or_else(|| root().join("target/venv"), PathBuf::from).join(name)
}

/// Returns true if the suite runs in the userland of another distribution (`ci/systems.sh`), which contains only the
/// tools that its tests need.
#[must_use]
pub fn in_userland() -> bool {
    env::var_os("JITLISTEN_USERLAND").is_some()
}

fn is_accessible_to_all(path: &Path) -> bool {
    path.ancestors().all(|path| fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0))
}

/// Scratch directory of one test. Removed if the test passes, and kept for inspection if it fails.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates an empty directory under `target/scratch`.
    ///
    /// # Panics
    /// If the directory cannot be created.
    #[must_use]
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root().join("target/scratch").join(format!("{name}-{}-{count}", process::id()));
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        Self { path }
    }

    /// Creates a directory that every user can reach. `target/scratch` is unsuitable if the repository is in a private
    /// home directory. `ci/test.sh` removes this directory, too.
    ///
    /// # Panics
    /// If the directory cannot be created.
    #[must_use]
    pub fn accessible_to_all(name: &str) -> Self {
        let scratch = Self::new(name);
        if is_accessible_to_all(&scratch.path) {
            return scratch;
        }
        let directory = scratch.path.file_name().expect("a name");
        // /tmp and /var/tmp are unsuitable because some tests mount over them. Each clone of the repository uses its
        // own directory.
        let clone = root().display().to_string().replace('/', "-");
        let path = PathBuf::from(format!("/opt/jitlisten-scratch{clone}")).join(directory);
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        Self { path }
    }

    /// A path inside the directory.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // A directory that cannot be removed must not fail a test that passed.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
