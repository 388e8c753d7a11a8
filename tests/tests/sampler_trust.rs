//! The sampler under programs that are easily broken by one (`hosts/sampled_trust.c`): they end as they do alone, and
//! what was not sampled is counted.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::sampled::{Weighed, by_thread, complete, counter, read, recorded, share};
use jitlisten_tests::tool::{self, Absence};

fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    tool::require("perf", Absence::FailsInCi)?;
    let program = PROGRAM.get_or_init(|| {
        let compiler = tool::require("cc", Absence::FailsInCi)?;
        // Every test of this binary uses it; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("sampled-trust-program"));
        let program = scratch.join("sampled_trust");
        let flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"];
        tool::compile(&compiler, &flags, &paths::host("sampled_trust.c"), &program);
        Some(program)
    });
    program.clone()
}

fn host(words: &[&str]) -> Option<Host> {
    let host = Host::new(program()?, &format!("trust-{}", words[0])).variable("JITLISTEN", "unwind");
    Some(words.iter().fold(host, |host, word| host.argument(word)))
}

/// A scenario without the library and recorded: the same output. Returns the recording, which is there as long as its
/// host.
fn same(words: &[&str], options: &str) -> Option<(Host, PathBuf)> {
    let host = host(words)?;
    let stock = host.run(Preload::Nothing).well();
    let (host, data) = recorded(host, options);
    let ours = host.run(Preload::Library).well();
    assert_eq!((stock.stdout, stock.stderr), (ours.stdout, ours.stderr), "{words:?}");
    Some((host, data))
}

/// Each word of such a stack was a system call: the handler took longer than its interval, and the program never went
/// on.
#[test]
fn a_large_frame_on_a_deep_stack() {
    let Some((_host, data)) = same(&["deep", "450", "200000000"], ",hz=500,wall") else { return };
    let samples = read(&data);
    assert!(samples.len() > 20 && complete(&samples) >= 99.0, "{} % of {}", complete(&samples), samples.len());
}

/// What a scenario recorded under strace has of these calls, in the thread that began it, from one handler's return to
/// the next one's. Each of the first ones takes `delay` microseconds more.
fn calls_of_samples(host: &Host, delay: u32) -> Option<Vec<usize>> {
    let strace = tool::require("strace", Absence::FailsInCi)?;
    let calls = host.scratch("calls");
    let mut command = Command::new(strace);
    command.args(["-f", "-qq", "-e", "trace=process_vm_readv,rt_sigprocmask,rt_sigreturn"]);
    command.args(["-e", &format!("inject=process_vm_readv:delay_exit={delay}"), "-o"]).arg(&calls);
    for (name, value) in host.variables(Preload::Library) {
        command.arg("-E").arg(format!("{name}={}", value.to_string_lossy()));
    }
    let done = tool::run(command.args(host.words()));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = std::fs::read_to_string(calls).expect("strace has written");
    let sampled = text.lines().filter(|line| line.contains("rt_sigreturn(")).filter_map(|line| line.split(' ').next());
    let sampled = sampled.max_by_key(|&thread| text.lines().filter(|line| line.starts_with(thread)).count());
    let of_thread: Vec<&str> = text.lines().filter(|line| line.starts_with(sampled.unwrap_or("none"))).collect();
    let handlers = of_thread.iter().rposition(|line| line.contains("rt_sigreturn(")).unwrap_or(0);
    let of_samples = of_thread[..handlers].split(|line| line.contains("rt_sigreturn("));
    // A call in which strace heard of another thread has two lines.
    let is_call = |line: &&&str| !line.contains("+++") && !line.contains("---") && !line.contains(" resumed>");
    Some(of_samples.skip(1).map(|calls| calls.iter().filter(is_call).count()).collect())
}

/// On the thread's own stack, and on one of which nothing is known.
#[test]
fn a_sample_makes_two_system_calls_at_most() {
    for scenario in ["deep", "context"] {
        let Some(host) = host(&[scenario, "450", "200000000"]) else { return };
        let (host, _) = recorded(host, ",hz=200");
        let Some(calls) = calls_of_samples(&host, 0) else { return };
        // The program's own change of stacks is a call, too, between two samples at most.
        let more = calls.iter().filter(|&&calls| calls > 2).count();
        let most = usize::from(scenario == "context");
        assert!(calls.len() > 20 && more <= most, "{scenario}: {calls:?}");
        assert!(scenario != "deep" || calls.iter().sum::<usize>() <= 2, "{calls:?}");
    }
}

