//! Frame pointers of the interpreter: from 3.15 on, Python is built with them. `perf record -g` must show the whole
//! stack, from compiled code to the C library function that called `main`.

use jitlisten_tests::host::Preload;
use jitlisten_tests::integration::Integration;
use jitlisten_tests::perf_script::Sample;
use jitlisten_tests::{perf, scenario};

/// Functions that `main` calls first. Even a stripped interpreter has symbols for them.
const START_FUNCTIONS: [&str; 2] = ["Py_RunMain", "Py_BytesMain"];

fn is_whole(sample: &Sample) -> bool {
    let has_frame = |name: &str| sample.frames.iter().any(|frame| frame.symbol.as_deref() == Some(name));
    scenario::begins_with_chain(&sample.frames) && START_FUNCTIONS.into_iter().all(has_frame)
}

fn count_stacks(preload: Preload) -> Option<(usize, usize)> {
    let (Some(()), Some(host)) = (perf::is_available(), Integration::Numba("numba-0.68.1").chain(2, &[])) else {
        return None;
    };
    let samples = perf::record(&host, preload).samples;
    let jit_samples: Vec<_> =
        samples.iter().filter(|sample| sample.frames.first().is_some_and(scenario::is_jit)).collect();
    Some((jit_samples.len(), jit_samples.iter().filter(|sample| is_whole(sample)).count()))
}

/// `ci/systems.sh sid` runs this test with Debian unstable's Python 3.15.
#[test]
#[ignore = "needs a Python that was built with frame pointers: 3.15"]
fn whole_chains_down_to_main() {
    let Some((samples, complete)) = count_stacks(Preload::Library) else { return };
    assert!(samples >= 150 && complete * 100 >= samples * 95, "{complete} of {samples}");
    let Some((samples, complete)) = count_stacks(Preload::Nothing) else { return };
    assert!(samples >= 150 && complete == 0, "{complete} of {samples}: the check must be able to say no");
}
