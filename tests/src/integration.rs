//! Integrations that run the chain, one for each way that LLVM code enters a process.

use std::fs;
use std::path::{Path, PathBuf};

use crate::host::Host;
use crate::paths;
use crate::tool::{self, Absence};

/// One way for LLVM code to enter a process.
#[derive(Clone, Copy, Debug)]
pub enum Integration {
    /// Unmodified Numba and llvmlite wheels from PyPI, in the virtual environment of this name.
    Numba(&'static str),
    /// LLVM's own interpreter, with its major version and options. It offers no hook for modules, so the bitcode is
    /// compiled with frame pointers and unwind tables.
    Lli(u32, &'static [&'static str]),
}

impl Integration {
    /// Host that runs the chain for `seconds`, or `None` if the test is skipped. `words` are additional arguments for
    /// `hosts/chain.py`.
    #[must_use]
    pub fn chain(self, seconds: u32, words: &[&str]) -> Option<Host> {
        let host = match self {
            Self::Numba(venv) => Host::new(python(venv)?, venv).argument(paths::host("chain.py")),
            Self::Lli(version, options) => lli(version, options, "chain.c")?,
        };
        Some(words.iter().fold(host.argument(seconds.to_string()), |host, word| host.argument(word)))
    }

    /// Name of the integration's row in the support table.
    #[must_use]
    pub fn row(self) -> &'static str {
        match self {
            Self::Numba(_) => "shim, stock wheels",
            Self::Lli(..) => "shim, lli",
        }
    }

    /// Substring of the file name of the code that calls the JIT code.
    #[must_use]
    pub fn caller_object(self) -> &'static str {
        match self {
            Self::Numba(_) => "_dispatcher",
            Self::Lli(..) => "libLLVM",
        }
    }

    /// Substring of gdb's line for the frame that calls the JIT code.
    #[must_use]
    pub fn caller_frame(self) -> &'static str {
        match self {
            Self::Numba(_) => "Dispatcher_call",
            Self::Lli(..) => "libLLVM",
        }
    }
}

/// Python interpreter of a virtual environment, or `None` if the test is skipped. If no suitable Python is installed,
/// `ci/setup.sh` creates VENV.skipped with the reason.
#[must_use]
pub fn python(venv: &str) -> Option<PathBuf> {
    let directory = paths::venv(venv);
    let python = directory.join("bin/python");
    if python.exists() {
        return Some(python);
    }
    match fs::read_to_string(paths::venv(&format!("{venv}.skipped"))) {
        Ok(reason) => tool::skip(venv, reason.trim(), Absence::IsAllowed),
        Err(_) => tool::skip(venv, "no virtual environment; run ci/setup.sh", Absence::FailsInCi),
    }
    None
}

/// A Numba program in a virtual environment, or `None` if the test is skipped.
#[must_use]
pub fn numba(venv: &str, program: &str) -> Option<Host> {
    Some(Host::new(python(venv)?, venv).argument(paths::host(program)))
}

/// Makes the packages and libraries of another environment, with the same Python version, available to a host; `None`
/// if the test is skipped.
///
/// # Panics
/// If the environment has no packages.
#[must_use]
pub fn with_packages(host: Host, venv: &str) -> Option<Host> {
    python(venv)?;
    let lib = paths::venv(venv).join("lib");
    let versions = fs::read_dir(&lib).unwrap_or_else(|error| panic!("read {}: {error}", lib.display()));
    let mut candidates =
        versions.flatten().map(|entry| entry.path().join("site-packages")).filter(|path| path.is_dir());
    let packages = candidates.next().expect("an environment has packages");
    Some(host.variable("PYTHONPATH", packages).variable("LD_LIBRARY_PATH", lib))
}

/// llvmlite's shared library in a virtual environment.
///
/// # Panics
/// If the environment lacks it.
#[must_use]
pub fn libllvmlite(python: &Path) -> PathBuf {
    let lib = python.parent().and_then(Path::parent).expect("bin/python").join("lib");
    let versions = fs::read_dir(&lib).unwrap_or_else(|error| panic!("read {}: {error}", lib.display()));
    let library_path = "site-packages/llvmlite/binding/libllvmlite.so";
    let mut candidates = versions.flatten().map(|entry| entry.path().join(library_path)).filter(|path| path.is_file());
    candidates.next().expect("llvmlite is installed")
}

/// Host that runs a C program under this version of `lli` with these options, or `None` if the test is skipped.
#[must_use]
pub fn lli(version: u32, options: &[&str], source: &str) -> Option<Host> {
    let lli = tool::require(&format!("lli-{version}"), absence(version))?;
    let host = Host::new(lli, &format!("lli-{version}"));
    let file = host.scratch("program.bc");
    bitcode(version, source, &file)?;
    let host = host.arguments(options);
    Some(host.argument(file))
}

/// Compiles a C host to bitcode with debug information; `None` if the test is skipped.
#[must_use]
pub fn bitcode(version: u32, source: &str, file: &Path) -> Option<()> {
    let clang = tool::require(&format!("clang-{version}"), absence(version))?;
    let flags = ["-O1", "-g", "-fno-omit-frame-pointer", "-fasynchronous-unwind-tables", "-emit-llvm", "-c"];
    tool::compile(&clang, &flags, &paths::host(source), file);
    Some(())
}

/// Only LLVM 14 is required in CI. Debian 12 has both releases, other systems may have only the older one, and the
/// userlands of `ci/systems.sh` have neither.
fn absence(version: u32) -> Absence {
    if version == 14 && !paths::in_userland() { Absence::FailsInCi } else { Absence::IsAllowed }
}
