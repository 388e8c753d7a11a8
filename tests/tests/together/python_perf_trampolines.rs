//! `python -X perf` (3.12 and newer) and the library write the same perf map, so one report contains Python's names and
//! Numba's.

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
    let Some(()) = perf::is_available() else { return };
    let recording = perf::record(&host, Preload::Library);

    let bytes = recording.map.clone().expect("CPython alone writes a map");
    let text = String::from_utf8(bytes).expect("UTF-8");
    let (python_lines, our_map): (Vec<&str>, Vec<&str>) =
        text.split_inclusive('\n').partition(|line| line.contains(" py::"));
    assert!(python_lines.iter().any(|line| line.contains("py::python_inner")), "CPython's entries are lost");
    let our_map = PerfMap::parse(our_map.concat().as_bytes()).unwrap_or_else(|fault| panic!("our entries: {fault}"));

    scenario::assert_samples_named(&recording.samples, &our_map, "gamma");
    // The names of Python functions and of compiled functions are always in one report, but in one stack only if the
    // interpreter keeps frame pointers. A trampoline is eleven bytes long, so a recording may miss all of them.
    let has_python_function = |recording: &Recording| {
        let frames = recording.samples.iter().flat_map(|sample| &sample.frames);
        frames.filter_map(|frame| frame.symbol.as_deref()).any(|name| name.starts_with("py::python_"))
    };
    let retry = || (0..4).any(|_| has_python_function(&perf::record(&host, Preload::Library)));
    assert!(has_python_function(&recording) || retry(), "perf met no Python function in five recordings");
}

#[test]
fn output_is_the_same() {
    let Some(python) = integration::python("numba-0.68.1-python-3.12") else { return };
    let host = Host::new(python, "python-perf").argument(paths::host("python_perf.py")).argument("0");
    host::assert_same_output(&host).expect_success();
}
