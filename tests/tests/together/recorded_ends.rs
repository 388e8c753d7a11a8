//! A recorded program exits as it does without a recording (`hosts/ends.c`).

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::sampled::{read, with_recording};
use jitlisten_tests::tool::{self, Absence};

/// Compiles the program with these additional flags. Returns `None`, after reporting a skip, if the compiler or a
/// sanitizer's runtime is missing.
fn build(scratch: &Scratch, flags: &[&str]) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let program = scratch.join("ends");
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]).args(flags);
    let compile_run = tool::run(command.arg(paths::host("ends.c")).arg("-o").arg(&program));
    let errors = String::from_utf8_lossy(&compile_run.stderr);
    if !compile_run.status.success() && errors.contains("cannot find") {
        tool::skip(&flags.join(" "), "its runtime is not installed", Absence::IsAllowed);
        return None;
    }
    assert!(compile_run.status.success(), "{errors}");
    Some(program)
}

fn is_root() -> bool {
    tool::run(Command::new("id").arg("-u")).stdout == b"0\n"
}

/// Runs each scenario unrecorded and recorded, and asserts the same output and exit status.
fn assert_ends_as_alone(scenarios: &[&str]) {
    let scratch = Scratch::new("ends");
    let Some(program) = build(&scratch, &[]) else { return };
    for scenario in scenarios {
        let host = || Host::new(&program, "ends").argument(scenario);
        let unrecorded = host().run(Preload::Nothing);
        for options in ["", ",wall", ",children"] {
            let (host, data) = with_recording(host(), options);
            let outcome = host.run(Preload::Library);
            let (expected, status) = (unrecorded.status.into_raw(), outcome.status.into_raw());
            assert_eq!(
                (expected, &unrecorded.stdout),
                (status, &outcome.stdout),
                "{scenario}{options}\n{}",
                host.log()
            );
            assert_eq!(unrecorded.stderr, outcome.stderr, "{scenario}{options}");
            assert!(data.exists(), "{scenario}{options}");
        }
    }
}

/// The recording's writer is a thread of the process, too. If it were the last thread, it would determine the exit
/// status and run the `exit` handlers.
#[test]
fn the_last_thread_decides_the_status() {
    assert_ends_as_alone(&[
        "main",
        "main by an instruction",
        "group",
        "main, then a worker",
        "main, then a worker returns",
        "a worker, then main",
        "a worker, then main returns",
        "pthread_exit",
        "pthread_exit, then a worker",
        "pthread_exit, then a worker exits",
        "pthread_exit, then workers",
    ]);
    if is_root() {
        assert_ends_as_alone(&["no /proc", "no /proc, pthread_exit"]);
    }
}

#[test]
fn a_filter_for_system_calls_ends_no_recorded_program() {
    assert_ends_as_alone(&[
        "strict",
        "strict, killed",
        "strict, crashed",
        "filter",
        "filter, crashed",
        "filter of threads",
        "refusing filter",
    ]);
}

#[test]
fn other_ends() {
    assert_ends_as_alone(&["daemon", "vfork", "exec", "abort", "crash", "terminated", "threads"]);
}

/// The child's file must be created before the child loses the permission to do so.
#[test]
fn a_child_that_becomes_another_user_or_gets_another_root_is_recorded() {
    let scratch = Scratch::new("ends-child");
    if !is_root() {
        tool::skip("root", "only root becomes another user", Absence::IsAllowed);
        return;
    }
    let Some(program) = build(&scratch, &[]) else { return };
    for scenario in ["another user", "another root"] {
        let (host, data) = with_recording(Host::new(&program, "ends").argument(scenario), ",children");
        let outcome = host.run(Preload::Library);
        assert_eq!(outcome.status.code(), Some(34), "{scenario}");
        let names: Vec<String> = fs::read_dir(data.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with("f.data.") && !name.ends_with(".images"))
            .collect();
        let [child] = &names[..] else { panic!("{scenario}: {names:?}") };
        let sampled_ns: u64 = read(&data.with_file_name(child)).iter().map(|sample| sample.period).sum();
        assert!(sampled_ns > 5_000_000, "{scenario}: {sampled_ns} ns");
    }
}

/// Sanitizers watch the whole process: they mistake the signal stacks of our threads for their own, and detect data
/// races in the library.
#[test]
fn programs_with_sanitizers_end_as_alone() {
    let builds: [&[&str]; 8] = [
        &["-fsanitize=address"],
        &["-fsanitize=address", "-static-libasan"],
        &["-fsanitize=leak"],
        &["-fsanitize=undefined"],
        &["-fsanitize=undefined", "-static-libubsan"],
        &["-fsanitize=address,undefined"],
        &["-fsanitize=thread"],
        &["-fsanitize=thread", "-static-libtsan"],
    ];
    for flags in builds {
        let scratch = Scratch::new("ends-sanitized");
        let Some(program) = build(&scratch, flags) else { continue };
        let host = || Host::new(&program, "ends-sanitized").argument("threads").variable("JITLISTEN", "unwind");
        let unrecorded = host().run(Preload::Nothing);
        assert_eq!(unrecorded.status.code(), Some(32), "{flags:?}: {}", unrecorded.stderr);
        for options in ["", ",wall"] {
            let (host, data) = with_recording(host(), options);
            let outcome = host.run(Preload::Library);
            assert_eq!(outcome.status.code(), Some(32), "{flags:?}{options}: {}", outcome.stderr);
            assert_eq!(
                (&unrecorded.stdout, &unrecorded.stderr),
                (&outcome.stdout, &outcome.stderr),
                "{flags:?}{options}"
            );
            let is_recorded = !flags.contains(&"-fsanitize=thread");
            assert_eq!(data.exists(), is_recorded, "{flags:?}{options}");
            assert_eq!(host.log().contains("ThreadSanitizer cannot be recorded"), !is_recorded, "{}", host.log());
            assert!(!is_recorded || !read(&data).is_empty(), "{flags:?}{options}");
        }
    }
}
