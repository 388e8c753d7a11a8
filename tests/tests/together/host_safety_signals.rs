//! Signals, cancellation and `errno` while a thread of the host executes the library's code.
//!
//! `hosts/safety.c` replaces `write(2)`, which the library calls while it holds its locks, and triggers the tested
//! event (a signal, a cancellation, a changed `errno`) in each of these calls. Without the library, the program
//! triggers the event elsewhere, and must print the same output.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::{host, safety_host};

fn check_scenario(args: &[&str]) -> Option<Host> {
    let host = safety_host::scenario(args)?;
    let outcome = host::assert_same_output(&host).expect_success();
    assert!(outcome.perf_map().named("first").next().is_some());
    Some(host)
}

/// The signal handler runs after the library has returned, so the code that the handler frees is counted as freed.
#[test]
fn a_handler_that_exits() {
    let Some(host) = check_scenario(&["interrupted", "exit"]) else { return };
    assert_eq!(safety_host::counter(&host, "freed"), 1);
}

#[test]
fn a_handler_that_forks() {
    let _ = check_scenario(&["interrupted", "fork"]);
}

#[test]
fn a_handler_that_opens_a_library() {
    let _ = check_scenario(&["interrupted", "dlopen"]);
}

#[test]
fn a_thread_that_is_cancelled() {
    let _ = check_scenario(&["cancelled"]);
}

/// The log is on a full device, so every line written to it sets `errno`.
#[test]
fn errno() {
    let Some(host) = safety_host::scenario(&["errno"]) else { return };
    let _ = host::assert_same_output(&host.variable("JITLISTEN_LOG", "debug:/dev/full")).expect_success();
}

/// The log is a pipe without a reader, so each line raises `SIGPIPE`, which ends a process by default.
#[test]
fn a_pipe_without_a_reader() {
    let other_user = "mkfifo \"$PIPE\"; exec 9<>\"$PIPE\" 2>\"$PIPE\" 9<&-";
    let Some(host) = safety_host::scenario_after_commands(other_user, &["first", "second"]) else { return };
    let pipe = host.scratch("pipe");
    let outcome =
        host.variable("PIPE", pipe).variable("JITLISTEN_LOG", "debug:stderr").run(Preload::Library).expect_success();
    assert_eq!(outcome.stdout, b"first: right\nsecond: right\n");
    assert_eq!(outcome.perf_map().entries.len(), 2);
}
