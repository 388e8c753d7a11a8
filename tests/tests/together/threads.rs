//! Many threads that compile at the same time, or that run one kernel.

use std::collections::BTreeSet;

use jitlisten_tests::host::{self, Preload};
use jitlisten_tests::scenario::{self, Verdict};
use jitlisten_tests::{integration, perf};

const VENVS: [&str; 2] = ["numba-0.68.1", "numba-0.60.0"];

#[test]
fn four_threads_compile_at_once() {
    for venv in VENVS {
        let Some(host) = integration::numba(venv, "threads.py") else { continue };
        let host = host.argument("1");
        let map = host::assert_same_output(&host).expect_success().perf_map();
        let Some(()) = perf::is_available() else { continue };
        let recording = perf::record(&host, Preload::Library);
        for season in ["spring", "summer", "autumn", "winter"] {
            assert!(map.named(season).next().is_some(), "{season} is lost:\n{}", map.names());
            scenario::assert_samples_named(&recording.samples, &recording.perf_map(), season);
        }
        Verdict::from_samples(&recording.samples, "_dispatcher").assert_named();
    }
}

#[test]
fn prange_on_four_threads() {
    for venv in VENVS {
        let Some(host) = integration::numba(venv, "parallel.py") else { continue };
        let host = host.argument("2");
        host::assert_same_output(&host).expect_success();
        let Some(()) = perf::is_available() else { continue };
        let recording = perf::record(&host, Preload::Library);
        let verdict = Verdict::from_samples(&recording.samples, "workqueue");
        verdict.assert_named();
        // Numba gives the kernel a name like `__numba_parfor_gufunc_0x7f3a...`. Without debug information, that name
        // shows only that this is a prange kernel.
        let (hottest, _) = verdict.leaves.iter().max_by_key(|(_, count)| **count).expect("there are samples");
        let is_identified =
            hottest.as_deref().is_some_and(|name| name.contains("prange") || name.contains("parallel.py"));
        assert!(is_identified, "the kernel cannot be distinguished:\n{verdict}");
        let tids: BTreeSet<u32> = recording
            .samples
            .iter()
            .filter(|sample| sample.frames.first().is_some_and(scenario::is_jit))
            .map(|sample| sample.tid)
            .collect();
        assert!(tids.len() >= 4, "four threads run the kernel, perf saw it on {}", tids.len());
    }
}
