//! `perf record -g` and `perf script` over a host.
//!
//! To see what they see:
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

/// What perf saw of one process.
#[derive(Debug)]
pub struct Recording {
    /// The process.
    pub pid: u32,
    /// Its samples.
    pub samples: Vec<Sample>,
    /// What the host printed to standard output.
    pub stdout: Vec<u8>,
    /// The perf map it left, already taken away.
    pub map: Option<Vec<u8>>,
}

/// Whether perf is here and allowed; a loud skip if not.
#[must_use]
pub fn is_here() -> Option<()> {
    static TRIAL: OnceLock<Result<(), String>> = OnceLock::new();
    tool::require("perf", Absence::FailsInCi)?;
    let trial = TRIAL.get_or_init(|| {
        let done = tool::run(Command::new("perf").args(["record", "-q", "-e", "cpu-clock", "-o", "-", "true"]));
        if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).trim().to_owned()) }
    });
    trial.as_ref().map_err(|why| tool::skip("perf", why, Absence::FailsInCi)).ok().copied()
}

/// Runs a host to its end under `perf record`.
///
/// # Panics
/// When perf or the host fails, or perf's output cannot be read.
#[must_use]
pub fn record(host: &Host, preload: Preload) -> Recording {
    record_with(&["-F", "997", "-g"], host, preload)
}

/// The same with `--call-graph dwarf`.
///
/// # Panics
/// As [`record`].
#[must_use]
pub fn record_by_tables(host: &Host, preload: Preload) -> Recording {
    record_with(&["-F", "199", "--call-graph", "dwarf"], host, preload)
}

fn record_with(options: &[&str], host: &Host, preload: Preload) -> Recording {
    let data = host.scratch("perf.data");
    let mut command = Command::new("perf");
    // The hardware counters many machines lack are not needed; build-ids would copy every library to ~/.debug.
    command.args(["record", "-q", "-e", "cpu-clock", "-B", "-N"]).args(options).arg("-o").arg(&data);
    // Where hosts run that are started without perf.
    command.current_dir(host.scratch("."));
    let recorded = well(tool::run(command.args(["--", "env"]).args(host.env_words(preload))), "perf record");
    let mut samples = samples(&data);
    let pid = busiest(&samples).expect("perf saw the host");
    samples.retain(|sample| sample.pid == pid);
    Recording { pid, samples, stdout: recorded.stdout, map: perf_map::take(pid) }
}

/// Looks at a running host for so many seconds, from outside: perf reads the present mappings in `/proc/PID/maps`.
///
/// # Panics
/// When perf fails.
#[must_use]
pub fn attach(running: &Running<'_>, seconds: u32, data: &Path) -> Vec<Sample> {
    let mut command = Command::new("perf");
    command.args(["record", "-q", "-e", "cpu-clock", "-F", "997", "-g", "-B", "-N", "-o"]).arg(data);
    command.args(["-p", &running.pid().to_string(), "--", "sleep", &seconds.to_string()]);
    let _ = well(tool::run(&mut command), "perf record -p");
    samples(data)
}

/// The samples of a recording. A perf map is read here, when perf resolves the first address.
///
/// # Panics
/// When perf fails or prints what it does not usually print.
#[must_use]
pub fn samples(data: &Path) -> Vec<Sample> {
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "-F", "comm,pid,tid,ip,sym,dso", "-i"]).arg(data);
    let text = well(tool::run(&mut command), "perf script");
    let samples = perf_script::parse(&String::from_utf8_lossy(&text.stdout));
    samples.unwrap_or_else(|fault| panic!("perf script, line {}: {:?}", fault.line, fault.text))
}

impl Recording {
    /// The perf map, which has to exist and to obey every rule.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn perf_map(&self) -> PerfMap {
        let bytes = self.map.as_deref().unwrap_or_else(|| panic!("no perf map of {}", self.pid));
        PerfMap::parse(bytes).unwrap_or_else(|fault| panic!("perf map of {}: {fault}", self.pid))
    }
}

/// The process with most samples: the host, not what it started to ask for the machine's name.
fn busiest(samples: &[Sample]) -> Option<u32> {
    let count = |pid| samples.iter().filter(|sample| sample.pid == pid).count();
    let mut pids: Vec<u32> = samples.iter().map(|sample| sample.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().max_by_key(|&pid| count(pid))
}

#[track_caller]
fn well(output: Output, what: &str) -> Output {
    assert!(output.status.success(), "{what}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}