/// A system call of the handler takes half a millisecond, where the handlers may take a twentieth of the time.
#[test]
fn a_handler_that_is_too_slow_for_its_rate_skips() {
    let Some(host) = host(&["context", "450", "200000000"]) else { return };
    let (host, data) = recorded(host, ",hz=1000,wall");
    let Some(calls) = calls_of_samples(&host, 500) else { return };
    let (samples, skipped) = (counter(&data, "samples"), counter(&data, "skipped"));
    assert!(samples > 0 && skipped > samples && calls.len() > 20, "{samples} samples, {skipped} skipped");
}

/// The kernel's own part did not fit on the smallest one, and the handler's not on the others.
#[test]
fn small_signal_stacks() {
    let Some((_host, data)) = same(&["small-stacks"], ",hz=997") else { return };
    assert!(counter(&data, "lost") + counter(&data, "threads without a timer") > 0);
}

#[test]
fn a_signal_stack_that_is_in_use() {
    let Some((_host, data)) = same(&["stack-in-use"], ",hz=997") else { return };
    assert!(counter(&data, "lost") > 0);
}

/// Daemons do so. The default of the sampler's signal is the end of the process.
#[test]
fn all_signals_set_to_their_defaults() {
    let Some((_host, data)) = same(&["all-default"], ",hz=499") else { return };
    assert!(read(&data).len() > 20);
}

/// A handler has what was sent to it, and none of the sampler's signals.
#[test]
fn handlers_for_all_signals() {
    let Some((_host, data)) = same(&["all-handled"], ",hz=499") else { return };
    assert!(read(&data).len() > 20);
}

#[test]
fn threads_that_wait_for_all_signals() {
    let _ = same(&["all-waited-for"], ",hz=499");
}

/// What a scenario prints alone, which is 0, and recorded by wall-clock time a thousand times a second.
fn disturbed(scenario: &str) -> Option<(u64, Vec<Weighed>)> {
    let host = host(&[scenario])?;
    assert_eq!(host.run(Preload::Nothing).well().stdout, b"0\n");
    let (host, data) = recorded(host, ",hz=1000,wall");
    let ended = host.run(Preload::Library).well();
    let said = String::from_utf8_lossy(&ended.stdout).trim().parse().expect("a number");
    Some((said, read(&data)))
}

/// All of 50 were. A thread that runs when it is looked at, and waits when the signal comes, still is: rarely.
#[test]
#[cfg(target_arch = "x86_64")]
fn waits_go_on_by_wall_clock_time() {
    let Some((interrupted, samples)) = disturbed("waits-interrupted") else { return };
    assert!(interrupted <= 10, "{interrupted} of 50");
    let seconds = |name: &str| share(&samples, name, &["main"]);
    assert!(seconds("wait_once") > 80.0 && complete(&samples) > 95.0, "{} %", complete(&samples));
}

/// Hundreds of parts.
#[test]
fn writes_are_whole_by_wall_clock_time() {
    let Some((parts, samples)) = disturbed("writes-cut-short") else { return };
    assert!(parts <= 20, "{parts} parts");
    assert!(share(&samples, "writes_cut_short", &["main"]) > 80.0);
}

/// A hundred thousand samples a second, each an interruption.
#[test]
fn threads_that_wait_are_not_disturbed() {
    let Some(host) = host(&["idle", "3"]) else { return };
    let (host, data) = recorded(host, ",hz=1000,wall");
    let _ = host.run(Preload::Library).well();
    let samples = read(&data);
    assert!(samples.len() < 3000, "{} samples", samples.len());
    let waiting: Vec<Weighed> = samples.into_iter().filter(|sample| sample.has("idles")).collect();
    let times = by_thread(&waiting);
    assert!(times.len() >= 95 && times.values().all(|&seconds| seconds > 2.5), "{times:?}");
}
