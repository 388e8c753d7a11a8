//! `perf record -k mono`, `perf inject --jit` and what comes after, over a host that writes a jitdump.
//!
//! To see what they see:
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
use crate::perf_lines::{self, Shares};
use crate::perf_map;
use crate::perf_script::{self, Sample};
use crate::tool;

/// A recording with the JIT code put in.
#[derive(Debug)]
pub struct Injected {
    host: Host,
    data: PathBuf,
    /// The dumps the host's processes left, by process.
    pub dumps: BTreeMap<u32, Jitdump>,
    /// The samples of all processes that left one.
    pub samples: Vec<Sample>,
}

/// Runs a host to its end under `perf record`, with so many samples a second and the call graph of this kind (`fp`,
/// `dwarf,16384`), and injects.
///
/// # Panics
/// When perf or the host fails, or a jitdump breaks a rule.
#[must_use]
pub fn record(host: Host, frequency: u32, call_graph: &str) -> Injected {
    record_with(host, Preload::Library, frequency, call_graph)
}

/// The same for a host that is preloaded with this.
///
/// # Panics
/// As [`record`].
#[must_use]
pub fn record_with(host: Host, preload: Preload, frequency: u32, call_graph: &str) -> Injected {
    let (recorded, data) = (host.scratch("perf.data"), host.scratch("perf.jit.data"));
    let mut command = Command::new("perf");
    command.args(["record", "-q", "-k", "mono", "-e", "cpu-clock", "-B", "-N", "--call-graph", call_graph]);
    command.args(["-F", &frequency.to_string()]);
    well(tool::run(command.arg("-o").arg(&recorded).args(["--", "env"]).args(host.env_words(preload))));
    inject(host, recorded, data)
}

fn inject(host: Host, recorded: PathBuf, data: PathBuf) -> Injected {
    let mut command = Command::new("perf");
    well(tool::run(command.args(["inject", "--jit", "-i"]).arg(recorded).arg("-o").arg(&data)));
    let dumps: BTreeMap<u32, Jitdump> = jitdump_reader::find(&host.scratch("."))
        .iter()
        .map(|path| jitdump_reader::read(path))
        .map(|dump| (dump.pid, dump))
        .collect();
    let mut injected = Injected { host, data, dumps, samples: Vec::new() };
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
    /// The dump of a host that is one process.
    ///
    /// # Panics
    /// When there are more or none.
    #[must_use]
    pub fn dump(&self) -> &Jitdump {
        assert_eq!(self.dumps.len(), 1, "one process, one dump");
        self.dumps.values().next().expect("one")
    }

    /// The samples of all processes as they were without `perf inject`.
    #[must_use]
    pub fn recorded(&self) -> Vec<Sample> {
        perf::samples(&self.host.scratch("perf.data"))
    }

    /// What perf prints.
    ///
    /// # Panics
    /// When perf fails.
    #[must_use]
    pub fn perf(&self, words: &[&str]) -> String {
        let mut command = Command::new("perf");
        let output = well(tool::run(command.arg(words[0]).arg("-i").arg(&self.data).args(&words[1..])));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// How many leaves have each name; `None` is no name.
    #[must_use]
    pub fn leaves(&self) -> BTreeMap<Option<&str>, usize> {
        let mut leaves = BTreeMap::new();
        for leaf in self.samples.iter().filter_map(|sample| sample.frames.first()) {
            *leaves.entry(leaf.symbol.as_deref()).or_default() += 1;
        }
        leaves
    }

    /// How many leaves have a name that names this function.
    #[must_use]
    pub fn leaves_in(&self, function: &str) -> usize {
        let leaves = self.leaves().into_iter();
        leaves
            .filter(|(name, _)| name.is_some_and(|name| crate::scenario::names(name, function)))
            .map(|leaf| leaf.1)
            .sum()
    }

    /// Percent of the samples in `symbol` per line of a file, from `perf annotate -l`.
    #[must_use]
    pub fn lines(&self, symbol: &str, file: &str) -> Shares {
        let text = self.perf(&["annotate", "-l", "--stdio", "-s", symbol]);
        perf_lines::annotate(&text, file)
    }
}

#[track_caller]
fn well(output: Output) -> Output {
    assert!(output.status.success(), "perf: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}
