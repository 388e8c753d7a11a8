//! The sampler where stacks and threads are unusual (`hosts/sampled_odd.cpp`), and beside other profilers.

use std::path::{Path, PathBuf};

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::sampled::{Weighed, assert_complete, by_thread, counter, read, recorded, scenario};
use jitlisten_tests::tool::{self, Absence};

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("g++", Absence::FailsInCi)?;
    let program = scratch.join("sampled_odd");
    let source = paths::host("sampled_odd.cpp");
    // Libraries come after what uses them.
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

/// A process for a scenario, with words of its own; its program is there as long as the directory.
fn host(words: &[&str]) -> Option<(Scratch, Host)> {
    tool::require("perf", Absence::FailsInCi)?;
    let scratch = Scratch::new(&format!("odd-{}", words[0]));
    let host = Host::new(program(&scratch)?, &format!("odd-{}", words[0])).variable("JITLISTEN", "unwind");
    Some((scratch, words.iter().fold(host, |host, word| host.argument(word))))
}

/// A scenario without the library and under it: the same output. Returns the samples.
fn run(words: &[&str]) -> Option<Vec<Weighed>> {
    let (_scratch, host) = host(words)?;
    let stock = host.run(Preload::Nothing).well();
    let (host, data) = recorded(host, ",hz=499");
    let ours = host.run(Preload::Library).well();
    assert_eq!((stock.stdout, stock.stderr), (ours.stdout, ours.stderr), "{words:?}");
    Some(read(&data))
}

fn seconds(samples: &[Weighed]) -> f64 {
    samples.iter().map(|sample| sample.period as f64 / 1e9).sum()
}

/// On a stack of its own, which is unmapped when it ends: a stack goes back to where the fiber began, and one outside
/// of it to the start.
#[test]
fn fibers_on_stacks_of_their_own() {
    let Some(samples) = run(&["fibers", "2"]) else { return };
    assert!((seconds(&samples) - 2.0).abs() < 0.2, "{} s", seconds(&samples));
    let (inside, outside): (Vec<Weighed>, Vec<Weighed>) =
        samples.into_iter().partition(|sample| sample.frames.iter().any(|frame| frame == "make_fcontext"));
    assert!(inside.len() > 50 && outside.len() > 50, "{} and {}", inside.len(), outside.len());
    assert!(inside.iter().filter(|sample| sample.has("in_a_fiber")).count() * 100 >= inside.len() * 98);
    assert_complete(&outside, 98.0);
}

#[test]
fn exceptions_in_flight() {
    let Some(samples) = run(&["exceptions", "2"]) else { return };
    assert!((seconds(&samples) - 2.0).abs() < 0.2, "{} s", seconds(&samples));
    let unwinding = samples.iter().filter(|sample| sample.has("_Unwind_RaiseException")).count();
    assert!(unwinding * 10 > samples.len(), "{unwinding} of {} in the unwinder", samples.len());
    // The last instructions of `_Unwind_Resume` leave its own stack, and no unwind table describes them: one stack in
    // 500.
    assert_complete(&samples, 99.0);
}

/// The code of a function on the stack is gone.
#[test]
fn a_library_that_is_unloaded_under_its_callers() {
    let Some(compiler) = tool::require("cc", Absence::FailsInCi) else { return };
    let scratch = Scratch::new("through");
    let library = scratch.join("through.so");
    tool::compile(&compiler, &["-shared", "-fPIC", "-O1"], &paths::host("through.c"), &library);
    let Some(samples) = run(&["unloaded", "1", &library.to_string_lossy()]) else { return };
    assert!((seconds(&samples) - 1.0).abs() < 0.15, "{} s", seconds(&samples));
    assert!(samples.iter().filter(|sample| sample.has("called_back")).count() * 100 >= samples.len() * 95);
}

