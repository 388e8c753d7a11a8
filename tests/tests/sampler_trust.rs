//! The sampler in programs that a sampling signal could easily break (`hosts/sampled_trust.c`). Their behaviour must
//! not change, and the recording must count the samples that could not be taken.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::sampled::{
    WeightedSample, counters, percent_complete, read, seconds_by_thread, share, with_recording,
};
use jitlisten_tests::tool::{self, Absence};

fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    tool::require("perf", Absence::FailsInCi)?;
    let program = PROGRAM.get_or_init(|| {
        let compiler = tool::require("cc", Absence::FailsInCi)?;
        // All tests of this binary share the program, so its directory outlives them; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("sampled-trust-program"));
        let program = scratch.join("sampled_trust");
        let flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"];
        tool::compile(&compiler, &flags, &paths::host("sampled_trust.c"), &program);
        Some(program)
    });
    program.clone()
}

fn host(args: &[&str]) -> Option<Host> {
    let host = Host::new(program()?, &format!("trust-{}", args[0])).variable("JITLISTEN", "unwind");
    Some(host.arguments(args))
}

/// Runs a scenario without the library and again while recorded, and asserts equal output. Returns the recording, which
/// is deleted together with the returned host.
fn record_and_compare(args: &[&str], options: &str) -> Option<(Host, PathBuf)> {
    let host = host(args)?;
    let stock = host.run(Preload::Nothing).expect_success();
    let (host, data) = with_recording(host, options);
    let recorded_run = host.run(Preload::Library).expect_success();
    assert_eq!((stock.stdout, stock.stderr), (recorded_run.stdout, recorded_run.stderr), "{args:?}");
    Some((host, data))
}

/// When the handler made one system call per stack word, it took longer than the sampling interval, and the program
/// made no progress.
#[test]
fn a_large_frame_on_a_deep_stack() {
    let Some((_host, data)) = record_and_compare(&["deep", "450", "200000000"], ",hz=500,wall") else { return };
    let samples = read(&data);
    assert!(
        samples.len() > 20 && percent_complete(&samples) >= 99.0,
        "{} % of {}",
        percent_complete(&samples),
        samples.len()
    );
}

