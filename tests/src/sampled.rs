//! Recordings of the in-process sampler, read through `perf script`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use wire::counters::Counters;
use wire::perf_data::PERF_RECORD_READ;

use crate::host::Host;
use crate::paths::{self, Scratch};
use crate::tool::{self, Absence};

/// A sample with its period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedSample {
    /// Thread id.
    pub tid: u32,
    /// Period in nanoseconds.
    pub period: u64,
    /// Function names, innermost first; `[unknown]` for frames without a symbol.
    pub frames: Vec<String>,
}

/// Samples of a recording, with complete stacks.
///
/// # Panics
/// If perf cannot read the file, or its output cannot be parsed.
#[must_use]
pub fn read(data: &Path) -> Vec<WeightedSample> {
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "--max-stack", "8192", "-F", "tid,period,ip,sym", "-i"]).arg(data);
    let output = tool::run(&mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}: {}", data.display(), String::from_utf8_lossy(&output.stderr));
    parse(&text).unwrap_or_else(|line| panic!("{}: {line:?}", data.display()))
}

/// Counters that the recorder stores at the end of a recording.
///
/// # Panics
/// If the file cannot be read, or is not a complete recording by the library.
#[must_use]
pub fn counters(data: &Path) -> Counters {
    let bytes = fs::read(data).expect("a recording");
    let word = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("a word"));
    let features: u32 = (72..104).step_by(8).map(|offset| word(offset).count_ones()).sum();
    // The table of features follows the data. Its last entry belongs to the counters.
    let entry = (word(40) + word(48)) as usize + 16 * (features as usize - 1);
    Counters::decode(&bytes[word(entry) as usize..][..word(entry + 8) as usize]).expect("counters")
}

/// Seconds of CPU time that the recorder has measured for each thread (`PERF_RECORD_READ`).
///
/// # Panics
/// If the file cannot be read, or is not a recording.
#[must_use]
pub fn measured_seconds(data: &Path) -> BTreeMap<u32, f64> {
    let bytes = fs::read(data).expect("a recording");
    let word = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("a word"));
    let (mut offset, mut seconds) = (word(40) as usize, BTreeMap::new());
    while offset < (word(40) + word(48)) as usize {
        // Type, `misc` and size; then the process and the thread, and the value.
        let header = word(offset);
        if header as u32 == PERF_RECORD_READ {
            *seconds.entry((word(offset + 8) >> 32) as u32).or_default() += word(offset + 16) as f64 / 1e9;
        }
        offset += (header >> 48) as usize;
    }
    seconds
}

/// Parses sample blocks: a header `TID PERIOD:` and one line `ADDRESS NAME` per frame. The error is the malformed line.
fn parse(text: &str) -> Result<Vec<WeightedSample>, String> {
    let mut samples: Vec<WeightedSample> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if line.starts_with('\t') {
            let sample = samples.last_mut().ok_or_else(|| line.to_owned())?;
            let name = line.trim_start().split_once(' ').map_or("", |(_, name)| name.trim());
            sample.frames.push(name.to_owned());
        } else {
            let number = |word: &str| word.trim_end_matches(':').parse::<u64>().map_err(|_| line.to_owned());
            let tid = u32::try_from(number(first)?).map_err(|_| line.to_owned())?;
            samples.push(WeightedSample { tid, period: number(second)?, frames: Vec::new() });
        }
    }
    Ok(samples)
}

impl WeightedSample {
    /// True if the stack reaches the entry function of its thread.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let outermost = self.frames.last().map_or("", String::as_str);
        ["_start", "clone3", "__clone3", "__clone", "clone"].contains(&outermost)
    }

    /// Returns true if the function is on the stack.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| frame == name)
    }
}

/// Time in stacks that contain `name`, as a percentage of the time in stacks that contain any function of `all`.
#[must_use]
pub fn share(samples: &[WeightedSample], name: &str, all: &[&str]) -> f64 {
    let time = |is_selected: &dyn Fn(&&WeightedSample) -> bool| {
        samples.iter().filter(is_selected).map(|sample| sample.period).sum::<u64>()
    };
    let total = time(&|sample| all.iter().any(|name| sample.contains(name)));
    100.0 * time(&|sample| sample.contains(name)) as f64 / total as f64
}

