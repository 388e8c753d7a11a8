//! Tools for making new recordings: perf, a Python with Numba, and the `jitlisten` command with its library.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{find_program, scratch_directory, skip};

pub struct Tools {
    pub perf: PathBuf,
    pub python: PathBuf,
    pub command: PathBuf,
}

impl Tools {
    /// Returns the command for `perf record ... --`: Python under `jitlisten run`, so that Numba's code is unchanged
    /// except for lines. Images go to `directory`.
    pub fn run(&self, directory: &Path) -> Command {
        let mut command = Command::new("env");
        command.arg(format!("JITLISTEN_DIR={}", directory.display())).arg("OPENBLAS_NUM_THREADS=1");
        command.arg(&self.command).args(["run", "--"]).arg(&self.python);
        command
    }
}

/// Returns the tools. If one is missing, the test is skipped.
pub fn tools() -> Option<Tools> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    let python = target.join("venv/numba-0.68.1/bin/python");
    let command = target.join("release/jitlisten");
    let library = target.join("release/libjitlisten.so");
    let Some(perf) = find_program("perf").or_else(|| find_perf_in(&target.join("tools"))) else {
        skip("perf");
        return None;
    };
    let trial = scratch_directory("trial").join(format!("perf-{}.data", std::process::id()));
    let trial_output =
        Command::new(&perf).args(["record", "-q", "-e", "cpu-clock", "-o"]).arg(trial).arg("true").output();
    if !trial_output.is_ok_and(|output| output.status.success()) {
        skip("perf record: the kernel forbids it");
        return None;
    }
    for (file, what) in [
        (&python, "target/venv/numba-0.68.1 (ci/setup.sh)"),
        (&command, "target/release/jitlisten (cargo build --release)"),
        (&library, "target/release/libjitlisten.so (cargo build --release)"),
    ] {
        if !file.exists() {
            skip(what);
            return None;
        }
    }
    Some(Tools { perf, python, command })
}

fn find_perf_in(directory: &Path) -> Option<PathBuf> {
    Some(directory.join("perf")).filter(|path| path.is_file())
}