/// Records a host under strace with these options. Returns its output.
fn trace(host: &Host, options: &[&str]) -> Option<String> {
    let strace = tool::require("strace", Absence::FailsInCi)?;
    let calls = host.scratch("calls");
    let mut command = Command::new(strace);
    command.args(["-f", "-qq"]).args(options).arg("-o").arg(&calls);
    for (name, value) in host.variables(Preload::Library) {
        command.arg("-E").arg(format!("{name}={}", value.to_string_lossy()));
    }
    let output = tool::run(command.args(host.command_line()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(std::fs::read_to_string(calls).expect("strace has written"))
}

/// Counts the system calls between two handler returns, in the busiest sampled thread of a scenario. strace makes each
/// `process_vm_readv` take `delay` microseconds longer.
fn count_calls_per_sample(host: &Host, delay: u32) -> Option<Vec<usize>> {
    let delay = format!("inject=process_vm_readv:delay_exit={delay}");
    let text = trace(host, &["-e", "trace=process_vm_readv,rt_sigprocmask,rt_sigreturn", "-e", &delay])?;
    let sampled_thread =
        text.lines().filter(|line| line.contains("rt_sigreturn(")).filter_map(|line| line.split(' ').next());
    let sampled_thread =
        sampled_thread.max_by_key(|&thread| text.lines().filter(|line| line.starts_with(thread)).count());
    let thread_lines: Vec<&str> =
        text.lines().filter(|line| line.starts_with(sampled_thread.unwrap_or("none"))).collect();
    let last_return = thread_lines.iter().rposition(|line| line.contains("rt_sigreturn(")).unwrap_or(0);
    let intervals = thread_lines[..last_return].split(|line| line.contains("rt_sigreturn("));
    // strace splits a call into two lines if another thread's event interrupts it.
    let is_call = |line: &&&str| !line.contains("+++") && !line.contains("---") && !line.contains(" resumed>");
    Some(intervals.skip(1).map(|calls| calls.iter().filter(is_call).count()).collect())
}

/// The kernel switches a thread more slowly from its first counter on: two threads that wake each other took 1.07 times
/// as long.
#[test]
fn the_recorder_looks_in_its_own_thread_whether_counters_are_permitted() {
    let Some(host) = host(&["deep", "450", "200000000"]) else { return };
    let (host, _) = with_recording(host, ",hz=200");
    let Some(text) = trace(&host, &["-e", "trace=perf_event_open,prctl"]) else { return };
    let (before, after) = text.split_once("PR_SET_NAME, \"jitlisten\"").expect("the recorder has named its thread");
    assert!(!before.contains("perf_event_open("), "{text}");
    let recorder =
        before.rsplit('\n').next().and_then(|line| line.split(' ').next()).expect("strace prints the thread");
    let is_recorders = |line: &&str| line.starts_with(recorder) && line.contains("perf_event_open(");
    assert_eq!(after.lines().filter(is_recorders).count(), 1, "{text}");
}

/// Covers samples of the thread's own stack and of a stack that the sampler does not know.
#[test]
fn a_sample_makes_at_most_two_system_calls() {
    for scenario in ["deep", "context"] {
        let Some(host) = host(&[scenario, "450", "200000000"]) else { return };
        let (host, _) = with_recording(host, ",hz=200");
        let Some(calls) = count_calls_per_sample(&host, 0) else { return };
        // The program's own stack switch is a system call too, so a few intervals may have more calls.
        let over_limit = calls.iter().filter(|&&calls| calls > 2).count();
        let max_over_limit = usize::from(scenario == "context");
        assert!(calls.len() > 20 && over_limit <= max_over_limit, "{scenario}: {calls:?}");
        assert!(scenario != "deep" || calls.iter().sum::<usize>() <= 2, "{calls:?}");
    }
}

/// strace delays the handler's system call by half a millisecond. Handlers may take at most a twentieth of the time.
#[test]
fn a_handler_that_is_too_slow_for_its_rate_skips() {
    let Some(host) = host(&["context", "450", "200000000"]) else { return };
    let (host, data) = with_recording(host, ",hz=1000");
    let Some(calls) = count_calls_per_sample(&host, 500) else { return };
    let (samples, skipped) = (counters(&data).samples, counters(&data).skipped);
    assert!(samples > 0 && skipped > samples && calls.len() > 20, "{samples} samples, {skipped} skipped");
}

/// The smallest signal stack is too small for the kernel's signal frame; the larger ones have room for it, but not for
/// the handler.
#[test]
fn small_signal_stacks() {
    let Some((_host, data)) = record_and_compare(&["small-stacks"], ",hz=997") else { return };
    assert!(counters(&data).lost + counters(&data).threads_without_timer > 0);
}

/// While the program's handler uses up its signal stack, no tick arrives; afterwards, they do.
#[test]
fn a_signal_stack_that_is_in_use() {
    let Some((_host, data)) = record_and_compare(&["stack-in-use"], ",hz=997") else { return };
    assert!(read(&data).len() > 20 && counters(&data).lost == 0);
}

#[test]
fn a_signal_stack_that_is_in_use_when_the_recording_begins() {
    let Some(host) = host(&["stack-in-use"]) else { return };
    let data = host.scratch("late.data");
    let host = host.argument(&data);
    let stock = host.run(Preload::Nothing).expect_success();
    assert_eq!(host.run(Preload::Library).expect_success().stdout, stock.stdout);
    assert!(read(&data).len() > 20 && counters(&data).lost == 0);
}

/// Daemons reset all signals to their default actions. The default action of the sampler's signal ends the process.
#[test]
fn all_signals_reset_to_their_defaults() {
    let Some((_host, data)) = record_and_compare(&["all-default"], ",hz=499") else { return };
    assert!(read(&data).len() > 20);
}

/// The program's handlers receive exactly the signals sent to the program, and none of the sampler's.
#[test]
fn handlers_for_all_signals() {
    let Some((_host, data)) = record_and_compare(&["all-handled"], ",hz=499") else { return };
    assert!(read(&data).len() > 20);
}

#[test]
fn threads_without_a_signal_stack() {
    let _ = record_and_compare(&["signal-stacks"], ",hz=499");
}

#[test]
fn threads_that_wait_for_all_signals() {
    let _ = record_and_compare(&["all-waited-for"], ",hz=499");
}

/// Records a scenario at 1,000 Hz of wall-clock time; without the library, the scenario prints 0. Returns the printed
/// number and the samples.
fn count_disturbances(scenario: &str) -> Option<(u64, Vec<WeightedSample>)> {
    let host = host(&[scenario])?;
    assert_eq!(host.run(Preload::Nothing).expect_success().stdout, b"0\n");
    let (host, data) = with_recording(host, ",hz=1000,wall");
    let outcome = host.run(Preload::Library).expect_success();
    let count = String::from_utf8_lossy(&outcome.stdout).trim().parse().expect("a number");
    Some((count, read(&data)))
}

/// Wall-clock sampling once interrupted all waits. A rare interruption remains possible if a thread begins to wait
/// between the sampler's check and its signal.
#[test]
#[cfg(target_arch = "x86_64")]
fn waits_go_on_by_wall_clock_time() {
    let Some((interrupted, samples)) = count_disturbances("waits-interrupted") else { return };
    assert!(interrupted <= 4, "{interrupted} of 64");
    let seconds = |name: &str| share(&samples, name, &["main"]);
    assert!(seconds("wait_once") > 80.0 && percent_complete(&samples) > 95.0, "{} %", percent_complete(&samples));
}

/// Signals to threads on the run queue once interrupted one in twenty of these calls, in every run. Now some ten are
/// interrupted, rarely up to 30.
#[test]
#[cfg(target_arch = "x86_64")]
fn calls_that_time_out_on_a_busy_processor_are_not_interrupted() {
    let mut counts = Vec::new();
    while counts.last().is_none_or(|count| *count > 30) {
        assert!(counts.len() < 3, "{counts:?} of 1,000");
        let Some((interrupted, samples)) = count_disturbances("polls-interrupted") else { return };
        assert!(samples.iter().any(|sample| sample.contains("work")));
        counts.push(interrupted);
    }
}

/// Wall-clock sampling once split these writes into hundreds of parts.
#[test]
fn writes_are_whole_by_wall_clock_time() {
    let Some((parts, samples)) = count_disturbances("writes-cut-short") else { return };
    assert!(parts <= 20, "{parts} parts");
    assert!(share(&samples, "writes_cut_short", &["main"]) > 80.0);
}

/// Signalling every idle thread would take a hundred thousand samples a second, and each of them would interrupt a
/// wait.
#[test]
fn waiting_threads_are_not_disturbed() {
    let Some(host) = host(&["idle", "3"]) else { return };
    let (host, data) = with_recording(host, ",hz=1000,wall");
    let _ = host.run(Preload::Library).expect_success();
    let samples = read(&data);
    assert!(samples.len() < 3000, "{} samples", samples.len());
    let (waiting_samples, other_samples): (Vec<WeightedSample>, Vec<WeightedSample>) =
        samples.into_iter().partition(|sample| sample.contains("idles"));
    let waiting_seconds = seconds_by_thread(&waiting_samples);
    assert!(
        waiting_seconds.len() >= 95 && waiting_seconds.values().all(|&seconds| seconds > 2.5),
        "{waiting_seconds:?}, {:?}, other samples {other_samples:?}",
        counters(&data)
    );
}
