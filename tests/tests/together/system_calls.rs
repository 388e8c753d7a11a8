//! `docs/production.md` lists every system call of the library, for filters that kill a process at any other call.
//!
//! In a C program, with each sink and with recordings, the library's calls are those that `strace` sees in addition to
//! the program's own. Numba makes most of these calls itself. Therefore, in a Numba program, the library's calls are
//! those for which `strace -k` shows a frame of the library on the stack.

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

/// Compiles `hosts/calls.c`, which forks, waits, and loads, finalizes and frees an object.
fn c_host() -> Option<Host> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let scratch = Scratch::new("system-calls-program");
    let program = scratch.join("calls");
    let include = format!("-I{}", paths::root().join("include").display());
    tool::compile(&compiler, &["-O1", "-Wall", "-Wextra", "-Werror", &include], &paths::host("calls.c"), &program);
    // The directory must outlive the host; `ci/test.sh` removes it.
    mem::forget(scratch);
    Some(Host::new(program, "system-calls").argument("everything"))
}

/// Output of `strace` for the host and its children. Returns `None` after reporting a skip.
fn trace(host: &Host, preload: Preload, options: &[OsString]) -> Option<String> {
    let strace = tool::require("strace", Absence::FailsInCi)?;
    let calls = host.scratch("calls");
    let mut command = Command::new(strace);
    command.args(["-f", "-qq", "-o"]).arg(&calls).args(options).arg("env").args(host.env_arguments(preload));
    let strace_run = tool::run_with_timeout(Duration::from_secs(300), &mut command);
    let errors = String::from_utf8_lossy(&strace_run.stderr).into_owned();
    if errors.contains("PTRACE") || errors.contains("not supported") {
        tool::skip("strace", errors.trim(), Absence::IsAllowed);
        return None;
    }
    assert!(strace_run.status.success(), "{errors}");
    let text = fs::read(calls).expect("strace has written");
    let text = String::from_utf8_lossy(&text).into_owned();
    let pids: BTreeSet<u32> = text.lines().filter_map(|line| line.split_once(' ')?.0.parse().ok()).collect();
    pids.into_iter().for_each(|pid| drop(perf_map::take(pid)));
    Some(text)
}

/// Name of the system call on a line, such as `openat` in `4711  openat(AT_FDCWD, ...) = 3`.
fn call_name(line: &str) -> Option<&str> {
    let call_name = line.split_once(' ')?.1.trim_start().split_once('(')?.0;
    call_name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then_some(call_name)
}

/// System calls for which `strace -k` shows a frame of the library.
fn library_calls(text: &str) -> BTreeSet<&str> {
    let mut last_call = "";
    let mut found_calls = BTreeSet::new();
    for line in text.lines() {
        if !line.starts_with(" >") {
            last_call =
                line.split_once("<... ").and_then(|(_, rest)| rest.split(' ').next()).or(call_name(line)).unwrap_or("");
        } else if line.contains("libjitlisten.so") {
            found_calls.insert(last_call);
        }
    }
    found_calls.remove("");
    found_calls
}

/// System calls that the document lists in these rows.
fn documented_calls(rows: &[&str]) -> BTreeSet<String> {
    let document = fs::read_to_string(paths::root().join("docs/production.md")).expect("the document");
    let parse_row = |row: &&str| -> Vec<String> {
        let line = document.lines().find(|line| line.starts_with(&format!("| {row} |"))).expect("a row for each sink");
        line.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    rows.iter().flat_map(parse_row).collect()
}

fn rows<'a>(sinks: &'a str, recording: Option<&str>) -> Vec<&'a str> {
    std::iter::once("all").chain(sinks.split(',')).chain(recording.map(|_| "recording")).collect()
}

fn add_recording(host: Host, options: Option<&str>) -> Host {
    let Some(options) = options else { return host };
    let file = host.scratch("recording");
    host.variable("JITLISTEN_RECORD", format!("{}{options}", file.display()))
}

/// System calls of the C program without the library.
fn program_calls() -> Option<BTreeSet<String>> {
    let text = trace(&c_host()?.variable("JITLISTEN", "off"), Preload::Nothing, &[])?;
    Some(text.lines().filter_map(call_name).map(str::to_owned).collect())
}

#[test]
fn system_calls_are_those_of_the_document() {
    let Some(own_calls) = program_calls() else { return };
    let without_recording =
        ["perfmap", "perfmap,unwind", "jitdump", "image", "unwind", "gdb", "modules"].map(|sinks| (sinks, None));
    let recordings = [",wall,children", ",event=page-faults,children", ""].map(|options| ("image", Some(options)));
    for (sinks, recording) in without_recording.into_iter().chain(recordings) {
        let Some(host) = c_host() else { return };
        let host = add_recording(host.variable("JITLISTEN", sinks), recording);
        let Some(text) = trace(&host, Preload::Library, &[]) else { return };
        let traced_calls: BTreeSet<&str> = text.lines().filter_map(call_name).collect();
        let documented_calls = documented_calls(&rows(sinks, recording));
        let missing_calls: Vec<_> = traced_calls
            .iter()
            .filter(|&&call| !own_calls.contains(call) && !documented_calls.contains(call))
            .collect();
        assert!(missing_calls.is_empty(), "{sinks} {recording:?}: {missing_calls:?} are not in docs/production.md");
        assert!(traced_calls.contains("process_vm_readv"), "the library was there");
        assert_eq!(traced_calls.contains("tgkill"), recording.is_some(), "{recording:?}");
    }
}

/// Repeats the comparison in a process with an observed LLVM.
#[test]
fn system_calls_with_numba_are_those_of_the_document() {
    /// A system call that the library makes but Python does not.
    const LIBRARY_ONLY_CALL: &str = "geteuid";
    let Some(own_calls) = program_calls() else { return };
    for (sinks, recording) in [("perfmap,unwind", None), ("image,modules", Some(""))] {
        let Some(host) = Integration::Numba("numba-0.68.1").chain(0, &[]) else { return };
        let host = add_recording(host.variable("JITLISTEN", sinks), recording);
        // strace takes long to print each stack, so documented calls are not traced.
        let mut untraced_calls = documented_calls(&rows(sinks, recording));
        untraced_calls.extend(own_calls.iter().cloned());
        untraced_calls.remove(LIBRARY_ONLY_CALL);
        let untraced_calls: Vec<String> = untraced_calls.iter().map(|call| format!("?{call}")).collect();
        let options =
            ["-k", "--seccomp-bpf", "-e", &format!("trace=!{}", untraced_calls.join(","))].map(OsString::from);
        let Some(text) = trace(&host, Preload::Library, &options) else { return };
        let mut undocumented_calls = library_calls(&text);
        // Calls of the program that pass through functions of the library: OpenBLAS calls `mbind` by `syscall(2)`.
        for call in ["mbind", "rt_sigaction"] {
            undocumented_calls.remove(call);
        }
        assert_eq!(
            undocumented_calls,
            BTreeSet::from([LIBRARY_ONLY_CALL]),
            "{sinks} {recording:?}: not in docs/production.md"
        );
    }
}
