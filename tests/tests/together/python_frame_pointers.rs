//! From Python 3.15 on the interpreter keeps frame pointers: `perf record -g` shows the whole stack, from compiled code
//! down to what the C library calls.

use jitlisten_tests::host::Preload;
use jitlisten_tests::integration::Integration;
use jitlisten_tests::perf_script::Sample;
use jitlisten_tests::{perf, scenario};

/// The last functions of the interpreter before `main` that a stripped one still has names for.
const START: [&str; 2] = ["Py_RunMain", "Py_BytesMain"];

fn whole(sample: &Sample) -> bool {
    let named = |frame: &str| sample.frames.iter().any(|found| found.symbol.as_deref() == Some(frame));
    scenario::begins_with_chain(&sample.frames) && START.into_iter().all(named)
}

fn recorded(preload: Preload) -> Option<(usize, usize)> {
    let (Some(()), Some(host)) = (perf::is_here(), Integration::Numba("numba-0.68.1").chain(2, &[])) else {
        return None;
    };
    let samples = perf::record(&host, preload).samples;
    let inside: Vec<_> = samples.iter().filter(|sample| sample.frames.first().is_some_and(scenario::is_jit)).collect();
    Some((inside.len(), inside.iter().filter(|sample| whole(sample)).count()))
}

/// `ci/systems.sh sid` runs it with the Python 3.15 of Debian unstable.
#[test]
#[ignore = "needs a Python that was built with frame pointers: 3.15"]
fn whole_chains_down_to_main() {
    let Some((samples, complete)) = recorded(Preload::Library) else { return };
    assert!(samples >= 150 && complete * 100 >= samples * 95, "{complete} of {samples}");
    let Some((samples, complete)) = recorded(Preload::Nothing) else { return };
    assert!(samples >= 150 && complete == 0, "{complete} of {samples}: the check must be able to say no");
}
