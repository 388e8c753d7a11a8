//! `docs/production.md` has every system call of ours, for filters that kill at any other.
//!
//! A program in C, with each sink and with recordings: what `strace` sees beyond what the program calls without the
//! library. Numba, which makes most of these calls itself: what `strace -k` sees with a frame of the library on the
//! stack.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;
use std::{fs, mem};

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration::Integration;
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::perf_map;
use jitlisten_tests::tool::{self, Absence};

/// `hosts/calls.c`, which forks, waits, and goes through the life of an object.
fn in_c() -> Option<Host> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let scratch = Scratch::new("system-calls-program");
    let program = scratch.join("calls");
    let include = format!("-I{}", paths::root().join("include").display());
    tool::compile(&compiler, &["-O1", "-Wall", "-Wextra", "-Werror", &include], &paths::host("calls.c"), &program);
    // `ci/test.sh` removes it.
    mem::forget(scratch);
    Some(Host::new(program, "system-calls").argument("everything"))
}

/// What `strace` writes down of the host and its children; `None` after a loud skip.
fn trace(host: &Host, preload: Preload, options: &[OsString]) -> Option<String> {
    let strace = tool::require("strace", Absence::FailsInCi)?;
    let calls = host.scratch("calls");
    let mut command = Command::new(strace);
    command.args(["-f", "-qq", "-o"]).arg(&calls).args(options).arg("env").args(host.env_words(preload));
    let done = tool::run_within(Duration::from_secs(300), &mut command);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if said.contains("PTRACE") || said.contains("not supported") {
        tool::skip("strace", said.trim(), Absence::IsAllowed);
        return None;
    }
    assert!(done.status.success(), "{said}");
    let text = fs::read(calls).expect("strace has written");
    let text = String::from_utf8_lossy(&text).into_owned();
    let pids: BTreeSet<u32> = text.lines().filter_map(|line| line.split_once(' ')?.0.parse().ok()).collect();
    pids.into_iter().for_each(|pid| drop(perf_map::take(pid)));
    Some(text)
}

/// `openat` of `4711  openat(AT_FDCWD, ...) = 3`
fn call(line: &str) -> Option<&str> {
    let call = line.split_once(' ')?.1.trim_start().split_once('(')?.0;
    call.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then_some(call)
}

/// The calls behind which `strace -k` has a frame of the library.
fn calls_of_ours(text: &str) -> BTreeSet<&str> {
    let mut last = "";
    let mut ours = BTreeSet::new();
    for line in text.lines() {
        if !line.starts_with(" >") {
            last = line.split_once("<... ").and_then(|(_, rest)| rest.split(' ').next()).or(call(line)).unwrap_or("");
        } else if line.contains("libjitlisten.so") {
            ours.insert(last);
        }
    }
    ours.remove("");
    ours
}

/// What the document has of these rows.
fn listed(rows: &[&str]) -> BTreeSet<String> {
    let document = fs::read_to_string(paths::root().join("docs/production.md")).expect("the document");
    let calls = |row: &&str| -> Vec<String> {
        let line = document.lines().find(|line| line.starts_with(&format!("| {row} |"))).expect("a row for each sink");
        line.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    rows.iter().flat_map(calls).collect()
}

fn rows<'a>(sinks: &'a str, recording: Option<&str>) -> Vec<&'a str> {
    let with =
        [("recording", recording.is_some()), ("events", recording.is_some_and(|words| words.contains("event=")))];
    std::iter::once("all")
        .chain(sinks.split(','))
        .chain(with.into_iter().filter(|(_, on)| *on).map(|(row, _)| row))
        .collect()
}

fn with_recording(host: Host, words: Option<&str>) -> Host {
    let Some(words) = words else { return host };
    let file = host.scratch("recording");
    host.variable("JITLISTEN_RECORD", format!("{}{words}", file.display()))
}

/// Without the library.
fn of_the_program_in_c() -> Option<BTreeSet<String>> {
    let text = trace(&in_c()?.variable("JITLISTEN", "off"), Preload::Nothing, &[])?;
    Some(text.lines().filter_map(call).map(str::to_owned).collect())
}

#[test]
fn system_calls_are_those_of_the_document() {
    let Some(stock) = of_the_program_in_c() else { return };
    let alone =
        ["perfmap", "perfmap,unwind", "jitdump", "image", "unwind", "gdb", "modules"].map(|sinks| (sinks, None));
    let recordings = [",wall,children", ",event=page-faults,children", ""].map(|words| ("image", Some(words)));
    for (sinks, recording) in alone.into_iter().chain(recordings) {
        let Some(host) = in_c() else { return };
        let host = with_recording(host.variable("JITLISTEN", sinks), recording);
        let Some(text) = trace(&host, Preload::Library, &[]) else { return };
        let ours: BTreeSet<&str> = text.lines().filter_map(call).collect();
        let listed = listed(&rows(sinks, recording));
        let missing: Vec<_> = ours.iter().filter(|&&call| !stock.contains(call) && !listed.contains(call)).collect();
        assert!(missing.is_empty(), "{sinks} {recording:?}: {missing:?} are not in docs/production.md");
        assert!(ours.contains("process_vm_readv"), "the library was there");
        assert_eq!(ours.contains("tgkill"), recording.is_some(), "{recording:?}");
    }
}

/// With an observed LLVM.
#[test]
fn system_calls_with_numba_are_those_of_the_document() {
    /// Python does not call it.
    const WITNESS: &str = "geteuid";
    let Some(stock) = of_the_program_in_c() else { return };
    for (sinks, recording) in [("perfmap,unwind", None), ("image,modules", Some(""))] {
        let Some(host) = Integration::Numba("numba-0.68.1").chain(0, &[]) else { return };
        let host = with_recording(host.variable("JITLISTEN", sinks), recording);
        // A stack takes strace long: none for what is in the document.
        let mut known = listed(&rows(sinks, recording));
        known.extend(stock.iter().cloned());
        known.remove(WITNESS);
        let known: Vec<String> = known.iter().map(|call| format!("?{call}")).collect();
        let options = ["-k", "--seccomp-bpf", "-e", &format!("trace=!{}", known.join(","))].map(OsString::from);
        let Some(text) = trace(&host, Preload::Library, &options) else { return };
        let mut ours = calls_of_ours(&text);
        // OpenBLAS makes it by `syscall(2)`, which the library wraps.
        ours.remove("mbind");
        assert_eq!(ours, BTreeSet::from([WITNESS]), "{sinks} {recording:?}: not in docs/production.md");
    }
}
