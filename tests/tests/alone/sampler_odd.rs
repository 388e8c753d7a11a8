//! The sampler on unusual stacks and threads (`hosts/sampled_odd.cpp`), and beside other profilers.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::log::{self, LogEvent};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::sampled::{
    WeightedSample, assert_complete, counters, measured_seconds, read, scenario, with_recording,
};
use jitlisten_tests::tool::{self, Absence};

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("g++", Absence::FailsInCi)?;
    let program = scratch.join("sampled_odd");
    let source = paths::host("sampled_odd.cpp");
    // Libraries must follow the source file that uses them.
    let flags = [
        "-std=c++17",
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
        "-Wl,--no-as-needed",
        "-lboost_context",
        "-ldl",
    ];
    tool::compile(&compiler, &flags, &source, &program);
    Some(program)
}

/// Builds a host for one scenario. Its program is deleted together with the returned directory.
fn host(args: &[&str]) -> Option<(Scratch, Host)> {
    tool::require("perf", Absence::FailsInCi)?;
    let scratch = Scratch::new(&format!("odd-{}", args[0]));
    let host = Host::new(program(&scratch)?, &format!("odd-{}", args[0])).variable("JITLISTEN", "unwind");
    Some((scratch, host.arguments(args)))
}

/// Runs a scenario without the library and again while recorded, asserts equal output, and returns the samples.
fn run(args: &[&str]) -> Option<Vec<WeightedSample>> {
    let (_scratch, host) = host(args)?;
    let stock = host.run(Preload::Nothing).expect_success();
    let (host, data) = with_recording(host, ",hz=499");
    let recorded_run = host.run(Preload::Library).expect_success();
    assert_eq!((stock.stdout, stock.stderr), (recorded_run.stdout, recorded_run.stderr), "{args:?}");
    Some(read(&data))
}

fn seconds(samples: &[WeightedSample]) -> f64 {
    samples.iter().map(|sample| sample.period as f64 / 1e9).sum()
}

/// Fibers run on their own stacks, which are unmapped when the fibers end. Inside a fiber, a stack must reach the
/// fiber's entry function; outside, the thread's entry function.
#[test]
fn fibers_on_stacks_of_their_own() {
    let Some(samples) = run(&["fibers", "2"]) else { return };
    assert!((seconds(&samples) - 2.0).abs() < 0.2, "{} s", seconds(&samples));
    let (inside_samples, outside_samples): (Vec<WeightedSample>, Vec<WeightedSample>) =
        samples.into_iter().partition(|sample| sample.frames.iter().any(|frame| frame == "make_fcontext"));
    assert!(
        inside_samples.len() > 50 && outside_samples.len() > 50,
        "{} and {}",
        inside_samples.len(),
        outside_samples.len()
    );
    assert!(
        inside_samples.iter().filter(|sample| sample.contains("in_a_fiber")).count() * 100 >= inside_samples.len() * 98
    );
    assert_complete(&outside_samples, 98.0);
}

#[test]
fn exceptions_in_flight() {
    let Some(samples) = run(&["exceptions", "2"]) else { return };
    assert!((seconds(&samples) - 2.0).abs() < 0.2, "{} s", seconds(&samples));
    let unwinding_count = samples.iter().filter(|sample| sample.contains("_Unwind_RaiseException")).count();
    assert!(unwinding_count * 10 > samples.len(), "{unwinding_count} of {} in the unwinder", samples.len());
    // No unwind table describes the last instructions of `_Unwind_Resume`, which switch away from its own stack, so one
    // stack in 500 is incomplete.
    assert_complete(&samples, 99.0);
}

/// The code of a function is unmapped while the function is on the stack.
#[test]
fn a_library_that_is_unloaded_while_it_is_on_the_stack() {
    let Some(compiler) = tool::require("cc", Absence::FailsInCi) else { return };
    let scratch = Scratch::new("through");
    let library = scratch.join("through.so");
    tool::compile(&compiler, &["-shared", "-fPIC", "-O1"], &paths::host("through.c"), &library);
    let Some(samples) = run(&["unloaded", "1", &library.to_string_lossy()]) else { return };
    assert!((seconds(&samples) - 1.0).abs() < 0.15, "{} s", seconds(&samples));
    assert!(samples.iter().filter(|sample| sample.contains("called_back")).count() * 100 >= samples.len() * 95);
}

/// 1,000 concurrent threads, more than the sampler allocates slots for in one step.
#[test]
fn a_thousand_threads() {
    let Some((_scratch, host)) = host(&["crowd", "1000", "0.006"]) else { return };
    let (host, data) = with_recording(host, ",hz=499");
    let _ = host.run(Preload::Library).expect_success();
    let measured = measured_seconds(&data);
    assert!(measured.len() >= 990, "{} threads", measured.len());
    let time: f64 = measured.values().sum();
    // On a busy machine, a thread has used some of its time before its timer exists.
    assert!((4.0..=7.2).contains(&time), "{time} s");
}

