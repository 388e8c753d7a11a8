//! Environment variables with valid and invalid values.

use jitlisten_tests::host::{self, Host, Preload};
use jitlisten_tests::log::{self, LogEvent};
use jitlisten_tests::scenario::{self, Verdict};
use jitlisten_tests::{gdb, integration, machine_code, perf};

const VENV: &str = "numba-0.68.1";

fn chain(seconds: &str) -> Option<Host> {
    Some(integration::numba(VENV, "chain.py")?.argument(seconds))
}

/// Asserts that an invalid value does not affect the program and adds one line to the log.
fn assert_logged_once(variable: &str, value: &str, log_part: &str) {
    let Some(host) = chain("0") else { return };
    let host = host.variable(variable, value);
    let outcome = host::assert_same_output(&host).expect_success();
    assert!(outcome.perf_map().named("gamma").next().is_some(), "the perf map suffers from {variable}={value}");
    let log = host.log();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains(variable) && log.contains(log_part), "{log}");
}

#[test]
fn an_unknown_sink() {
    assert_logged_once("JITLISTEN", "perfmap,nonsense", "nonsense");
}

#[test]
fn only_an_unknown_sink() {
    assert_logged_once("JITLISTEN", "nonsense", "nonsense");
}

#[test]
fn a_missing_directory() {
    assert_logged_once("JITLISTEN_DIR", "/nonexistent/directory", "/nonexistent/directory");
}

#[test]
fn an_unknown_word_for_frame_pointers() {
    assert_logged_once("JITLISTEN_FRAME_POINTERS", "perhaps", "perhaps");
}

#[test]
fn a_log_that_cannot_be_written() {
    let Some(host) = chain("0") else { return };
    let host = host.variable("JITLISTEN_LOG", "/nonexistent/log").variable("JITLISTEN", "nonsense,perfmap");
    assert!(host::assert_same_output(&host).expect_success().perf_map().named("gamma").next().is_some());
}

#[test]
fn a_log_on_standard_error() {
    let Some(host) = chain("0") else { return };
    let outcome = host
        .variable("JITLISTEN_LOG", "stderr")
        .variable("JITLISTEN", "nonsense")
        .run(Preload::Library)
        .expect_success();
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("nonsense"), "{}", outcome.stderr);
}

#[test]
fn off_is_off() {
    let Some(host) = chain("0") else { return };
    let host = host.variable("JITLISTEN", "off");
    let outcome = host::assert_same_output(&host).expect_success();
    assert_eq!(outcome.map, None);
    assert_eq!(host.log(), "");
}

#[test]
fn all_includes_the_perf_map() {
    let Some(host) = chain("0") else { return };
    let outcome = host::assert_same_output(&host.variable("JITLISTEN", "all")).expect_success();
    assert!(outcome.perf_map().named("gamma").next().is_some());
}

#[test]
fn unwind_tables_alone_serve_gdb_and_cost_no_frame_pointer() {
    let Some(host) = chain("60") else { return };
    let host = host.argument("timer").variable("JITLISTEN_FRAME_POINTERS", "0");
    if gdb::is_available().is_some() {
        let session = gdb::start(&host, Preload::Library);
        let _ = session.pid.and_then(jitlisten_tests::perf_map::take);
        let check_result = scenario::check_backtrace(&session.backtrace, "Dispatcher_call", session.symbols);
        assert!(check_result.is_ok(), "{}\n{}", check_result.unwrap_err(), session.output);
    }
    let (Some(()), Some(host)) = (perf::is_available(), chain("2")) else { return };
    let recording = perf::record(&host.variable("JITLISTEN_FRAME_POINTERS", "0"), Preload::Library);
    let verdict = Verdict::from_samples(&recording.samples, "_dispatcher");
    verdict.assert_named();
    assert_eq!(verdict.complete, 0, "the code has frame pointers after all");
}

#[test]
fn untouched_code_is_named_and_not_changed() {
    let (Some(()), Some(host)) = (perf::is_available(), chain("2")) else { return };
    let recording = perf::record(&host.variable("JITLISTEN_FRAME_POINTERS", "untouched"), Preload::Library);
    let verdict = Verdict::from_samples(&recording.samples, "_dispatcher");
    verdict.assert_named();
    assert_eq!(verdict.complete, 0, "the code has frame pointers");
    let (Some(()), Some(host)) = (gdb::is_available(), chain("60")) else { return };
    let host = host.argument("timer").variable("JITLISTEN_FRAME_POINTERS", "untouched");
    let session = gdb::start(&host, Preload::Library);
    let _ = session.pid.and_then(jitlisten_tests::perf_map::take);
    let check_result = scenario::check_backtrace(&session.backtrace, "Dispatcher_call", session.symbols);
    assert!(check_result.is_err(), "the code has unwind tables");
}

/// If LLVM is disabled, functions that llvmlite compiles are also left as llvmlite generates them.
#[test]
fn code_of_an_llvm_that_is_switched_off_is_not_changed() {
    let keeps_pointer = |hex_code: &str| machine_code::keeps_frame_pointer(&machine_code::from_hex(hex_code.trim()));
    for linker in ["rtdyld", "jitlink"] {
        let Some(host) = integration::numba(VENV, "orc.py") else { return };
        let host = host.argument("0").argument(linker);
        let preloaded_outcome = host.run(Preload::Library).expect_success();
        assert!(keeps_pointer(&preloaded_outcome.stderr), "{}", preloaded_outcome.stderr);
        let host = host.variable("JITLISTEN_LLVM", "off").variable("JITLISTEN_LOG", "info:log");
        let (stock, outcome) =
            (host.run(Preload::Nothing).expect_success(), host.run(Preload::Library).expect_success());
        assert_eq!(stock.stdout, outcome.stdout);
        assert!(
            !keeps_pointer(&stock.stderr) && !keeps_pointer(&outcome.stderr) && outcome.map.is_none(),
            "{}",
            outcome.stderr
        );
        let is_change = |event: &LogEvent<'_>| matches!(event, LogEvent::CodeChanged { .. });
        assert_eq!(log::count(&host.log(), is_change), 0, "{}", host.log());
    }
}
