//! Signals, cancellation and `errno`: what a thread of the host's does while it is ours.
//!
//! `hosts/safety.c` stands in for `write(2)`, which the library calls under its locks, and makes things happen there,
//! every time. The same program without the library has them happen elsewhere, and must print the same.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::{host, safety_host};

fn same(words: &[&str]) -> Option<Host> {
    let host = safety_host::scenario(words)?;
    let ended = host::same_output(&host).well();
    assert!(ended.perf_map().named("first").next().is_some());
    Some(host)
}

/// It comes when the library is done, so the code that it frees has an end.
#[test]
fn a_handler_that_exits() {
    let Some(host) = same(&["interrupted", "exit"]) else { return };
    assert_eq!(safety_host::counted(&host, "freed"), 1);
}

#[test]
fn a_handler_that_forks() {
    let _ = same(&["interrupted", "fork"]);
}

#[test]
fn a_handler_that_opens_a_library() {
    let _ = same(&["interrupted", "dlopen"]);
}

#[test]
fn a_thread_that_is_cancelled() {
    let _ = same(&["cancelled"]);
}

/// A log on a full device: every line of it sets `errno`.
#[test]
fn errno() {
    let Some(host) = safety_host::scenario(&["errno"]) else { return };
    let _ = host::same_output(&host.variable("JITLISTEN_LOG", "debug:/dev/full")).well();
}

/// A log without a reader: each line of it is a `SIGPIPE`, which ends a process.
#[test]
fn a_pipe_without_a_reader() {
    let other_user = "mkfifo \"$PIPE\"; exec 9<>\"$PIPE\" 2>\"$PIPE\" 9<&-";
    let Some(host) = safety_host::scenario_after(other_user, &["first", "second"]) else { return };
    let pipe = host.scratch("pipe");
    let ended = host.variable("PIPE", pipe).variable("JITLISTEN_LOG", "debug:stderr").run(Preload::Library).well();
    assert_eq!(ended.stdout, b"first: right\nsecond: right\n");
    assert_eq!(ended.perf_map().entries.len(), 2);
}