/// With four threads, the process reaches its limit of threads (`RLIMIT_NPROC`): the recorder's must not count.
#[test]
fn a_limit_of_threads() {
    let (true, Some(setpriv)) =
        (tool::require_root("the limit of another user"), tool::require("setpriv", Absence::FailsInCi))
    else {
        return;
    };
    let host = Host::accessible_to_all(setpriv, "thread-limit");
    let (copied_program, library) = (host.scratch("program"), host.scratch("libjitlisten.so"));
    let scratch = Scratch::new("thread-limit-build");
    let Some(program) = program(&scratch) else { return };
    fs::copy(program, &copied_program).expect("copied");
    fs::copy(paths::library(), &library).expect("copied");
    let directory = host.scratch("recording");
    fs::create_dir(&directory).expect("made");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("open to all");
    let data = directory.join("f.data");
    // The limit applies to all threads of a user; no other process has this one.
    let host = host
        .arguments(["--reuid=61003", "--regid=61003", "--clear-groups", "prlimit", "--nproc=5", "env"])
        .argument(format!("LD_PRELOAD={}", library.display()))
        .argument(format!("JITLISTEN_RECORD={},hz=499", data.display()))
        .argument(copied_program)
        .arguments(["crowd", "4", "0.05"]);
    let outcome = host.run(Preload::Nothing).expect_success();
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "done\n");
    // perf reads no files of others.
    chown(&data, Some(0), Some(0)).expect("ours");
    let _ = read(&data);
}

/// The program's own wall-clock and thread-CPU-time timers fire as often as without the sampler.
#[test]
fn the_programs_own_timers() {
    let Some((_scratch, host)) = host(&["own-timers", "1"]) else { return };
    let (host, data) = with_recording(host, ",hz=499");
    let outcome = host.run(Preload::Library).expect_success();
    let output = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let ticks: Vec<u32> = output.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    // The program's timers have a period of 20 ms. The wall-clock timer also runs while the program waits for a
    // processor.
    assert!(ticks[0] >= 48 && (48..=50).contains(&ticks[1]), "{output}");
    assert!((seconds(&read(&data)) - 1.0).abs() < 0.1);
}

/// After `pthread_exit` in the main thread, the sampler's own thread does not keep the process alive.
#[test]
fn a_process_ends_with_its_last_thread() {
    let Some(samples) = run(&["last-thread", "1"]) else { return };
    assert!((seconds(&samples) - 1.0).abs() < 0.1 && samples.iter().any(|sample| sample.contains("burn_after_main")));
}

#[test]
fn children_by_vfork() {
    let Some(samples) = run(&["vforks", "1"]) else { return };
    assert!(!samples.is_empty(), "no sample");
    assert_complete(&samples, 90.0);
}

/// A thread that blocks every signal is never sampled, so its time is charged to its entry function when it exits.
#[test]
fn a_thread_that_blocks_signals() {
    let Some(host) = scenario(&["blocks", "1"]) else { return };
    let (host, data) = with_recording(host, "");
    let outcome = host.run(Preload::Library).expect_success();
    let (main_samples, blocked_samples): (Vec<WeightedSample>, Vec<WeightedSample>) =
        read(&data).into_iter().partition(|sample| sample.tid == outcome.pid);
    for samples in [&main_samples, &blocked_samples] {
        assert!((seconds(samples) - 1.0).abs() < 0.1, "{} s", seconds(samples));
    }
    // One signal may arrive before the thread blocks all of them.
    let in_function: Vec<WeightedSample> =
        blocked_samples.into_iter().filter(|sample| sample.contains("blocked")).collect();
    assert!(in_function.len() <= 2 && (seconds(&in_function) - 1.0).abs() < 0.1, "{in_function:?}");
}

/// glibc's cancellation signal may arrive while a thread waits, as may the sampler's. Cancellation must not end a
/// thread inside our handler.
#[test]
fn threads_that_are_cancelled_where_they_wait() {
    let Some((_scratch, host)) = host(&["cancels", "3"]) else { return };
    let (host, data) = with_recording(host, ",hz=10000,wall");
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!((outcome.stdout.as_slice(), outcome.stderr.as_str()), (&b"done\n"[..], ""));
    let samples = read(&data);
    assert!(samples.iter().filter(|sample| sample.contains("waits")).count() > 1000, "{} samples", samples.len());
}

