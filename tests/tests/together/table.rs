//! The support table, with one test for each pair of integration and consumer. Numba releases between the newest and
//! the oldest are tested with perf and one kind of gdb session only.

use jitlisten_tests::host::{self, Preload};
use jitlisten_tests::integration::Integration;
use jitlisten_tests::perf_map::{self, PerfMap};
use jitlisten_tests::scenario::{self, CHAIN, Verdict};
use jitlisten_tests::{gdb, perf, support_table};

/// Every sample has a name, 95 of 100 stacks are complete, and the perf map obeys every rule.
fn perf(integration: Integration) {
    let (Some(()), Some(host)) = (perf::is_available(), integration.chain(2, &[])) else { return };
    let recording = perf::record(&host, Preload::Library);
    let map = recording.perf_map();
    for function in CHAIN {
        assert!(map.named(function).next().is_some(), "the perf map does not name {function}:\n{}", map.names());
    }
    scenario::assert_samples_named(&recording.samples, &map, "gamma");
    Verdict::from_samples(&recording.samples, integration.caller_object()).assert_complete();
    support_table::record_cell(integration.row(), "perf map");
}

/// gdb attaches while compiled code runs.
fn gdb_attached(integration: Integration) {
    let (Some(()), Some(host)) = (gdb::is_available(), integration.chain(60, &[])) else { return };
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    // Between two calls of `gamma`, the host reads the clock.
    assert_backtrace(integration, &gdb::attach_in("gamma", &running));
    support_table::record_cell(integration.row(), "gdb");
}

/// gdb starts the process, so `__jit_debug_register_code` has a breakpoint from the start.
fn gdb_started(integration: Integration) {
    let (Some(()), Some(host)) = (gdb::is_available(), integration.chain(60, &["timer"])) else { return };
    let session = gdb::start(&host, Preload::Library);
    let map = session.pid.and_then(perf_map::take);
    assert_backtrace(integration, &session);
    assert_named(map.as_deref(), &session);
}

/// gdb starts a process with ORC, which registers an object only after its memory is final. Because of gdb's breakpoint
/// in `__jit_debug_register_code`, no hook of ours runs before the code does. gdb unwinds it, but the perf map gets it
/// only with the next object.
fn gdb_started_on_orc(integration: Integration) {
    let (Some(()), Some(host)) = (gdb::is_available(), integration.chain(60, &["timer"])) else { return };
    let session = gdb::start(&host, Preload::Library);
    let _ = session.pid.and_then(perf_map::take);
    assert_backtrace(integration, &session);
}

/// gdb attaches after LLVM is loaded and before anything is compiled. Its breakpoint replaces bytes of
/// `__jit_debug_register_code`, or of our hook there.
fn gdb_attached_before_the_first_compile(integration: Integration) {
    let (Some(()), Some(host)) = (gdb::is_available(), integration.chain(60, &["wait", "timer"])) else { return };
    let mut map = None;
    let session = gdb::repeat_until_in("gamma", || {
        let mut running = host.start(Preload::Library);
        running.wait_for_line("waiting");
        let session = gdb::attach_early(&mut running);
        map = perf_map::take(running.pid());
        session
    });
    assert_backtrace(integration, &session);
    assert_named(map.as_deref(), &session);
}

/// The program prints the same as without the library.
fn output(integration: Integration) {
    let Some(host) = integration.chain(0, &[]) else { return };
    let outcome = host::assert_same_output(&host).expect_success();
    assert!(outcome.perf_map().named("gamma").next().is_some());
}

fn assert_backtrace(integration: Integration, session: &gdb::Session) {
    if let Err(error) = scenario::check_backtrace(&session.backtrace, integration.caller_frame(), session.symbols) {
        panic!("{error}\ngdb said:\n{}", session.output);
    }
}

fn assert_named(map: Option<&[u8]>, session: &gdb::Session) {
    let map = map.unwrap_or_else(|| panic!("no perf map\ngdb said:\n{}", session.output));
    let map = PerfMap::parse(map).unwrap_or_else(|fault| panic!("perf map: {fault}"));
    for function in CHAIN {
        assert!(map.named(function).next().is_some(), "the perf map does not name {function}:\n{}", map.names());
    }
}

macro_rules! rows {
    ($($row:ident: $integration:expr => [$($consumer:ident),*];)*) => {
        $(mod $row {
            use super::Integration;
            $(#[test] fn $consumer() { super::$consumer($integration) })*
        })*
    };
}

rows! {
    numba_0_68_1: Integration::Numba("numba-0.68.1")
        => [output, perf, gdb_attached, gdb_started, gdb_attached_before_the_first_compile];
    numba_0_60_0: Integration::Numba("numba-0.60.0")
        => [perf, gdb_started];
    numba_0_57_1: Integration::Numba("numba-0.57.1")
        => [perf, gdb_attached_before_the_first_compile];
    numba_0_56_4: Integration::Numba("numba-0.56.4")
        => [output, perf, gdb_attached, gdb_started, gdb_attached_before_the_first_compile];
    lli_14_mcjit: Integration::Lli(14, &["--jit-kind=mcjit"])
        => [output, perf, gdb_attached, gdb_started];
    lli_14_orc_rtdyld: Integration::Lli(14, &["--jit-kind=orc", "--jit-linker=rtdyld"])
        => [output, perf, gdb_attached, gdb_started_on_orc];
    lli_22_mcjit: Integration::Lli(22, &["--jit-kind=mcjit"])
        => [output, perf, gdb_attached, gdb_started];
    lli_22_orc_rtdyld: Integration::Lli(22, &["--jit-kind=orc", "--jit-linker=rtdyld"])
        => [output, perf, gdb_attached, gdb_started_on_orc];
    lli_22_orc_jitlink: Integration::Lli(22, &["--jit-kind=orc", "--jit-linker=jitlink"])
        => [output, perf, gdb_attached, gdb_started_on_orc];
}

/// Control: the stock process must fail the tests that pass in the rows above.
mod stock {
    use super::*;

    const INTEGRATIONS: [Integration; 2] =
        [Integration::Numba("numba-0.68.1"), Integration::Lli(14, &["--jit-kind=mcjit"])];

    #[test]
    fn perf_finds_no_name_and_no_chain() {
        for integration in INTEGRATIONS {
            let (Some(()), Some(host)) = (perf::is_available(), integration.chain(2, &[])) else { continue };
            let recording = perf::record(&host, Preload::Nothing);
            assert_eq!(recording.map, None, "a stock process writes no perf map");
            let verdict = Verdict::from_samples(&recording.samples, integration.caller_object());
            verdict.assert_enough_samples();
            assert_eq!((verdict.unnamed, verdict.complete), (verdict.jit, 0), "{integration:?}:\n{verdict}");
        }
    }

    #[test]
    fn gdb_finds_no_way_out_of_numba_code() {
        let integration = INTEGRATIONS[0];
        let (Some(()), Some(host)) = (gdb::is_available(), integration.chain(60, &["timer"])) else { return };
        let session = gdb::start(&host, Preload::Nothing);
        // LLVM itself registers the name, but all outer frames are missing.
        assert!(
            session.backtrace.frames.first().is_some_and(|leaf| scenario::names_function(leaf, "gamma")),
            "{}",
            session.output
        );
        let check_result = scenario::check_backtrace(&session.backtrace, integration.caller_frame(), session.symbols);
        assert!(check_result.is_err(), "{:?}", session.backtrace);
    }
}