/// Standard deviation of a measured share of 75 %, in percentage points. Unequal periods reduce the effective number of
/// samples.
#[must_use]
pub fn sigma(samples: &[WeightedSample]) -> f64 {
    let periods = || samples.iter().map(|sample| sample.period as f64);
    let (sum, squares) = (periods().sum::<f64>(), periods().map(|period| period * period).sum::<f64>());
    100.0 * (0.75 * 0.25 * squares).sqrt() / sum
}

/// Sampled time per thread, in seconds.
#[must_use]
pub fn seconds_by_thread(samples: &[WeightedSample]) -> BTreeMap<u32, f64> {
    samples.iter().fold(BTreeMap::new(), |mut times, sample| {
        *times.entry(sample.tid).or_default() += sample.period as f64 / 1e9;
        times
    })
}

/// Percentage of complete stacks.
#[must_use]
pub fn percent_complete(samples: &[WeightedSample]) -> f64 {
    100.0 * samples.iter().filter(|sample| sample.is_complete()).count() as f64 / samples.len() as f64
}

/// Requires that at least this percentage of the stacks is complete. Three additional stacks may be incomplete, because
/// in a short recording a few chance failures exceed the percentage.
///
/// # Panics
/// If fewer are complete; prints the most frequent incomplete stacks.
pub fn assert_complete(samples: &[WeightedSample], percent: f64) {
    let (percent_complete, tolerance) = (percent_complete(samples), 300.0 / samples.len() as f64);
    let mut stacks: BTreeMap<String, usize> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| !sample.is_complete()) {
        *stacks.entry(sample.frames.join(" < ")).or_default() += 1;
    }
    let mut stacks: Vec<(String, usize)> = stacks.into_iter().collect();
    stacks.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    stacks.truncate(10);
    assert!(
        percent_complete + tolerance >= percent,
        "{percent_complete:.2} % of {} stacks are complete; others: {stacks:#?}",
        samples.len()
    );
}

/// Host that records itself from its start to `f.data` in its scratch directory. `words` are further options, appended
/// to the path in `JITLISTEN_RECORD`.
#[must_use]
pub fn with_recording(host: Host, words: &str) -> (Host, PathBuf) {
    let data = host.scratch("f.data");
    let value = format!("{}{words}", data.display());
    (host.variable("JITLISTEN_RECORD", value), data)
}

/// Host that runs a scenario of `hosts/sampled.c`, or `None` if the test is skipped.
///
/// # Panics
/// If the compiler reports an error.
#[must_use]
pub fn scenario(words: &[&str]) -> Option<Host> {
    let host = Host::new(program()?, &format!("sampled-{}", words[0])).variable("JITLISTEN", "unwind");
    Some(host.arguments(words))
}

/// Host that runs a scenario of `hosts/sampled.c` as the child of a shell.
///
/// # Panics
/// Same as [`scenario`].
#[must_use]
pub fn scenario_in_shell(words: &[&str]) -> Option<Host> {
    let host = Host::new("/bin/sh", &format!("sampled-{}-sh", words[0])).variable("JITLISTEN", "unwind");
    let host = host.argument("-c").argument("\"$@\"; exit $?").argument("sh").argument(program()?);
    Some(host.arguments(words))
}

fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    tool::require("perf", Absence::FailsInCi)?;
    let program = PROGRAM.get_or_init(|| {
        let compiler = tool::require("cc", Absence::FailsInCi)?;
        // All tests of this binary share the directory, so it must outlive each test; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("sampled-program"));
        let program = scratch.join("sampled");
        let include = format!("-I{}", paths::root().join("include").display());
        let mut command = Command::new(compiler);
        command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", &include]);
        let compile_run = tool::run(command.arg(paths::host("sampled.c")).args(["-lm", "-o"]).arg(&program));
        assert!(compile_run.status.success(), "{}", String::from_utf8_lossy(&compile_run.stderr));
        Some(program)
    });
    program.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "   12    5025125: \n\t    7f00 exp@@GLIBC_2.29\n\t      10 one [x v8]\n\t    20 _start\n\n   \
        13          5: \n\t   1 [unknown]\n\n";

    #[test]
    fn the_output_of_perf_is_parsed() {
        let samples = parse(TEXT).unwrap();
        assert_eq!((samples[0].tid, samples[0].period, samples[0].frames.len()), (12, 5_025_125, 3));
        assert!(samples[0].contains("one [x v8]") && samples[0].is_complete() && !samples[1].is_complete());
        assert!((percent_complete(&samples) - 50.0).abs() < 1e-9);
        assert!(parse("\t 1 x").is_err() && parse("a b").is_err());
    }
}
