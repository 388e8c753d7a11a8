//! Paths of the library and the Python package that were installed together with this command.
//!
//! ```text
//!   PREFIX/bin/jitlisten                                          this command
//!   PREFIX/lib*/python3.X/{site,dist}-packages/jitlisten/         pip install: the package, with libjitlisten.so in it
//!   PREFIX/jitlisten/                                             pip install --target PREFIX
//!   target/release/jitlisten, target/release/libjitlisten.so      cargo build; the package is python/jitlisten
//!   PREFIX/bin/jitlisten, PREFIX/lib/libjitlisten.so              make install
//! ```

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::problem::Problem;

/// File name of the library.
pub(crate) const LIBRARY: &str = "libjitlisten.so";

/// Paths of the library, and of the Python package if it is installed.
pub(crate) struct Installation {
    library: PathBuf,
    package: Option<PathBuf>,
}

pub(crate) fn own_executable() -> Result<PathBuf, Problem> {
    env::current_exe().map_err(|error| Problem::new(format!("cannot find the jitlisten executable: {error}")))
}

impl Installation {
    /// Finds the files relative to the running executable.
    pub(crate) fn find() -> Result<Installation, Problem> {
        let program = own_executable()?;
        let bin = program.parent().unwrap_or(Path::new("/"));
        let prefix = bin.parent().unwrap_or(Path::new("/"));
        if let Some(package) = package_below(prefix) {
            return Ok(Installation { library: package.join(LIBRARY), package: Some(package) });
        }
        let tree_package = prefix.parent().map(|tree| tree.join("python/jitlisten")).filter(|package| package.is_dir());
        let candidates = [(bin.join(LIBRARY), tree_package), (prefix.join("lib").join(LIBRARY), None)];
        candidates
            .into_iter()
            .find(|(library, _)| library.is_file())
            .map(|(library, package)| Installation { library, package })
            .ok_or_else(|| {
                let prefix = prefix.display();
                Problem::new(format!("{LIBRARY} is not installed below {prefix}"))
                    .help("pip install --force-reinstall jitlisten")
            })
    }

    /// Python of the environment into which `pip` installed this command.
    pub(crate) fn python() -> Option<PathBuf> {
        let bin = own_executable().ok()?.parent()?.to_owned();
        package_below(bin.parent()?)?;
        ["python3", "python"].iter().map(|name| bin.join(name)).find(|python| python.is_file())
    }

    pub(crate) fn library(&self) -> &Path {
        &self.library
    }

    /// Path of the native library. Fails if `LD_PRELOAD` cannot contain that path.
    pub(crate) fn preloadable_library(&self) -> Result<&Path, Problem> {
        let path = self.library.to_string_lossy();
        if path.contains([' ', ':', '$']) {
            return Err(Problem::new(format!(
                "LD_PRELOAD cannot name {path}, because of a space, colon or dollar sign in it"
            ))
            .help("install jitlisten in another directory"));
        }
        Ok(&self.library)
    }

    /// Directory with the `sitecustomize` module that enables line tables.
    pub(crate) fn site(&self) -> Option<PathBuf> {
        self.package.as_ref().map(|package| package.join("_site")).filter(|site| site.is_dir())
    }

    /// Returns true if the package can add line tables to Numba's code.
    pub(crate) fn has_lines(&self) -> bool {
        self.package
            .as_ref()
            .is_some_and(|package| package.join("_lines").is_dir() || package.join("_lines.py").is_file())
    }

    /// Directory of the Python package.
    pub(crate) fn package(&self) -> Option<&Path> {
        self.package.as_deref()
    }
}

/// Finds the package that `pip` installed below `prefix`. Among several, the one with this command's version is
/// preferred.
fn package_below(prefix: &Path) -> Option<PathBuf> {
    let mut directories = vec![prefix.to_owned()];
    for lib in ["lib", "lib64"] {
        let mut pythons: Vec<_> = fs::read_dir(prefix.join(lib)).into_iter().flatten().flatten().collect();
        pythons.retain(|entry| entry.file_name().to_string_lossy().starts_with("python"));
        for python in pythons {
            directories.extend(["site-packages", "dist-packages"].map(|name| python.path().join(name)));
        }
    }
    directories.retain(|directory| directory.join("jitlisten").join(LIBRARY).is_file());
    let metadata = concat!("jitlisten-", env!("CARGO_PKG_VERSION"), ".dist-info");
    let directory = directories.iter().find(|directory| directory.join(metadata).is_dir()).or(directories.first())?;
    Some(directory.join("jitlisten"))
}
