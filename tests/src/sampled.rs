//! Recordings of the library's own sampler, as `perf script` reads them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::host::Host;
use crate::paths::{self, Scratch};
use crate::tool::{self, Absence};

/// A sample with its period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    /// The thread.
    pub tid: u32,
    /// Nanoseconds.
    pub period: u64,
    /// Function names, the innermost first; `[unknown]` where perf knows none.
    pub frames: Vec<String>,
}

/// What `perf script` prints of a recording, whole stacks.
///
/// # Panics
/// When perf cannot read the file, or prints what it does not usually print.
#[must_use]
pub fn read(data: &Path) -> Vec<Weighed> {
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "--max-stack", "8192", "-F", "tid,period,ip,sym", "-i"]).arg(data);
    let done = tool::run(&mut command);
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{}: {}", data.display(), String::from_utf8_lossy(&done.stderr));
    parse(&text).unwrap_or_else(|line| panic!("{}: {line:?}", data.display()))
}

/// One of the recorder's counters, as perf shows them with the version.
///
/// # Panics
/// When perf cannot read the file, or it is not there.
#[must_use]
pub fn counter(data: &Path, name: &str) -> u64 {
    let done = tool::run(Command::new("perf").args(["report", "--header-only", "-i"]).arg(data));
    let text = String::from_utf8_lossy(&done.stdout);
    let version = text.lines().find(|line| line.contains("jitlisten") && line.contains('(')).unwrap_or_default();
    let found = version.split(['(', ',', ')']).find_map(|one| one.trim().strip_prefix(name)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name:?} in {text}"))
}

/// Blocks of a head, `TID PERIOD:`, and a line `ADDRESS NAME` for each frame.
fn parse(text: &str) -> Result<Vec<Weighed>, String> {
    let mut samples: Vec<Weighed> = Vec::new();
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
            samples.push(Weighed { tid, period: number(second)?, frames: Vec::new() });
        }
    }
    Ok(samples)
}

impl Weighed {
    /// Whether the stack goes back to where its thread began.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let outermost = self.frames.last().map_or("", String::as_str);
        ["_start", "clone3", "__clone3", "__clone", "clone"].contains(&outermost)
    }

    /// Whether a function is on the stack.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| frame == name)
    }
}

/// How much of all time has this function on the stack, of the time that has one of `all`; in percent.
#[must_use]
pub fn share(samples: &[Weighed], name: &str, all: &[&str]) -> f64 {
    let time =
        |wanted: &dyn Fn(&&Weighed) -> bool| samples.iter().filter(wanted).map(|sample| sample.period).sum::<u64>();
    let whole = time(&|sample| all.iter().any(|name| sample.has(name)));
    100.0 * time(&|sample| sample.has(name)) as f64 / whole as f64
}

/// One sigma of a share of 75 %, in points: samples with longer periods than others count for less than their number.
#[must_use]
pub fn sigma(samples: &[Weighed]) -> f64 {
    let periods = || samples.iter().map(|sample| sample.period as f64);
    let (sum, squares) = (periods().sum::<f64>(), periods().map(|period| period * period).sum::<f64>());
    100.0 * (0.75 * 0.25 * squares).sqrt() / sum
}

/// Seconds by thread.
#[must_use]
pub fn by_thread(samples: &[Weighed]) -> BTreeMap<u32, f64> {
    samples.iter().fold(BTreeMap::new(), |mut times, sample| {
        *times.entry(sample.tid).or_default() += sample.period as f64 / 1e9;
        times
    })
}

/// How many stacks are complete, in percent.
#[must_use]
pub fn complete(samples: &[Weighed]) -> f64 {
    100.0 * samples.iter().filter(|sample| sample.is_complete()).count() as f64 / samples.len() as f64
}

/// That many percent of the stacks are complete; three more may not be, by chance, in a short recording.
///
/// # Panics
/// When fewer are: with the incomplete ones, the most frequent first.
pub fn assert_complete(samples: &[Weighed], percent: f64) {
    let (found, chance) = (complete(samples), 300.0 / samples.len() as f64);
    let mut stacks: BTreeMap<String, usize> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| !sample.is_complete()) {
        *stacks.entry(sample.frames.join(" < ")).or_default() += 1;
    }
    let mut stacks: Vec<(String, usize)> = stacks.into_iter().collect();
    stacks.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    stacks.truncate(10);
    assert!(found + chance >= percent, "{found:.2} % of {} stacks are complete; others: {stacks:#?}", samples.len());
}

/// The host recorded from its start into `f.data` in its scratch directory; `words` as in `JITLISTEN_RECORD`.
#[must_use]
pub fn recorded(host: Host, words: &str) -> (Host, PathBuf) {
    let data = host.scratch("f.data");
    let value = format!("{}{words}", data.display());
    (host.variable("JITLISTEN_RECORD", value), data)
}

/// `hosts/sampled.c` with a scenario, or `None` after a loud skip.
///
/// # Panics
/// When the compiler refuses.
#[must_use]
pub fn scenario(words: &[&str]) -> Option<Host> {
    let host = Host::new(program()?, &format!("sampled-{}", words[0])).variable("JITLISTEN", "unwind");
    Some(words.iter().fold(host, |host, word| host.argument(word)))
}

/// The same, started by a shell that waits for it.
///
/// # Panics
/// As [`scenario`].
#[must_use]
pub fn scenario_behind_a_shell(words: &[&str]) -> Option<Host> {
    let host = Host::new("/bin/sh", &format!("sampled-{}-sh", words[0])).variable("JITLISTEN", "unwind");
    let host = host.argument("-c").argument("\"$@\"; exit $?").argument("sh").argument(program()?);
    Some(words.iter().fold(host, |host, word| host.argument(word)))
}

fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    tool::require("perf", Absence::FailsInCi)?;
    let program = PROGRAM.get_or_init(|| {
        let compiler = tool::require("cc", Absence::FailsInCi)?;
        // Every test of this binary uses it; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("sampled-program"));
        let program = scratch.join("sampled");
        let include = format!("-I{}", paths::root().join("include").display());
        let mut command = Command::new(compiler);
        command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", &include]);
        let built = tool::run(command.arg(paths::host("sampled.c")).args(["-lm", "-o"]).arg(&program));
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
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
    fn a_text_of_perf_is_read() {
        let samples = parse(TEXT).unwrap();
        assert_eq!((samples[0].tid, samples[0].period, samples[0].frames.len()), (12, 5_025_125, 3));
        assert!(samples[0].has("one [x v8]") && samples[0].is_complete() && !samples[1].is_complete());
        assert!((complete(&samples) - 50.0).abs() < 1e-9);
        assert!(parse("\t 1 x").is_err() && parse("a b").is_err());
    }
}
