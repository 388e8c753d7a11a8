//! Functions that are deleted while new ones are compiled.

use jitlisten_tests::host::{self, Preload};
use jitlisten_tests::scenario::{self, Verdict};
use jitlisten_tests::{integration, perf, safety_host};

#[test]
fn deleted_functions_leave_no_wrong_name() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(host) = integration::numba(venv, "short_lived.py") else { continue };
        let host = host.argument("1");
        host::assert_same_output(&host).expect_success();
        let Some(()) = perf::is_available() else { continue };
        let recording = perf::record(&host, Preload::Library);
        scenario::assert_samples_named(&recording.samples, &recording.perf_map(), "evergreen");
        let verdict = Verdict::from_samples(&recording.samples, "_dispatcher");
        verdict.assert_named();
        let evergreen: usize = verdict
            .leaves
            .iter()
            .filter(|(leaf, _)| leaf.as_deref().is_some_and(|leaf| scenario::names_function(leaf, "evergreen")))
            .map(|(_, count)| count)
            .sum();
        assert!(evergreen * 100 >= verdict.jit * 95, "samples of evergreen have other names:\n{verdict}");
    }
}

/// perf reads the map when it reports, and a map does not record times. Samples of freed code therefore get the name of
/// the function that is at their address by then. The reverse must never happen. The library prevents 4,096 freed
/// ranges from being reused, so the host has to compile more functions. A jitdump records times; `jitdump_perf.rs`
/// shows that with a jitdump, perf names both functions.
#[test]
fn a_used_address_has_the_name_of_the_last_function() {
    let (Some(()), Some(host)) = (perf::is_available(), safety_host::scenario(&["recycles", "0.5"])) else { return };
    let recording = perf::record(&host.variable("JITLISTEN", "perfmap"), Preload::Library);
    let output = String::from_utf8_lossy(&recording.stdout).into_owned();
    let functions_between =
        output.strip_prefix("the same address after ").and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(functions_between.is_some_and(|functions_between| functions_between >= 4096), "{output}");
    let map = recording.map.as_deref().map(String::from_utf8_lossy).expect("a map");
    assert!(!map.contains("summer"), "the line of the first function");
    let count_leaves = |name| {
        recording
            .samples
            .iter()
            .filter(|sample| sample.frames.first().and_then(|frame| frame.symbol.as_deref()) == Some(name))
            .count()
    };
    let (summer, winter) = (count_leaves("summer"), count_leaves("winter"));
    assert!(summer == 0 && winter >= 500, "{summer} samples of the first, {winter} of the last, of a second's");
}
