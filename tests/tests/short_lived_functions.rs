//! Functions that are deleted while new ones are compiled.

use jitlisten_tests::host::{self, Preload};
use jitlisten_tests::story::{self, Verdict};
use jitlisten_tests::{door, perf};

#[test]
fn deleted_functions_leave_no_wrong_name() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(host) = door::numba(venv, "short_lived.py") else { continue };
        let host = host.argument("1");
        host::same_output(&host).well();
        let Some(()) = perf::is_here() else { continue };
        let recording = perf::record(&host, Preload::Library);
        story::every_sample_is_named(&recording.samples, &recording.perf_map(), "evergreen");
        let verdict = Verdict::of(&recording.samples, "_dispatcher");
        verdict.is_named();
        let evergreen: usize = verdict
            .leaves
            .iter()
            .filter(|(leaf, _)| leaf.as_deref().is_some_and(|leaf| story::names(leaf, "evergreen")))
            .map(|(_, count)| count)
            .sum();
        assert!(evergreen * 100 >= verdict.jit * 95, "samples of evergreen have other names:\n{verdict}");
    }
}
