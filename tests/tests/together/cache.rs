//! Numba's `cache=True` in both directions: objects cached without the library stay as Numba generated them, and
//! objects cached with the library keep their frame pointers.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration;
use jitlisten_tests::log::{self, LogEvent};
use jitlisten_tests::perf::{self, Recording};
use jitlisten_tests::scenario::{self, Verdict};

const VENVS: [&str; 2] = ["numba-0.68.1", "numba-0.60.0"];

/// Fills the cache in one run, then records a second run that loads all functions from the cache.
fn record_from_the_cache(venv: &str, filled_by: Preload) -> Option<(Host, Recording)> {
    perf::is_available()?;
    let host = integration::numba(venv, "chain.py")?.argument("2").argument("cache");
    let first_run = host.run(filled_by).expect_success();
    assert!(lines(&first_run.stdout).any(|line| line == "from the cache: 0"));
    let recording = perf::record(&host, Preload::Library);
    assert!(lines(&recording.stdout).any(|line| line == "from the cache: 1"), "alpha does not come from the cache");
    scenario::assert_samples_named(&recording.samples, &recording.perf_map(), "gamma");
    Some((host, recording))
}

#[test]
fn objects_cached_without_the_library_are_named_and_logged() {
    for venv in VENVS {
        let Some((host, recording)) = record_from_the_cache(venv, Preload::Nothing) else { continue };
        Verdict::from_samples(&recording.samples, "_dispatcher").assert_named();
        // The cached code lacks frame pointers, so stacks may be incomplete, and the log must say so.
        let log = host.log();
        let is_warning = |event| {
            let LogEvent::LoadedWithoutFramePointers { library, .. } = event else { return false };
            library.contains("libllvmlite.so")
        };
        assert!(log::events(&log).any(is_warning), "not a word about code without frame pointers: {log:?}");
    }
}

#[test]
fn objects_cached_with_the_library_keep_their_frame_pointers() {
    for venv in VENVS {
        let Some((host, recording)) = record_from_the_cache(venv, Preload::Library) else { continue };
        Verdict::from_samples(&recording.samples, "_dispatcher").assert_complete();
        assert_eq!(host.log(), "");
    }
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = &str> {
    std::str::from_utf8(bytes).expect("text").lines()
}
