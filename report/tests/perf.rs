//! Tests of new perf recordings of Numba under `jitlisten run`: as a file, as a pipe, truncated by SIGKILL, and of a
//! running process (`-p`) that forks.
//!
//! Needs perf, the first environment of `ci/setup.sh` and `cargo build --release`.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use common::tools::{Tools, tools};
use common::{assert_sums, scratch_directory};
use jitlisten_report::{Options, Report};

/// Program that spends its time in two latency-bound loops. The second one takes three times as long.
const PROGRAM: &str = r#"
import math, os, sys
from numba import njit

@njit
def sides(count):
    total = 0.0
    for i in range(count):
        total += math.sqrt(total + i)
    for i in range(3 * count):
        total += math.sqrt(total + i)
    return total

sides(10)
if sys.argv[1] != "fork":
    print(sides(int(sys.argv[1])))
else:
    print("ready", flush=True)
    while not os.path.exists("go"):
        sides(1_000_000)
    child = os.fork()
    sides(30_000_000)
    if child:
        os.waitpid(child, 0)
"#;

/// Returns the command that records the program with perf and writes images.
fn record(tools: &Tools, directory: &Path, arguments: &[&str], count: u64) -> Command {
    let program = directory.join("sides.py");
    fs::write(&program, PROGRAM).unwrap();
    let mut command = Command::new(&tools.perf);
    command.args(["record", "-q", "-e", "cpu-clock", "-F", "999", "-g"]).args(arguments);
    let run = tools.run(directory);
    command.arg("--").arg(run.get_program()).args(run.get_args()).arg(&program).arg(count.to_string());
    command.stderr(Stdio::null());
    command
}

/// Records the program into a file, and returns the report.
fn record_and_open(tools: &Tools, directory: &Path, arguments: &[&str], recording: &Path) -> Report {
    let arguments = [arguments, &["-o", recording.to_str().unwrap()]].concat();
    let status = record(tools, directory, &arguments, 30_000_000).stdout(Stdio::null()).status().unwrap();
    assert!(status.success());
    let report = Report::open(recording, &Options::default()).unwrap();
    assert_names_and_lines(&report);
    report
}

fn assert_names_and_lines(report: &Report) {
    assert_sums(report);
    let sides =
        report.profile.functions.iter().find(|row| row.name == "__main__.sides").expect("the compiled function");
    assert!(sides.lines.is_some());
    let file = report.profile.files.iter().find(|file| file.path.ends_with("/sides.py")).expect("its source");
    let samples = |line: u32| file.lines.get(&line).map_or(0, |line| line.shares.total.samples);
    let hot = [samples(8) + samples(9), samples(10) + samples(11)];
    let share = hot[1] as f64 / (hot[0] + hot[1]) as f64;
    assert!(hot[0] > 20 && (0.65..0.85).contains(&share), "three quarters are in the second loop: {hot:?}");
}

#[test]
fn shares_match_perf_report() {
    let Some(tools) = tools() else { return };
    let directory = scratch_directory("perf-file");
    let recording = directory.join("perf.data");
    let report = record_and_open(&tools, &directory, &[], &recording);
    let output = Command::new(&tools.perf)
        .args(["report", "--stdio", "--no-children", "-g", "none", "--sort", "symbol", "-i"])
        .arg(&recording)
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("] __main__.sides(")).unwrap_or_else(|| panic!("{text}"));
    let theirs: f64 = line.trim().split('%').next().unwrap().parse().unwrap();
    let sides = report.profile.functions.iter().find(|row| row.name == "__main__.sides").unwrap();
    let ours = sides.shares.self_count.percent_of(report.profile.all);
    assert!((ours - theirs).abs() < 0.5, "ours {ours}, perf {theirs}");
}

