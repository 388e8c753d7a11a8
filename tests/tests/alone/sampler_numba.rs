//! The sampler over stock Numba: names of compiled functions, workers of a `prange`, Python's own frames.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration;
use jitlisten_tests::sampled::{Weighed, assert_complete, by_thread, read, recorded};
use jitlisten_tests::tool::{self, Absence};

fn run(venv: &str, program: &str, words: &[&str]) -> Option<(Host, Vec<Weighed>)> {
    tool::require("perf", Absence::FailsInCi)?;
    let host = integration::numba(venv, program)?;
    let host = words.iter().fold(host, |host, word| host.argument(word));
    let (host, data) = recorded(host, "");
    let _ = host.run(Preload::Library).well();
    let samples = read(&data);
    Some((host, samples))
}

fn is_compiled(sample: &Weighed) -> bool {
    sample.frames.iter().any(|frame| frame.contains("prange kernel"))
}

/// The main thread computes too on tbb and omp; on workqueue it waits.
#[test]
fn the_workers_of_a_prange() {
    let Some((host, samples)) = run("numba-0.68.1", "parallel.py", &["4"]) else { return };
    let compiled: Vec<Weighed> = samples.iter().filter(|sample| is_compiled(sample)).cloned().collect();
    let seconds: f64 = by_thread(&compiled).values().sum();
    assert!((3.2..=4.4).contains(&seconds), "{seconds} s of 4 in the kernel\n{}", host.log());
    assert!(by_thread(&compiled).values().filter(|&&time| time > 0.5).count() >= 4, "{:?}", by_thread(&compiled));
    assert_complete(&compiled, 99.5);
    assert_complete(&samples, 98.0);
    let named = |sample: &Weighed| sample.frames.iter().filter(|frame| **frame != "[unknown]").count();
    assert!(compiled.iter().all(|sample| named(sample) == sample.frames.len()), "every frame has a name");
}

/// Through the threads of GCC's OpenMP and of oneTBB, whose `execute` has a frame that is realigned; oneTBB starts no
/// more threads than there are processors.
#[test]
fn stacks_of_prange_are_whole_on_other_threading_layers() {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for (layer, least) in [("omp", 4), ("tbb", processors.min(2))] {
        if tool::require("perf", Absence::FailsInCi).is_none() {
            return;
        }
        let Some(host) = integration::numba("numba-0.68.1", "parallel.py") else { return };
        let Some(host) = integration::with_packages(host, "pools") else { return };
        let (host, data) = recorded(host.argument("2").variable("NUMBA_THREADING_LAYER", layer), "");
        let _ = host.run(Preload::Library).well();
        let samples = read(&data);
        let compiled: Vec<Weighed> = samples.iter().filter(|sample| is_compiled(sample)).cloned().collect();
        let threads = by_thread(&compiled);
        assert!(threads.values().sum::<f64>() > 1.5 && threads.len() >= least, "{layer}: {threads:?}\n{}", host.log());
        assert_complete(&compiled, 99.5);
        assert_complete(&samples, 98.0);
    }
}

/// What is sampled in greenlets that were begun at one depth of the stack and are resumed at another.
fn in_greenlets(begin: &str, resume: &str) -> Option<Vec<Weighed>> {
    tool::require("perf", Absence::FailsInCi)?;
    let host = integration::numba("numba-0.68.1", "greenlets.py")?;
    let host = integration::with_packages(host.argument("2").argument(begin).argument(resume), "pools")?;
    let (host, data) = recorded(host, "");
    let _ = host.run(Preload::Library).well();
    let mut samples = read(&data);
    samples.retain(|sample| sample.frames.iter().any(|frame| frame.contains("burn")));
    let seconds: f64 = by_thread(&samples).values().sum();
    assert!(seconds > 1.4, "{seconds} s of 2 in the greenlets\n{}", host.log());
    Some(samples)
}

/// Greenlets move their parts of the thread's stack away and back again.
#[test]
fn stacks_of_greenlets_are_whole() {
    let Some(samples) = in_greenlets("0", "20") else { return };
    assert_complete(&samples, 99.0);
}

/// What called it first is no longer on the stack: only the greenlet's own part is certain.
#[test]
fn stacks_of_greenlets_resumed_less_deep_reach_their_beginning() {
    let Some(samples) = in_greenlets("20", "0") else { return };
    let own = samples.iter().filter(|sample| sample.frames.iter().any(|frame| frame.contains("g_initialstub"))).count();
    assert!(own * 100 >= samples.len() * 99, "{own} of {}", samples.len());
}

/// The names are in files beside the recording: the process's own are gone some day.
#[test]
fn images_are_kept_beside_the_recording() {
    let Some((host, samples)) = run("numba-0.68.1", "parallel.py", &["1"]) else { return };
    assert!(samples.iter().any(is_compiled));
    let entries = std::fs::read_dir(host.scratch(".")).expect("the scratch directory").flatten();
    let of_process: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("image-"))
        .map(|entry| entry.path())
        .collect();
    assert!(!of_process.is_empty());
    of_process.iter().for_each(|directory| std::fs::remove_dir_all(directory).expect("images of the process"));
    assert!(read(&host.scratch("f.data")).iter().any(is_compiled), "named from the files that were kept");
}

/// Python's handlers run, and its waiting calls take as long as they should: by wall-clock time, too.
#[test]
fn signals_of_python() {
    for words in [",hz=997", ",hz=997,wall"] {
        let Some(host) = integration::numba("numba-0.68.1", "python_signals.py") else { return };
        let (host, data) = recorded(host, words);
        let ended = host.run(Preload::Library).well();
        assert_eq!(ended.stdout, b"ok\n", "{words}");
        assert!(!read(&data).is_empty(), "{words}");
    }
}