/// An 8 KiB signal stack above a guard page. The kernel's signal frame takes some 3 KiB, which leaves room for only one
/// handler.
#[test]
fn a_small_signal_stack_is_enough() {
    let Some((_scratch, host)) = host(&["small-signal-stack", "1"]) else { return };
    let (host, data) = with_recording(host, ",hz=997");
    let outcome = host.run(Preload::Library).expect_success();
    let output = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let numbers: Vec<usize> = output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [used_bytes, kernel_bytes] = numbers[..] else { panic!("{output}") };
    assert!(
        used_bytes > kernel_bytes && used_bytes < kernel_bytes + 3072,
        "{used_bytes} bytes used, {kernel_bytes} of them by the kernel"
    );
    let samples = read(&data);
    assert!((seconds(&samples) - 2.0).abs() < 0.2, "{} s", seconds(&samples));
    assert_complete(&samples, 99.0);
}

/// The sampler records 400,000 addresses a second. A thread's ring holds 8,192 words, and the writer empties it when it
/// is half full.
#[test]
fn deep_stacks_a_thousand_times_a_second() {
    let Some(host) = scenario(&["deep", "400", "2"]) else { return };
    let (host, data) = with_recording(host, ",hz=1000,wall");
    let _ = host.run(Preload::Library).expect_success();
    let samples = read(&data);
    // Two seconds yield 2,000 samples. If the writer did not empty half-full rings, more than half of the samples would
    // be dropped. On a busy machine, that many may be dropped anyway, because the writer gets too little processor
    // time.
    assert!(samples.iter().filter(|sample| sample.frames.len() > 400).count() > 500, "{} samples", samples.len());
    let lost = counters(&data).lost;
    assert!(lost * 20 <= samples.len() as u64, "{lost} lost beside {}", samples.len());
}

/// A stack deeper than a sample can hold loses its outermost frames and is marked as truncated.
#[test]
fn a_stack_of_five_thousand_frames() {
    let Some(host) = scenario(&["deep", "5000", "1"]) else { return };
    let (host, data) = with_recording(host, "");
    let _ = host.run(Preload::Library).expect_success();
    let samples = read(&data);
    assert!((seconds(&samples) - 1.0).abs() < 0.1, "{} s", seconds(&samples));
    let deep_stacks = samples.iter().filter(|sample| sample.frames.len() >= 500 && sample.frames[0] != "main").count();
    assert!(deep_stacks * 10 > samples.len() * 9, "{deep_stacks} of {}", samples.len());
}

/// When the disk is full, the recording ends and the program continues.
#[test]
fn a_full_disk() {
    let Some(host) = scenario(&["deep", "400", "3"]) else { return };
    let mount_point = host.scratch("full");
    fs::create_dir(&mount_point).expect("a directory");
    let data = mount_point.join("f.data");
    let host = host.variable("JITLISTEN_RECORD", format!("{},hz=997,no-images", data.display()));
    let script = format!("mount -t tmpfs -o size=256k tmpfs '{}'", mount_point.display());
    let Some(host) = host.in_mount_namespace(&script) else { return };
    let _ = host.run(Preload::Library).expect_success();
    let has_stopped = |event: &LogEvent<'_>| matches!(event, LogEvent::RecordingStopped { .. });
    assert_eq!(log::count(&host.log(), has_stopped), 1, "{}", host.log());
}

fn find_library(names: &[&str]) -> Option<PathBuf> {
    names.iter().map(Path::new).find(|path| path.exists()).map(Path::to_owned)
}

/// gperftools' profiler counts the `SIGPROF` signals of its own timer. When both run, our recording covers the whole
/// time and gperftools' profile is not disturbed.
#[test]
fn beside_gperftools() {
    let Some(profiler) = find_library(&["/usr/lib/x86_64-linux-gnu/libprofiler.so.0", "/usr/lib64/libprofiler.so.0"])
    else {
        tool::skip("gperftools", "no libprofiler.so.0; run ci/setup.sh", Absence::FailsInCi);
        return;
    };
    let Some(host) = scenario(&["loops", "2"]) else { return };
    let profile = host.scratch("gperftools.prof");
    let (host, data) = with_recording(host, "");
    let preloads = format!("{}:{}", profiler.display(), paths::library().display());
    let host = host.variable("CPUPROFILE", &profile).variable("LD_PRELOAD", preloads);
    let _ = host.run(Preload::Nothing).expect_success();
    assert!((seconds(&read(&data)) - 2.0).abs() < 0.2);
    // gperftools' profile consists of eight-byte words: the header 0, 3, 0, period, 0; then for each stack a count, a
    // depth and the addresses.
    let words: Vec<u64> = std::fs::read(&profile)
        .expect("gperftools' profile")
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    assert_eq!(words[..3], [0, 3, 0]);
    let (mut index, mut ticks) = (5, 0);
    while words.get(index).is_some_and(|&count| count != 0) {
        ticks += words[index];
        index += 2 + words[index + 1] as usize;
    }
    let gperftools_seconds = ticks as f64 * words[3] as f64 / 1e6;
    // A signal that arrives while another is pending is not counted, so gperftools sees less time on a busy machine.
    assert!((0.5..2.5).contains(&gperftools_seconds), "{gperftools_seconds} s by gperftools");
}
