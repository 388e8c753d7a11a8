//! Runs `perf record -k mono` and `perf inject --jit` on a host that writes a jitdump.
//!
//! To reproduce by hand:
//!
//! ```text
//! JITLISTEN=jitdump perf record -k mono -e cpu-clock -g -- env LD_PRELOAD=libjitlisten.so python program.py
//! perf inject --jit -i perf.data -o perf.jit.data
//! perf report -i perf.jit.data --sort sym,srcline
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::host::{Host, Preload};
use crate::jitdump_reader::{self, Jitdump};
use crate::perf;
use crate::perf_lines::{self, LinePercentages};
use crate::perf_map;
use crate::perf_script::{self, Sample};
use crate::tool;

/// A recording after `perf inject`, with symbols for the JIT code.
#[derive(Debug)]
pub struct Injected {
    host: Host,
    data: PathBuf,
    /// Jitdumps of the host's processes, by process id.
    pub dumps: BTreeMap<u32, Jitdump>,
    /// Samples of the processes that wrote a jitdump.
    pub samples: Vec<Sample>,
}

/// Runs a host until it exits under `perf record`, at `frequency` samples per second and with this `--call-graph`
/// option (`fp`, `dwarf,16384`), then runs `perf inject`.
///
/// # Panics
/// If perf or the host fails, or a jitdump breaks a rule.
#[must_use]
pub fn record(host: Host, frequency: u32, call_graph: &str) -> Injected {
    record_with(host, Preload::Library, frequency, call_graph)
}

/// Like [`record`], with a choice of the preloaded library.
///
/// # Panics
/// Same as [`record`].
#[must_use]
pub fn record_with(host: Host, preload: Preload, frequency: u32, call_graph: &str) -> Injected {
    let (recorded_data, injected_data) = (host.scratch("perf.data"), host.scratch("perf.jit.data"));
    let mut command = Command::new("perf");
    command.args(["record", "-q", "-k", "mono", "-e", "cpu-clock", "-B", "-N", "--call-graph", call_graph]);
    command.args(["-F", &frequency.to_string()]);
    expect_success(tool::run(
        command.arg("-o").arg(&recorded_data).args(["--", "env"]).args(host.env_arguments(preload)),
    ));
    inject(host, recorded_data, injected_data)
}

fn inject(host: Host, recorded_data: PathBuf, injected_data: PathBuf) -> Injected {
    let mut command = Command::new("perf");
    expect_success(tool::run(command.args(["inject", "--jit", "-i"]).arg(recorded_data).arg("-o").arg(&injected_data)));
    let dumps: BTreeMap<u32, Jitdump> = jitdump_reader::find(&host.scratch("."))
        .iter()
        .map(|path| jitdump_reader::read(path))
        .map(|dump| (dump.pid, dump))
        .collect();
    let mut injected = Injected { host, data: injected_data, dumps, samples: Vec::new() };
    let text = injected.perf(&["script", "--no-inline", "-F", "comm,pid,tid,ip,sym,dso"]);
    let samples = perf_script::parse(&text);
    injected.samples = samples.unwrap_or_else(|fault| panic!("perf script, line {}: {:?}", fault.line, fault.text));
    injected.samples.retain(|sample| injected.dumps.contains_key(&sample.pid));
    for pid in injected.dumps.keys() {
        let _ = perf_map::take(*pid);
    }
    injected
}

impl Injected {
    /// The jitdump of a host with a single process.
    ///
    /// # Panics
    /// If the host left several jitdumps or none.
    #[must_use]
    pub fn dump(&self) -> &Jitdump {
        assert_eq!(self.dumps.len(), 1, "one process, one dump");
        self.dumps.values().next().expect("one")
    }

    /// Samples of all processes before `perf inject`.
    #[must_use]
    pub fn samples_before_inject(&self) -> Vec<Sample> {
        perf::samples(&self.host.scratch("perf.data"))
    }

    /// Output of a perf command over the injected recording.
    ///
    /// # Panics
    /// If perf fails.
    #[must_use]
    pub fn perf(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("perf");
        let output =
            expect_success(tool::run(command.arg(arguments[0]).arg("-i").arg(&self.data).args(&arguments[1..])));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Number of leaf frames per symbol; `None` counts leaf frames without a symbol.
    #[must_use]
    pub fn count_leaves(&self) -> BTreeMap<Option<&str>, usize> {
        let mut leaves = BTreeMap::new();
        for leaf in self.samples.iter().filter_map(|sample| sample.frames.first()) {
            *leaves.entry(leaf.symbol.as_deref()).or_default() += 1;
        }
        leaves
    }

    /// Number of leaf frames whose symbol contains this function's name.
    #[must_use]
    pub fn count_leaves_in(&self, function: &str) -> usize {
        let leaves = self.count_leaves().into_iter();
        leaves
            .filter(|(name, _)| name.is_some_and(|name| crate::scenario::names_function(name, function)))
            .map(|leaf| leaf.1)
            .sum()
    }

    /// Percentage of the samples in `symbol` per line of a file, from `perf annotate -l`.
    #[must_use]
    pub fn lines(&self, symbol: &str, file: &str) -> LinePercentages {
        let text = self.perf(&["annotate", "-l", "--stdio", "-s", symbol]);
        perf_lines::parse_annotate(&text, file)
    }
}

#[track_caller]
fn expect_success(output: Output) -> Output {
    assert!(output.status.success(), "perf: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}