/// 1,000 at the same time, more than the sampler makes slots for at once.
#[test]
fn a_thousand_threads() {
    // Three periods each: on a busy machine some of a thread's time is gone before its timer is there.
    let Some(samples) = run(&["crowd", "1000", "0.006"]) else { return };
    let threads = by_thread(&samples).len();
    assert!(threads >= 990, "{threads} threads");
    assert!((5.4..=7.2).contains(&seconds(&samples)), "{} s", seconds(&samples));
}

/// Of the clock and of the thread's processor time: they fire as often as they should, whatever else does.
#[test]
fn timers_of_the_programs_own() {
    let Some((_scratch, host)) = host(&["own-timers", "1"]) else { return };
    let (host, data) = recorded(host, ",hz=499");
    let ended = host.run(Preload::Library).well();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let ticks: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // Every 20 ms; the wall-clock one goes on while the program waits for a processor.
    assert!(ticks[0] >= 48 && (48..=50).contains(&ticks[1]), "{said}");
    assert!((seconds(&read(&data)) - 1.0).abs() < 0.1);
}

/// The main thread has called `pthread_exit`: the sampler's own thread does not keep the process.
#[test]
fn a_process_ends_with_its_last_thread() {
    let Some(samples) = run(&["last-thread", "1"]) else { return };
    assert!((seconds(&samples) - 1.0).abs() < 0.1 && samples.iter().any(|sample| sample.has("burn_after_main")));
}

#[test]
fn children_by_vfork() {
    let Some(samples) = run(&["vforks", "1"]) else { return };
    assert!(!samples.is_empty(), "no sample");
    assert_complete(&samples, 90.0);
}

/// A thread that blocks every signal is sampled nowhere: its time is its function's when it ends.
#[test]
fn a_thread_that_blocks_signals() {
    let Some(host) = scenario(&["blocks", "1"]) else { return };
    let (host, data) = recorded(host, "");
    let ended = host.run(Preload::Library).well();
    let (of_main, of_blocked): (Vec<Weighed>, Vec<Weighed>) =
        read(&data).into_iter().partition(|sample| sample.tid == ended.pid);
    for samples in [&of_main, &of_blocked] {
        assert!((seconds(samples) - 1.0).abs() < 0.1, "{} s", seconds(samples));
    }
    // One signal may have come before it blocked them.
    let in_function: Vec<Weighed> = of_blocked.into_iter().filter(|sample| sample.has("blocked")).collect();
    assert!(in_function.len() <= 2 && (seconds(&in_function) - 1.0).abs() < 0.1, "{in_function:?}");
}

/// The C library's own signal for it comes where a thread waits, and so does the sampler's: it must not end a thread in
/// our handler.
#[test]
fn threads_that_are_cancelled_where_they_wait() {
    let Some((_scratch, host)) = host(&["cancels", "3"]) else { return };
    let (host, data) = recorded(host, ",hz=10000,wall");
    let ended = host.run(Preload::Library).well();
    assert_eq!((ended.stdout.as_slice(), ended.stderr.as_str()), (&b"done\n"[..], ""));
    let samples = read(&data);
    assert!(samples.iter().filter(|sample| sample.has("waits")).count() > 1000, "{} samples", samples.len());
}

/// Of 8 KiB above a page that faults: with some 3 KiB of the kernel's there is space for the handler, once.
#[test]
fn a_small_signal_stack_is_enough() {
    let Some((_scratch, host)) = host(&["small-signal-stack", "1"]) else { return };
    let (host, data) = recorded(host, ",hz=997");
    let ended = host.run(Preload::Library).well();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let numbers: Vec<usize> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [used, kernels] = numbers[..] else { panic!("{said}") };
    assert!(used > kernels && used < kernels + 3072, "{used} bytes used, {kernels} of them by the kernel");
    let samples = read(&data);
    assert!((seconds(&samples) - 2.0).abs() < 0.2, "{} s", seconds(&samples));
    assert_complete(&samples, 99.0);
}

