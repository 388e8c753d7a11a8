//! What the kernel itself knows of files: uprobes, and stacks of eBPF programs.

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::image::{self, with_images};
use jitlisten_tests::integration::{self, Integration};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{perf, scenario};

const NUMBA: &str = "numba-0.68.1";
const UPROBES: &str = "/sys/kernel/tracing/uprobe_events";
const CALLS: u64 = 1234;

/// A probe that is deleted when dropped.
struct Probe(String);

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = tool::run(Command::new("perf").args(["probe", "-q", "-d", &self.0]));
    }
}

/// A child that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether probes can be made here at all; a loud skip if not.
fn kernel_allows_uprobes() -> Option<()> {
    let opened = OpenOptions::new().append(true).open(UPROBES);
    opened.map_err(|error| tool::skip("uprobes", &format!("{UPROBES}: {error}"), Absence::IsAllowed)).ok().map(drop)
}

/// Puts a probe on a function of an image, by name, as one would on a shared library.
fn probe(file: &Path, function: &str) -> Probe {
    let event = format!("jitlisten_test_{}:{function}", std::process::id());
    let mut command = Command::new("perf");
    // Its name has parentheses, which `perf probe` takes for something else; a pattern has not.
    let done = tool::run(command.args(["probe", "-q", "-x"]).arg(file).arg(format!("{event}=__main__.{function}(*")));
    let probe = Probe(event);
    assert!(done.status.success(), "perf probe: {}", String::from_utf8_lossy(&done.stderr));
    probe
}

/// How many calls `perf stat` counts while the host makes `CALLS` of them.
fn count(host: &Host, event: &str, mut running: jitlisten_tests::host::Running<'_>) -> String {
    let [control, reply] = ["control", "reply"].map(|name| host.scratch(name));
    assert!(Command::new("mkfifo").args([&control, &reply]).status().is_ok_and(|status| status.success()));
    // Opened for both directions, a FIFO never waits for the other end.
    let both = |path: &Path| OpenOptions::new().read(true).write(true).open(path).expect("a FIFO of ours");
    let (mut to_perf, from_perf) = (both(&control), both(&reply));
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-D", "-1", "-e", event, "-p", &running.pid().to_string()]);
    command.arg("--control").arg(format!("fifo:{},{}", control.display(), reply.display()));
    let mut stat = Killed(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("perf is here"));
    to_perf.write_all(b"enable\n").expect("space for a line");
    let acknowledged = std::thread::spawn(move || BufReader::new(from_perf).read_line(&mut String::new()));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !acknowledged.is_finished() {
        assert!(stat.0.try_wait().expect("our child").is_none(), "perf stat ended at once");
        assert!(std::time::Instant::now() < deadline, "perf stat does not reply");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    running.nod();
    let _ = running.end().well();
    // With the process, perf stat ends.
    let mut said = String::new();
    let _ = std::io::Read::read_to_string(stat.0.stderr.as_mut().expect("piped"), &mut said);
    said
}

#[test]
fn a_uprobe_counts_every_call() {
    let (Some(()), Some(()), Some(host)) =
        (perf::is_here(), kernel_allows_uprobes(), integration::numba(NUMBA, "counted_calls.py"))
    else {
        return;
    };
    let host = with_images(host.argument(CALLS.to_string()));
    let mut running = host.start(Preload::Library);
    running.wait_for_line("waiting");
    let (file, _) = image::function(&host, "counted");
    let probe = probe(&file, "counted");
    let said = count(&host, &probe.0, running);
    assert!(said.lines().any(|line| line.starts_with(&format!("{CALLS},"))), "perf stat: {said}");
    // The kernel's own count: path, event, hits, misses.
    let profile = fs::read_to_string("/sys/kernel/tracing/uprobe_profile").unwrap_or_default();
    let ours = profile.lines().find(|line| line.contains(file.to_str().expect("text"))).unwrap_or_default();
    assert!(ours.split_whitespace().any(|word| word == CALLS.to_string()), "{profile}");
}

/// `@[\n    name+12\n    ...\n]: 28`, as bpftrace prints a map of stacks.
fn stacks(text: &str) -> Vec<(Vec<&str>, u64)> {
    let blocks = text.split("@[").skip(1).filter_map(|block| {
        let (stack, rest) = block.split_once("]: ").or_else(|| block.split_once("]:"))?;
        let count = rest.trim_start().lines().next()?.trim().parse().ok()?;
        Some((stack.lines().map(str::trim).filter(|line| !line.is_empty()).collect(), count))
    });
    blocks.collect()
}

/// bpftrace ends the stack of a sample in front of `]: N` of its own line.
#[test]
fn the_reader_of_stacks_reads() {
    let text = "Attaching 2 probes...\n@[\n    f(int64) [v1]+3\n    g+1\n]: 28\n@[\n    h\n]: 2\n";
    assert_eq!(stacks(text), [(vec!["f(int64) [v1]+3", "g+1"], 28), (vec!["h"], 2)]);
}

#[test]
fn bpftrace_shows_names() {
    let Some(bpftrace) = tool::require("bpftrace", Absence::FailsInCi) else { return };
    let Some(host) = Integration::Numba(NUMBA).chain(300, &[]) else { return };
    let host = with_images(host);
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let pid = running.pid();
    let program = format!("profile:hz:199 /pid == {pid}/ {{ @[ustack(6)] = count(); }} interval:s:3 {{ exit(); }}");
    let done = tool::run(Command::new(bpftrace).args(["-e", &program]));
    let said = String::from_utf8_lossy(&done.stdout);
    let stacks = stacks(&said);
    if !done.status.success() || stacks.is_empty() {
        let why = format!("it saw nothing of the process: {said}{}", String::from_utf8_lossy(&done.stderr));
        return tool::skip("bpftrace", &why, Absence::IsAllowed);
    }
    let is_whole = |stack: &[&str]| {
        let named = |at: usize, name: &str| stack.get(at).is_some_and(|frame| scenario::names(frame, name));
        named(0, "gamma")
            && named(1, "beta")
            && named(2, "alpha")
            && stack.iter().any(|f| f.starts_with("Dispatcher_call"))
    };
    let all: u64 = stacks.iter().map(|stack| stack.1).sum();
    let whole: u64 = stacks.iter().filter(|stack| is_whole(&stack.0)).map(|stack| stack.1).sum();
    assert!(all >= 30 && whole * 100 >= all * 95, "{whole} of {all} stacks are whole: {stacks:#?}");
}