#[test]
fn a_stream_reads_like_a_file() {
    let Some(tools) = tools() else { return };
    let directory = scratch_directory("perf-pipe");
    let recording = directory.join("pipe.data");
    let out = fs::File::create(&recording).unwrap();
    // perf writes the recording to standard output, which is the file.
    let status = record(&tools, &directory, &["-o", "-"], 30_000_000).stdout(out).status().unwrap();
    assert!(status.success());
    let whole = fs::read(&recording).unwrap();
    // The program prints one number into the same file, after or within perf's output. At worst, that damages a record.
    let report = Report::open(&recording, &Options::default()).unwrap();
    assert_sums(&report);
    assert!(report.profile.all.samples > 100, "{} bytes, {:?}", whole.len(), report.notes);
}

#[test]
fn a_recorder_that_was_killed_leaves_its_samples() {
    let Some(tools) = tools() else { return };
    let directory = scratch_directory("perf-killed");
    let recording = directory.join("perf.data");
    let mut child = record(&tools, &directory, &["-o", recording.to_str().unwrap()], 2_000_000_000)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Wait until compiled code has run, and perf has written its samples.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(300);
    let has_samples =
        || Report::open(&recording, &Options::default()).is_ok_and(|report| report.profile.compiled.samples > 50);
    while !has_samples() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // The recorded program continues to run without perf, so end it.
    let pattern = directory.join("sides.py");
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(pattern.to_str().unwrap()) {
            let _ = Command::new("kill").arg(entry.file_name()).status();
        }
    }
    let report = Report::open(&recording, &Options::default()).unwrap();
    assert_sums(&report);
    assert!(report.profile.compiled.samples > 50);
    assert!(report.notes.iter().any(|note| note.contains("did not finish")), "{:?}", report.notes);
}

#[test]
fn a_running_process_and_its_child_can_be_recorded() {
    let Some(tools) = tools() else { return };
    let directory = scratch_directory("perf-attached");
    let (program, recording) = (directory.join("sides.py"), directory.join("perf.data"));
    fs::write(&program, PROGRAM).unwrap();
    let mut run = tools.run(&directory);
    let run = run.arg(&program).arg("fork").current_dir(&directory).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut parent = run.spawn().unwrap();
    let mut first_line = String::new();
    BufReader::new(parent.stdout.as_mut().unwrap()).read_line(&mut first_line).unwrap();
    assert_eq!(first_line, "ready\n");
    let mut perf = Command::new(&tools.perf);
    perf.args(["record", "-q", "-e", "cpu-clock", "-F", "999", "-g", "-p", &parent.id().to_string(), "-o"])
        .arg(&recording);
    let mut perf = perf.stderr(Stdio::null()).spawn().unwrap();
    // perf is recording once it has written samples. It exits with the process.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(300);
    let has_samples =
        || Report::open(&recording, &Options::default()).is_ok_and(|report| report.profile.all.samples > 50);
    while !has_samples() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    fs::write(directory.join("go"), "").unwrap();
    assert!(parent.wait().unwrap().success());
    perf.wait().unwrap();
    let report = Report::open(&recording, &Options::default()).unwrap();
    assert_names_and_lines(&report);
    let processes = report.processes();
    assert_eq!(processes.len(), 2, "{processes:?}");
    assert!(processes.iter().any(|process| process.pid == parent.id()));
    for process in &processes {
        assert!(process.compiled.samples > 50, "{process:?}");
    }
}

#[test]
fn compressed_recordings_read_like_others() {
    let Some(tools) = tools() else { return };
    let directory = scratch_directory("perf-compressed");
    let (recording, plain) = (directory.join("perf.data"), directory.join("plain.data"));
    for level in ["-z", "--compression-level=22"] {
        let report = record_and_open(&tools, &directory, &[level], &recording);
        // Reference: perf's own decompression of the file.
        let mut inject = Command::new(&tools.perf);
        inject.arg("inject").arg("-i").arg(&recording).arg("-o").arg(&plain);
        assert!(inject.status().unwrap().success());
        let decompressed = Report::open(&plain, &Options::default()).unwrap();
        let function_counts = |report: &Report| {
            let functions = report.profile.functions.iter();
            functions
                .map(|row| (row.name.clone(), row.shares.self_count.samples, row.shares.total.samples))
                .collect::<Vec<_>>()
        };
        assert!(
            function_counts(&report) == function_counts(&decompressed),
            "{level}: other samples than perf's decompression has"
        );
    }
}
