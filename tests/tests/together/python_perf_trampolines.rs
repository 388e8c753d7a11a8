//! `python -X perf` (3.12 and newer) and we write one perf map: Python's names and Numba's in one report.

use jitlisten_tests::host::{self, Host, Preload};
use jitlisten_tests::perf::{self, Recording};
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::scenario;
use jitlisten_tests::{integration, paths};

#[test]
fn python_and_numba_names_in_one_report() {
    let Some(python) = integration::python("numba-0.68.1-python-3.12") else { return };
    let host = Host::new(python, "python-perf").argument("-Xperf").argument(paths::host("python_perf.py"));
    let host = host.argument("8");
    let Some(()) = perf::is_here() else { return };
    let recording = perf::record(&host, Preload::Library);

    let bytes = recording.map.clone().expect("CPython alone writes a map");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (python, ours): (Vec<&str>, Vec<&str>) = text.split_inclusive('\n').partition(|line| line.contains(" py::"));
    assert!(python.iter().any(|line| line.contains("py::python_inner")), "CPython's entries are lost");
    let ours = PerfMap::parse(ours.concat().as_bytes()).unwrap_or_else(|fault| panic!("our entries: {fault}"));

    scenario::every_sample_is_named(&recording.samples, &ours, "gamma");
    // In one stack only where the interpreter keeps frame pointers; in one report everywhere. A trampoline is eleven
    // bytes long, so a recording may miss all of them.
    let met = |recording: &Recording| {
        let frames = recording.samples.iter().flat_map(|sample| &sample.frames);
        frames.filter_map(|frame| frame.symbol.as_deref()).any(|name| name.starts_with("py::python_"))
    };
    let again = || (0..4).any(|_| met(&perf::record(&host, Preload::Library)));
    assert!(met(&recording) || again(), "perf met no Python function in five recordings");
}

#[test]
fn output_is_the_same() {
    let Some(python) = integration::python("numba-0.68.1-python-3.12") else { return };
    let host = Host::new(python, "python-perf").argument(paths::host("python_perf.py")).argument("0");
    host::same_output(&host).well();
}
