//! `memray run --native` with its wheel's own copy of libunwind: native stacks of arrays that compiled code allocates.

use std::net::TcpListener;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::{integration, paths, tool};

const VENV: &str = "numba-0.60.0";

/// Counts of recorded allocations of the arrays' size.
struct AllocationCounts {
    total: u32,
    /// Allocations whose native stack is whole.
    whole_stacks: u32,
    /// Allocations whose stack names the compiled function.
    named_stacks: u32,
    /// Allocations whose stack has the Python line of the compiled function.
    stacks_with_lines: u32,
    /// Allocations whose stack has the inlined function with its own line.
    stacks_with_inlined: u32,
    /// True if the flame graph names the compiled function.
    in_report: bool,
}

fn record_allocations(preload: Preload, sinks: &str, with_lines: bool) -> Option<AllocationCounts> {
    let python = integration::python(VENV)?;
    let host = Host::new(&python, VENV).variable("JITLISTEN", sinks);
    let package = format!("{0}/tests/suites/with_lines:{0}/python", paths::root().display());
    let host = if with_lines { host.variable("PYTHONPATH", package) } else { host };
    let output = host.scratch("memray.bin");
    let host = host.arguments(["-m", "memray", "run", "--native", "-q", "-o"]);
    let host = host.argument(&output).argument(paths::host("allocates.py"));
    let _ = host.run(preload).expect_success();
    let reader_run = tool::run(Command::new(&python).arg(paths::host("memray_stacks.py")).arg(&output));
    let text = String::from_utf8_lossy(&reader_run.stdout).into_owned();
    let numbers: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [total, whole_stacks, named_stacks, stacks_with_lines, stacks_with_inlined] = numbers[..] else {
        panic!("{text}{}", String::from_utf8_lossy(&reader_run.stderr))
    };
    assert!(total >= 80, "{total} of 80 allocations were recorded");
    let report = host.scratch("memray.html");
    let mut flamegraph = Command::new(python);
    let _ = tool::run(flamegraph.args(["-m", "memray", "flamegraph", "-o"]).arg(&report).arg(&output));
    let report = std::fs::read_to_string(report).expect("memray writes a report");
    Some(AllocationCounts {
        total,
        whole_stacks,
        named_stacks,
        stacks_with_lines,
        stacks_with_inlined,
        in_report: report.contains("__main__::total"),
    })
}

#[test]
fn native_frames_are_back() {
    let Some(stock) = record_allocations(Preload::Nothing, "", false) else { return };
    let Some(preloaded) = record_allocations(Preload::Library, "perfmap,unwind", false) else { return };
    assert_eq!(stock.whole_stacks, 0, "memray sees these frames on its own: this proves nothing");
    assert_eq!(preloaded.whole_stacks, preloaded.total, "stacks that end in compiled code");
}

/// All functions are compiled after memray has started, so its list of modules is stale and must be read again.
#[test]
fn compiled_functions_have_names() {
    let Some(without_sink) = record_allocations(Preload::Library, "image,unwind", false) else { return };
    let Some(with_sink) = record_allocations(Preload::Library, "image,unwind,modules", false) else { return };
    assert!(
        without_sink.named_stacks == 0 && !without_sink.in_report,
        "they have names without it: this proves nothing"
    );
    assert_eq!(
        (with_sink.whole_stacks, with_sink.named_stacks),
        (with_sink.total, with_sink.total),
        "stacks with the function's name"
    );
    assert!(with_sink.in_report, "the flame graph has no name");
}

#[test]
fn compiled_functions_have_python_lines_and_inlined_callees() {
    let Some(with_lines) = record_allocations(Preload::Library, "image,unwind,modules", true) else { return };
    assert_eq!(
        (with_lines.whole_stacks, with_lines.named_stacks),
        (with_lines.total, with_lines.total),
        "stacks with the function's name"
    );
    assert_eq!(
        (with_lines.stacks_with_lines, with_lines.stacks_with_inlined),
        (with_lines.total, with_lines.total),
        "of so many stacks"
    );
    let Some(without_lines) = record_allocations(Preload::Library, "image,unwind,modules", false) else { return };
    assert_eq!(
        (without_lines.stacks_with_lines, without_lines.stacks_with_inlined),
        (0, 0),
        "there are lines without lines: this proves nothing"
    );
}

/// Reads stacks of live allocations while the program runs, as `memray live` does.
#[test]
fn compiled_functions_have_names_while_the_program_runs() {
    let Some(python) = integration::python(VENV) else { return };
    let count_named = |sinks: &str| {
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port();
        let port = port.to_string();
        let host = Host::new(&python, VENV).variable("JITLISTEN", sinks);
        let args = ["-m", "memray", "run", "--native", "-q", "--live-remote", "-p", &port];
        let host = host.arguments(args);
        let host = host.argument(paths::host("allocates.py")).argument("keeps");
        // With `--live-remote`, the host waits for a client.
        let mut running = host.start(Preload::Library);
        let reader_run = tool::run(Command::new(&python).arg(paths::host("memray_live.py")).arg(&port));
        let text = String::from_utf8_lossy(&reader_run.stdout).into_owned();
        running.wait_for_line("kept");
        running.send_newline();
        let _ = running.wait().expect_success();
        let numbers: Vec<u32> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [total, named_stacks] = numbers[..] else {
            panic!("{text}{}", String::from_utf8_lossy(&reader_run.stderr))
        };
        assert_eq!(total, 5, "arrays that are kept");
        named_stacks
    };
    assert_eq!([count_named("image,unwind"), count_named("image,unwind,modules")], [0, 5]);
}
