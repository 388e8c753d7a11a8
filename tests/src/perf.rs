//! Runs `perf record -g` and `perf script` on a host.
//!
//! To reproduce by hand:
//!
//! ```text
//! perf record -e cpu-clock -F 997 -g -- env LD_PRELOAD=target/release/libjitlisten.so python program.py
//! perf report --no-children
//! ```

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::host::{Host, Preload, Running};
use crate::perf_map::{self, PerfMap};
use crate::perf_script::{self, Sample};
use crate::tool::{self, Absence};

/// perf's samples of one process, and the files of its run.
#[derive(Debug)]
pub struct Recording {
    /// Process id.
    pub pid: u32,
    /// Samples of the process.
    pub samples: Vec<Sample>,
    /// Standard output of the host.
    pub stdout: Vec<u8>,
    /// Contents of the perf map that the host left; the file is already removed.
    pub map: Option<Vec<u8>>,
}

/// Returns `Some` if perf is installed and permitted to record; otherwise reports a skip.
#[must_use]
pub fn is_available() -> Option<()> {
    static TRIAL: OnceLock<Result<(), String>> = OnceLock::new();
    tool::require("perf", Absence::FailsInCi)?;
    let trial = TRIAL.get_or_init(|| {
        let output = tool::run(Command::new("perf").args(["record", "-q", "-e", "cpu-clock", "-o", "-", "true"]));
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()) }
    });
    trial.as_ref().map_err(|reason| tool::skip("perf", reason, Absence::FailsInCi)).ok().copied()
}

/// Runs a host to its end under `perf record`.
///
/// # Panics
/// If perf or the host fails, or perf's output cannot be read.
#[must_use]
pub fn record(host: &Host, preload: Preload) -> Recording {
    record_with(&["-F", "997", "-g"], host, preload)
}

/// Runs a host to its end under `perf record --call-graph dwarf`.
///
/// # Panics
/// Same as [`record`].
#[must_use]
pub fn record_dwarf(host: &Host, preload: Preload) -> Recording {
    record_with(&["-F", "199", "--call-graph", "dwarf"], host, preload)
}

fn record_with(options: &[&str], host: &Host, preload: Preload) -> Recording {
    let data = host.scratch("perf.data");
    let mut command = Command::new("perf");
    // The software clock works on machines without hardware counters. The options -B and -N disable build IDs, for
    // which perf would copy every library to ~/.debug.
    command.args(["record", "-q", "-e", "cpu-clock", "-B", "-N"]).args(options).arg("-o").arg(&data);
    // Use the same working directory as for hosts that run without perf.
    command.current_dir(host.scratch("."));
    let perf_run =
        expect_success(tool::run(command.args(["--", "env"]).args(host.env_arguments(preload))), "perf record");
    let mut samples = samples(&data);
    let pid = busiest_process(&samples).expect("perf saw the host");
    samples.retain(|sample| sample.pid == pid);
    Recording { pid, samples, stdout: perf_run.stdout, map: perf_map::take(pid) }
}

/// Records a running host for `seconds`. perf reads the existing mappings from `/proc/PID/maps`.
///
/// # Panics
/// If perf fails.
#[must_use]
pub fn attach(running: &Running<'_>, seconds: u32, data: &Path) -> Vec<Sample> {
    let mut command = Command::new("perf");
    command.args(["record", "-q", "-e", "cpu-clock", "-F", "997", "-g", "-B", "-N", "-o"]).arg(data);
    command.args(["-p", &running.pid().to_string(), "--", "sleep", &seconds.to_string()]);
    let _ = expect_success(tool::run(&mut command), "perf record -p");
    samples(data)
}

/// Samples of a recording. perf reads the perf map during this call, at the first address that it resolves.
///
/// # Panics
/// If perf fails or its output cannot be parsed.
#[must_use]
pub fn samples(data: &Path) -> Vec<Sample> {
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "-F", "comm,pid,tid,ip,sym,dso", "-i"]).arg(data);
    let text = expect_success(tool::run(&mut command), "perf script");
    let samples = perf_script::parse(&String::from_utf8_lossy(&text.stdout));
    samples.unwrap_or_else(|unreadable| panic!("perf script, line {}: {:?}", unreadable.line, unreadable.text))
}

impl Recording {
    /// Parses the perf map, which must exist and obey every rule.
    ///
    /// # Panics
    /// If the perf map is missing or breaks a rule.
    #[must_use]
    pub fn perf_map(&self) -> PerfMap {
        let bytes = self.map.as_deref().unwrap_or_else(|| panic!("no perf map of {}", self.pid));
        PerfMap::parse(bytes).unwrap_or_else(|fault| panic!("perf map of {}: {fault}", self.pid))
    }
}

/// Process with the most samples. Short-lived children have few, for example the `uname` process that Python starts.
fn busiest_process(samples: &[Sample]) -> Option<u32> {
    let count = |pid| samples.iter().filter(|sample| sample.pid == pid).count();
    let mut pids: Vec<u32> = samples.iter().map(|sample| sample.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().max_by_key(|&pid| count(pid))
}

#[track_caller]
fn expect_success(output: Output, tool_name: &str) -> Output {
    assert!(output.status.success(), "{tool_name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}
