//! Kernel features that identify code by its file: uprobes, and stacks of eBPF programs.

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
const CALL_COUNT: u64 = 1234;

/// A uprobe that is deleted on drop.
struct Probe(String);

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = tool::run(Command::new("perf").args(["probe", "-q", "-d", &self.0]));
    }
}

/// A child process that is killed on drop.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that uprobes can be created. Returns `None` after reporting a skip.
fn require_uprobes() -> Option<()> {
    let events_file = OpenOptions::new().append(true).open(UPROBES);
    events_file
        .map_err(|error| tool::skip("uprobes", &format!("{UPROBES}: {error}"), Absence::IsAllowed))
        .ok()
        .map(drop)
}

/// Puts a uprobe on a function in an image by name, as on a function in a shared library.
fn probe(file: &Path, function: &str) -> Probe {
    let event = format!("jitlisten_test_{}:{function}", std::process::id());
    let mut command = Command::new("perf");
    // `perf probe` misinterprets the parentheses in the symbol's name, so the name is given as a pattern without them.
    let perf_run =
        tool::run(command.args(["probe", "-q", "-x"]).arg(file).arg(format!("{event}=__main__.{function}(*")));
    let probe = Probe(event);
    assert!(perf_run.status.success(), "perf probe: {}", String::from_utf8_lossy(&perf_run.stderr));
    probe
}

/// Output of `perf stat`, which counts `event` while the host makes `CALL_COUNT` calls.
fn count_events(host: &Host, event: &str, mut running: jitlisten_tests::host::Running<'_>) -> String {
    let [control, reply] = ["control", "reply"].map(|name| host.scratch(name));
    assert!(Command::new("mkfifo").args([&control, &reply]).status().is_ok_and(|status| status.success()));
    // Opening a FIFO for both reading and writing does not wait for the other end.
    let open_fifo = |path: &Path| OpenOptions::new().read(true).write(true).open(path).expect("a FIFO of ours");
    let (mut to_perf, from_perf) = (open_fifo(&control), open_fifo(&reply));
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-D", "-1", "-e", event, "-p", &running.pid().to_string()]);
    command.arg("--control").arg(format!("fifo:{},{}", control.display(), reply.display()));
    let mut stat = KillOnDrop(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("perf is here"));
    to_perf.write_all(b"enable\n").expect("space for a line");
    let reply_reader = std::thread::spawn(move || BufReader::new(from_perf).read_line(&mut String::new()));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !reply_reader.is_finished() {
        assert!(stat.0.try_wait().expect("our child").is_none(), "perf stat ended at once");
        assert!(std::time::Instant::now() < deadline, "perf stat does not reply");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    running.send_newline();
    let _ = running.wait().expect_success();
    // perf stat exits when the process exits.
    let mut output = String::new();
    let _ = std::io::Read::read_to_string(stat.0.stderr.as_mut().expect("piped"), &mut output);
    output
}

#[test]
fn a_uprobe_counts_every_call() {
    let (Some(()), Some(()), Some(host)) =
        (perf::is_available(), require_uprobes(), integration::numba(NUMBA, "counted_calls.py"))
    else {
        return;
    };
    let host = with_images(host.argument(CALL_COUNT.to_string()));
    let mut running = host.start(Preload::Library);
    running.wait_for_line("waiting");
    let (file, _) = image::function(&host, "counted");
    let probe = probe(&file, "counted");
    let output = count_events(&host, &probe.0, running);
    assert!(output.lines().any(|line| line.starts_with(&format!("{CALL_COUNT},"))), "perf stat: {output}");
    // The kernel's own profile of uprobes has four columns: path, event, hits, misses.
    let profile = fs::read_to_string("/sys/kernel/tracing/uprobe_profile").unwrap_or_default();
    let profile_line = profile.lines().find(|line| line.contains(file.to_str().expect("text"))).unwrap_or_default();
    assert!(profile_line.split_whitespace().any(|word| word == CALL_COUNT.to_string()), "{profile}");
}

/// Stacks and counts in a map printed by bpftrace: `@[\n    name+12\n    ...\n]: 28`.
fn stacks(text: &str) -> Vec<(Vec<&str>, u64)> {
    let blocks = text.split("@[").skip(1).filter_map(|block| {
        let (stack, rest) = block.split_once("]: ").or_else(|| block.split_once("]:"))?;
        let count = rest.trim_start().lines().next()?.trim().parse().ok()?;
        Some((stack.lines().map(str::trim).filter(|line| !line.is_empty()).collect(), count))
    });
    blocks.collect()
}

/// bpftrace ends each stack with a line `]: N`.
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
    let bpftrace_run = tool::run(Command::new(bpftrace).args(["-e", &program]));
    let output = String::from_utf8_lossy(&bpftrace_run.stdout);
    let stacks = stacks(&output);
    if !bpftrace_run.status.success() || stacks.is_empty() {
        let reason =
            format!("it saw nothing of the process: {output}{}", String::from_utf8_lossy(&bpftrace_run.stderr));
        return tool::skip("bpftrace", &reason, Absence::IsAllowed);
    }
    let is_whole = |stack: &[&str]| {
        let has_name =
            |index: usize, name: &str| stack.get(index).is_some_and(|frame| scenario::names_function(frame, name));
        has_name(0, "gamma")
            && has_name(1, "beta")
            && has_name(2, "alpha")
            && stack.iter().any(|frame| frame.starts_with("Dispatcher_call"))
    };
    let total: u64 = stacks.iter().map(|stack| stack.1).sum();
    let whole_stacks: u64 = stacks.iter().filter(|stack| is_whole(&stack.0)).map(|stack| stack.1).sum();
    assert!(total >= 30 && whole_stacks * 100 >= total * 95, "{whole_stacks} of {total} stacks are whole: {stacks:#?}");
}
