//! Paths: the library under test, the hosts, the virtual environments, a scratch directory per test.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_owned()
}

/// The library under test: `$JITLISTEN_LIBRARY`, else what `cargo build --release` leaves.
///
/// # Panics
/// When it has not been built; nothing can be tested then.
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

/// The directory of a virtual environment made by `ci/setup.sh`, under `$JITLISTEN_VENVS` or `target/venv`.
#[must_use]
pub fn venv(name: &str) -> PathBuf {
    env::var_os("JITLISTEN_VENVS").map_or_else(|| root().join("target/venv"), PathBuf::from).join(name)
}

/// Whether the suite runs inside another release's userland (`ci/systems.sh`), which has what its scenarios need and no
/// more.
#[must_use]
pub fn in_userland() -> bool {
    env::var_os("JITLISTEN_USERLAND").is_some()
}

fn is_open_to_others(path: &Path) -> bool {
    path.ancestors().all(|path| fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o001 != 0))
}

/// A directory of one test, removed when the test is done and kept for inspection when it failed.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a fresh directory under `target/scratch`.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = root().join("target/scratch").join(format!("{name}-{}-{count}", process::id()));
        fs::create_dir_all(&path).unwrap_or_else(|error| panic!("create {}: {error}", path.display()));
        Self { path }
    }

    /// The same where every user may go: below a home that others may not enter, that is not `target/scratch`.
    /// `ci/test.sh` removes the other place, too.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    pub fn open_to_others(name: &str) -> Self {
        let usual = Self::new(name);
        if is_open_to_others(&usual.path) {
            return usual;
        }
        let directory = usual.path.file_name().expect("a name");
        // Not /tmp and not /var/tmp: some tests mount over them. Another clone has another place.
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
            // A leftover directory is no reason to fail a test that passed.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
