//! The sampler in stock Numba: names of compiled functions, `prange` worker threads, Python frames.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration;
use jitlisten_tests::sampled::{WeightedSample, assert_complete, read, seconds_by_thread, with_recording};
use jitlisten_tests::tool::{self, Absence};

fn run(venv: &str, program: &str, args: &[&str]) -> Option<(Host, Vec<WeightedSample>)> {
    tool::require("perf", Absence::FailsInCi)?;
    let host = integration::numba(venv, program)?;
    let host = host.arguments(args);
    let (host, data) = with_recording(host, "");
    let _ = host.run(Preload::Library).expect_success();
    let samples = read(&data);
    Some((host, samples))
}

fn is_compiled(sample: &WeightedSample) -> bool {
    sample.frames.iter().any(|frame| frame.contains("prange kernel"))
}

/// With the tbb and omp threading layers the main thread computes too; with workqueue it waits.
#[test]
fn the_workers_of_a_prange() {
    let Some((host, samples)) = run("numba-0.68.1", "parallel.py", &["4"]) else { return };
    let compiled_samples: Vec<WeightedSample> = samples.iter().filter(|sample| is_compiled(sample)).cloned().collect();
    let seconds: f64 = seconds_by_thread(&compiled_samples).values().sum();
    assert!((3.2..=4.4).contains(&seconds), "{seconds} s of 4 in the kernel\n{}", host.log());
    assert!(
        seconds_by_thread(&compiled_samples).values().filter(|&&time| time > 0.5).count() >= 4,
        "{:?}",
        seconds_by_thread(&compiled_samples)
    );
    assert_complete(&compiled_samples, 99.5);
    assert_complete(&samples, 98.0);
    let count_named = |sample: &WeightedSample| sample.frames.iter().filter(|frame| **frame != "[unknown]").count();
    assert!(compiled_samples.iter().all(|sample| count_named(sample) == sample.frames.len()), "every frame has a name");
}

/// Stacks pass through threads of GCC's OpenMP runtime and of oneTBB, whose `execute` realigns its frame. oneTBB starts
/// no more threads than there are processors.
#[test]
fn stacks_of_prange_are_whole_on_other_threading_layers() {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for (layer, min_threads) in [("omp", 4), ("tbb", processors.min(2))] {
        if tool::require("perf", Absence::FailsInCi).is_none() {
            return;
        }
        let Some(host) = integration::numba("numba-0.68.1", "parallel.py") else { return };
        let Some(host) = integration::with_packages(host, "pools") else { return };
        let (host, data) = with_recording(host.argument("2").variable("NUMBA_THREADING_LAYER", layer), "");
        let _ = host.run(Preload::Library).expect_success();
        let samples = read(&data);
        let compiled_samples: Vec<WeightedSample> =
            samples.iter().filter(|sample| is_compiled(sample)).cloned().collect();
        let threads = seconds_by_thread(&compiled_samples);
        assert!(
            threads.values().sum::<f64>() > 1.5 && threads.len() >= min_threads,
            "{layer}: {threads:?}\n{}",
            host.log()
        );
        assert_complete(&compiled_samples, 99.5);
        assert_complete(&samples, 98.0);
    }
}

/// Samples greenlets that start at one stack depth and are resumed at another.
fn sample_greenlets(start_depth: &str, resume_depth: &str) -> Option<Vec<WeightedSample>> {
    tool::require("perf", Absence::FailsInCi)?;
    let host = integration::numba("numba-0.68.1", "greenlets.py")?;
    let host = integration::with_packages(host.argument("2").argument(start_depth).argument(resume_depth), "pools")?;
    let (host, data) = with_recording(host, "");
    let _ = host.run(Preload::Library).expect_success();
    let mut samples = read(&data);
    samples.retain(|sample| sample.frames.iter().any(|frame| frame.contains("burn")));
    let seconds: f64 = seconds_by_thread(&samples).values().sum();
    assert!(seconds > 1.4, "{seconds} s of 2 in the greenlets\n{}", host.log());
    Some(samples)
}

/// greenlet copies a greenlet's part of the thread's stack to the heap and back.
#[test]
fn stacks_of_greenlets_are_whole() {
    let Some(samples) = sample_greenlets("0", "20") else { return };
    assert_complete(&samples, 99.0);
}

/// The frames that started a greenlet are no longer on the stack when it is resumed, so only the greenlet's own frames
/// are certain.
#[test]
fn stacks_of_greenlets_resumed_at_a_lower_depth_reach_their_entry() {
    let Some(samples) = sample_greenlets("20", "0") else { return };
    let reach_start =
        samples.iter().filter(|sample| sample.frames.iter().any(|frame| frame.contains("g_initialstub"))).count();
    assert!(reach_start * 100 >= samples.len() * 99, "{reach_start} of {}", samples.len());
}

/// perf takes the names from the image files stored beside the recording, because the process's own image files are
/// deleted eventually.
#[test]
fn images_are_kept_beside_the_recording() {
    let Some((host, samples)) = run("numba-0.68.1", "parallel.py", &["1"]) else { return };
    assert!(samples.iter().any(is_compiled));
    let entries = std::fs::read_dir(host.scratch(".")).expect("the scratch directory").flatten();
    let image_dirs: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("image-"))
        .map(|entry| entry.path())
        .collect();
    assert!(!image_dirs.is_empty());
    image_dirs.iter().for_each(|image_dir| std::fs::remove_dir_all(image_dir).expect("images of the process"));
    assert!(read(&host.scratch("f.data")).iter().any(is_compiled), "named from the files that were kept");
}

/// Under CPU-time and wall-clock sampling, Python's signal handlers still run, and its blocking calls take as long as
/// they should.
#[test]
fn python_still_handles_signals() {
    for options in [",hz=997", ",hz=997,wall"] {
        let Some(host) = integration::numba("numba-0.68.1", "python_signals.py") else { return };
        let (host, data) = with_recording(host, options);
        let outcome = host.run(Preload::Library).expect_success();
        assert_eq!(outcome.stdout, b"ok\n", "{options}");
        assert!(!read(&data).is_empty(), "{options}");
    }
}
