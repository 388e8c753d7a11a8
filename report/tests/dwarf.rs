//! Tests of stack copies, which `perf record --call-graph dwarf` stores. Our stack walks are compared with perf's.
//!
//! Needs perf, the first environment of `ci/setup.sh` and `cargo build --release`.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::tools::{Tools, tools};
use common::{assert_sums, scratch_directory};
use jitlisten_report::{Options, Report};

/// Program that calls `exp`, which keeps no frame pointer, and `qsort`, which calls back into the program.
const PROGRAM: &str = r#"
import ctypes, math, sys
from numba import cfunc, njit, types

@njit
def sides(count):
    total = 0.0
    for i in range(count):
        total += math.exp(-i * 1e-9) + math.sqrt(i) / (i + 3.0) % 0.3
    return total

@cfunc(types.int32(types.CPointer(types.int64), types.CPointer(types.int64)))
def compare(a, b):
    x = (a[0] * 7919) % 1000003
    y = (b[0] * 7919) % 1000003
    return (x > y) - (x < y)

def outer(count):
    return sides(count)

outer(10)
print(outer(int(sys.argv[1])))
libc = ctypes.CDLL(None)
for _ in range(3):
    array = (ctypes.c_int64 * 200000)(*range(200000))
    libc.qsort(array, 200000, 8, ctypes.cast(compare.address, ctypes.c_void_p))
"#;

fn record(tools: &Tools, directory: &Path) -> PathBuf {
    let (program, recording) = (directory.join("sides.py"), directory.join("perf.data"));
    fs::write(&program, PROGRAM).unwrap();
    let mut command = Command::new(&tools.perf);
    command
        .args(["record", "-q", "-e", "cpu-clock:u", "-F", "499", "--call-graph", "dwarf,32768", "-o"])
        .arg(&recording);
    let run = tools.run(directory);
    command.arg("--").arg(run.get_program()).args(run.get_args()).arg(&program).arg("60000000");
    assert!(command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    recording
}

/// Call chain of each sample by thread id and time in ns.
type Chains = BTreeMap<(u32, u64), Vec<u64>>;

fn perf_chains(tools: &Tools, recording: &Path) -> Chains {
    let output = Command::new(&tools.perf)
        .args(["script", "--ns", "--no-inline", "-F", "tid,time,ip", "-i"])
        .arg(recording)
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let mut chains = Chains::new();
    let mut current = (0, 0);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some(tid), Some(time)) => {
                let time: u64 = time.trim_end_matches(':').replace('.', "").parse().unwrap();
                current = (tid.parse().unwrap(), time);
                chains.entry(current).or_default();
            }
            (Some(address), None) => {
                chains.get_mut(&current).unwrap().push(u64::from_str_radix(address, 16).unwrap());
            }
            _ => {}
        }
    }
    chains
}

/// Returns our call chains as `perf script` prints them: file offsets, or plain addresses outside of files.
fn our_chains(report: &Report) -> Chains {
    let recording = &report.recording;
    let address_of = |location: &u32| {
        let location = &recording.locations[*location as usize];
        let is_file = |path: &str| path.starts_with('/') && !path.starts_with("//anon") || path == "[vdso]";
        let position = location.position.filter(|position| is_file(&recording.files[position.file as usize].path));
        position.map_or(location.address, |position| position.offset)
    };
    let samples = recording.samples.iter().map(|sample| {
        let stack = recording.stacks.get(sample.stack).iter();
        let chain = stack.map(address_of).collect();
        ((recording.threads[sample.thread as usize].tid, sample.time), chain)
    });
    samples.collect()
}

/// Returns the most frequent address, for example the outermost one of almost every stack.
fn most_frequent<'a>(addresses: impl Iterator<Item = &'a u64>) -> Option<&'a u64> {
    let mut counts = BTreeMap::new();
    addresses.for_each(|address| *counts.entry(address).or_insert(0) += 1);
    counts.into_iter().max_by_key(|&(_, count)| count).map(|(address, _)| address)
}

/// Returns true if `shorter` equals `longer` except for one missing frame in the middle.
fn lacks_one_frame(shorter: &[u64], longer: &[u64]) -> bool {
    let mut rest = longer.iter();
    shorter.len() + 1 == longer.len()
        && shorter.last() == longer.last()
        && shorter.iter().all(|frame| rest.any(|other| other == frame))
}

#[test]
fn stacks_match_perf_script_and_reach_the_start() {
    let Some(tools) = tools() else { return };
    let directory = scratch_directory("dwarf");
    let recording = record(&tools, &directory);
    let report = Report::open(&recording, &Options::default()).unwrap();
    assert_sums(&report);
    let (ours, theirs) = (our_chains(&report), perf_chains(&tools, &recording));
    assert!(ours.len() > 300, "{} samples", ours.len());
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    let start = most_frequent(ours.values().filter_map(|chain| chain.last()));
    let (mut same_count, mut longer_count, mut different) = (0, 0, Vec::new());
    for (key, chain) in &ours {
        let perf_chain = &theirs[key];
        if chain == perf_chain {
            same_count += 1;
        } else if chain.starts_with(perf_chain)
            || chain.last() == start && perf_chain.last() != start
            || lacks_one_frame(perf_chain, chain)
        {
            // perf's stacks may be incomplete, because perf gives up, continues at an unmapped address, or skips the
            // frame of _dl_start while a program starts.
            longer_count += 1;
        } else {
            different.push(format!("ours {chain:x?}\nperf {perf_chain:x?}"));
        }
    }
    println!(
        "{} stacks: {same_count} are perf's, {longer_count} go further than perf's, {} differ",
        ours.len(),
        different.len()
    );
    println!("notes: {:?}", report.notes);
    let is_rare = different.len() * 200 <= ours.len();
    assert!(is_rare, "{} of {} differ: {}", different.len(), ours.len(), different[0]);
    let complete = report.recording.samples.iter().filter(|sample| {
        let outermost = report.recording.stacks.get(sample.stack).last().unwrap();
        let frame = report.symbols.frames(*outermost).last().unwrap();
        report.symbols.function(frame).name == "_start"
    });
    let (complete, total) = (complete.count(), ours.len());
    println!("{complete} of {total} stacks reach _start");
    assert!(complete * 100 >= total * 97, "{complete} of {total} stacks reach _start: {:?}", report.notes);
    // The line that calls `exp` must have its time, which frame pointers would lose.
    let file = report.profile.files.iter().find(|file| file.path.ends_with("/sides.py")).expect("its source");
    let line = &file.lines[&9].shares;
    let sides = report.profile.functions.iter().find(|row| row.name == "__main__.sides").unwrap();
    assert!(line.total.samples * 10 >= sides.shares.total.samples * 8, "{line:?} of {:?}", sides.shares);
    assert!(line.total.samples > line.self_count.samples);
}
