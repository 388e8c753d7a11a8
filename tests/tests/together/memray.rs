//! `memray run --native` with the wheel's own copy of libunwind: the native frames of arrays made in compiled code.

use std::net::TcpListener;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::{integration, paths, tool};

const VENV: &str = "numba-0.60.0";

/// Allocations of the arrays' size.
struct Recorded {
    all: u32,
    /// Those whose native stack is whole.
    whole: u32,
    /// Those that have the compiled function by name.
    named: u32,
    /// Those that have it with its Python line.
    lines: u32,
    /// Those that have the function that was put in line, with its own.
    inlined: u32,
    /// Whether the flame graph has it.
    in_report: bool,
}

fn recorded(preload: Preload, sinks: &str, with_lines: bool) -> Option<Recorded> {
    let python = integration::python(VENV)?;
    let host = Host::new(&python, VENV).variable("JITLISTEN", sinks);
    let package = format!("{0}/tests/suites/with_lines:{0}/python", paths::root().display());
    let host = if with_lines { host.variable("PYTHONPATH", package) } else { host };
    let output = host.scratch("memray.bin");
    let host = ["-m", "memray", "run", "--native", "-q", "-o"].iter().fold(host, |host, word| host.argument(word));
    let host = host.argument(&output).argument(paths::host("allocates.py"));
    let _ = host.run(preload).well();
    let read = tool::run(Command::new(&python).arg(paths::host("memray_stacks.py")).arg(&output));
    let said = String::from_utf8_lossy(&read.stdout).into_owned();
    let numbers: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [all, whole, named, lines, inlined] = numbers[..] else {
        panic!("{said}{}", String::from_utf8_lossy(&read.stderr))
    };
    assert!(all >= 80, "{all} of 80 allocations were recorded");
    let report = host.scratch("memray.html");
    let mut flamegraph = Command::new(python);
    let _ = tool::run(flamegraph.args(["-m", "memray", "flamegraph", "-o"]).arg(&report).arg(&output));
    let report = std::fs::read_to_string(report).expect("memray writes a report");
    Some(Recorded { all, whole, named, lines, inlined, in_report: report.contains("__main__::total") })
}

#[test]
fn native_frames_are_back() {
    let Some(stock) = recorded(Preload::Nothing, "", false) else { return };
    let Some(ours) = recorded(Preload::Library, "perfmap,unwind", false) else { return };
    assert_eq!(stock.whole, 0, "memray sees these frames on its own: this proves nothing");
    assert_eq!(ours.whole, ours.all, "stacks that end in compiled code");
}

/// All of it is compiled after memray has begun: its list of modules is old by then, and has to be read again.
#[test]
fn compiled_functions_have_names() {
    let Some(without) = recorded(Preload::Library, "image,unwind", false) else { return };
    let Some(ours) = recorded(Preload::Library, "image,unwind,modules", false) else { return };
    assert!(without.named == 0 && !without.in_report, "they have names without it: this proves nothing");
    assert_eq!((ours.whole, ours.named), (ours.all, ours.all), "stacks with the function's name");
    assert!(ours.in_report, "the flame graph has no name");
}

#[test]
fn compiled_functions_have_python_lines_and_inlined_callees() {
    let Some(ours) = recorded(Preload::Library, "image,unwind,modules", true) else { return };
    assert_eq!((ours.whole, ours.named), (ours.all, ours.all), "stacks with the function's name");
    assert_eq!((ours.lines, ours.inlined), (ours.all, ours.all), "of so many stacks");
    let Some(without) = recorded(Preload::Library, "image,unwind,modules", false) else { return };
    assert_eq!((without.lines, without.inlined), (0, 0), "there are lines without lines: this proves nothing");
}

/// As `memray live` shows it: the stacks of what is allocated now, read while the program runs.
#[test]
fn compiled_functions_have_names_while_the_program_runs() {
    let Some(python) = integration::python(VENV) else { return };
    let named = |sinks: &str| {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
        let port = port.to_string();
        let host = Host::new(&python, VENV).variable("JITLISTEN", sinks);
        let words = ["-m", "memray", "run", "--native", "-q", "--live-remote", "-p", &port];
        let host = words.iter().fold(host, |host, word| host.argument(word));
        let host = host.argument(paths::host("allocates.py")).argument("keeps");
        // It waits for the one who looks.
        let mut running = host.start(Preload::Library);
        let read = tool::run(Command::new(&python).arg(paths::host("memray_live.py")).arg(&port));
        let said = String::from_utf8_lossy(&read.stdout).into_owned();
        running.wait_for_line("kept");
        running.nod();
        let _ = running.end().well();
        let numbers: Vec<u32> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [all, named] = numbers[..] else { panic!("{said}{}", String::from_utf8_lossy(&read.stderr)) };
        assert_eq!(all, 5, "arrays that are kept");
        named
    };
    assert_eq!([named("image,unwind"), named("image,unwind,modules")], [0, 5]);
}
