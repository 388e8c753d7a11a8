//! Closes an engine while other engines live, so that the next engine reuses its address.

use jitlisten_tests::host::Preload;
use jitlisten_tests::scenario::{self, Verdict};
use jitlisten_tests::{integration, perf};

#[test]
fn a_closed_engines_name_does_not_outlive_it() {
    for venv in ["numba-0.68.1", "numba-0.60.0"] {
        let Some(host) = integration::numba(venv, "closed_engine.py") else { continue };
        let host = host.argument("1");
        let (stock, preloaded) =
            (host.run(Preload::Nothing).expect_success(), host.run(Preload::Library).expect_success());
        assert_eq!(stock.stdout, preloaded.stdout);
        // The addresses that are reused may differ with and without the library.
        assert_eq!(stock.stderr, "reused\n", "without an address used again this proves nothing");
        assert!(matches!(preloaded.stderr.as_str(), "reused\n" | "fresh\n"), "{}", preloaded.stderr);
        let Some(()) = perf::is_available() else { continue };
        let recording = perf::record(&host, Preload::Library);
        let verdict = Verdict::from_samples(&recording.samples, "libffi");
        verdict.assert_named();
        for leaf in verdict.leaves.keys().flatten() {
            assert!(
                !scenario::names_function(leaf, "outdated"),
                "a closed engine's function is said to run:\n{verdict}"
            );
        }
        for function in ["current", "survivor"] {
            scenario::assert_samples_named(&recording.samples, &recording.perf_map(), function);
        }
    }
}