/// 400,000 addresses a second: the ring of a thread has space for 8,192 words, and is emptied when it is half full.
#[test]
fn deep_stacks_a_thousand_times_a_second() {
    let Some(host) = scenario(&["deep", "400", "2"]) else { return };
    let (host, data) = recorded(host, ",hz=1000,wall");
    let _ = host.run(Preload::Library).well();
    let samples = read(&data);
    // Of two seconds; without that, more than half of them are lost. A busy machine may keep the writer from a
    // processor for as long.
    assert!(samples.iter().filter(|sample| sample.frames.len() > 400).count() > 500, "{} samples", samples.len());
    let lost = counter(&data, "lost");
    assert!(lost * 20 <= samples.len() as u64, "{lost} lost beside {}", samples.len());
}

/// Deeper than a sample has space for: cut off at the far end, and that is said.
#[test]
fn a_stack_of_five_thousand_frames() {
    let Some(host) = scenario(&["deep", "5000", "1"]) else { return };
    let (host, data) = recorded(host, "");
    let _ = host.run(Preload::Library).well();
    let samples = read(&data);
    assert!((seconds(&samples) - 1.0).abs() < 0.1, "{} s", seconds(&samples));
    let deep = samples.iter().filter(|sample| sample.frames.len() >= 500 && sample.frames[0] != "main").count();
    assert!(deep * 10 > samples.len() * 9, "{deep} of {}", samples.len());
}

/// A disk with no space left: the recording ends, the program does not.
#[test]
fn a_full_disk() {
    let Some(host) = scenario(&["deep", "400", "3"]) else { return };
    let place = host.scratch("full");
    std::fs::create_dir(&place).expect("a directory");
    let data = place.join("f.data");
    let host = host.variable("JITLISTEN_RECORD", format!("{},hz=997,no-images", data.display()));
    let script = format!("mount -t tmpfs -o size=256k tmpfs '{}'", place.display());
    let Some(host) = host.in_mount_namespace(&script) else { return };
    let _ = host.run(Preload::Library).well();
    assert!(host.log().contains("the recording stops: write"), "{}", host.log());
}

fn library_of(names: &[&str]) -> Option<PathBuf> {
    names.iter().map(Path::new).find(|path| path.exists()).map(Path::to_owned)
}

/// gperftools' profiler, which counts `SIGPROF` of a timer of its own, beside ours: we see the whole time, and it is
/// not disturbed.
#[test]
fn beside_gperftools() {
    let Some(profiler) = library_of(&["/usr/lib/x86_64-linux-gnu/libprofiler.so.0", "/usr/lib64/libprofiler.so.0"])
    else {
        tool::skip("gperftools", "no libprofiler.so.0; run ci/setup.sh", Absence::FailsInCi);
        return;
    };
    let Some(host) = scenario(&["loops", "2"]) else { return };
    let profile = host.scratch("gperftools.prof");
    let (host, data) = recorded(host, "");
    let preloads = format!("{}:{}", profiler.display(), paths::library().display());
    let host = host.variable("CPUPROFILE", &profile).variable("LD_PRELOAD", preloads);
    let _ = host.run(Preload::Nothing).well();
    assert!((seconds(&read(&data)) - 2.0).abs() < 0.2);
    // Words of eight bytes: 0, 3, 0, the period, 0; then for each place a count, a depth and so many addresses.
    let words: Vec<u64> = std::fs::read(&profile)
        .expect("gperftools' profile")
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    assert_eq!(words[..3], [0, 3, 0]);
    let (mut at, mut ticks) = (5, 0);
    while words.get(at).is_some_and(|&count| count != 0) {
        ticks += words[at];
        at += 2 + words[at + 1] as usize;
    }
    let theirs = ticks as f64 * words[3] as f64 / 1e6;
    // Its signals wait for the process, and one that comes while another waits is not counted: on a busy machine it
    // sees less.
    assert!((0.5..2.5).contains(&theirs), "{theirs} s by gperftools");
}
