//! perf, a Python with Numba, and the library.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{find, scratch, skip};

pub struct Tools {
    pub perf: PathBuf,
    pub python: PathBuf,
    pub library: PathBuf,
}

/// What is needed to record now; without it, the test is skipped.
pub fn tools() -> Option<Tools> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let python = target.join("venv/numba-0.68.1/bin/python");
    let library = target.join("release/libjitlisten.so");
    let Some(perf) = find("perf").or_else(|| find_in(&target.join("tools"))) else {
        skip("perf");
        return None;
    };
    let trial = scratch("trial").join(format!("perf-{}.data", std::process::id()));
    let allowed = Command::new(&perf).args(["record", "-q", "-e", "cpu-clock", "-o"]).arg(trial).arg("true").output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        skip("perf record: the kernel forbids it");
        return None;
    }
    for (file, what) in [
        (&python, "target/venv/numba-0.68.1 (ci/setup.sh)"),
        (&library, "target/release/libjitlisten.so (cargo build --release)"),
    ] {
        if !file.exists() {
            skip(what);
            return None;
        }
    }
    Some(Tools { perf, python, library })
}

fn find_in(directory: &Path) -> Option<PathBuf> {
    Some(directory.join("perf")).filter(|path| path.is_file())
}
