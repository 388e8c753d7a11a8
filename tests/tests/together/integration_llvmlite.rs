//! The patched llvmlite of `integrations/llvmlite`, which loads the library itself. Nothing is preloaded.

use std::fs;
use std::path::Path;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::linked::LinkedIntegration;
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::scenario::{self, CHAIN, Verdict};
use jitlisten_tests::{integration, jitdump_reader, machine_code, paths, perf, support_table, walk};

const VENV: &str = "numba-0.68.1-patched";

/// Host that runs a program with the patched llvmlite, which loads the library under test.
fn patched_host(program: &str) -> Option<Host> {
    let libraries = paths::library().parent()?.to_owned();
    Some(integration::numba(VENV, program)?.variable("LD_LIBRARY_PATH", libraries))
}

fn chain(seconds: u32, args: &[&str]) -> Option<Host> {
    let host = patched_host("chain.py")?.argument(seconds.to_string()).variable("NUMBA_ENABLE_PROFILING", "1");
    Some(host.arguments(args))
}

const NUMBA: LinkedIntegration = LinkedIntegration {
    name: "patched llvmlite",
    host: chain,
    caller_object: "_dispatcher",
    caller_frame: "Dispatcher_call",
};

#[test]
fn perf_map() {
    NUMBA.check_perf_map();
}

#[test]
fn jitdump() {
    NUMBA.check_jitdump();
}

#[test]
fn image() {
    NUMBA.check_image();
}

#[test]
fn gdb() {
    NUMBA.check_gdb();
}

/// Numbers of samples and of complete walks for each unwinder.
fn walk_counts(configure: impl Fn(Host) -> Host) -> Option<Vec<(String, u32, u32)>> {
    let program = patched_host("walked.py")?;
    let walker = walk::compile_walker(&program)?;
    let outcome =
        configure(program.argument(walker).argument("1").argument("early")).run(Preload::Nothing).expect_success();
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let parse_counts = |lines: &[&str]| {
        let mut fields = lines.first()?.split_ascii_whitespace();
        Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    let walk_counts: Vec<_> = lines.chunks(2).filter_map(parse_counts).collect();
    assert_eq!(walk_counts.len(), walk::UNWINDERS.len(), "{}", outcome.stderr);
    Some(walk_counts)
}

#[test]
fn both_unwinders_walk_to_the_start() {
    let Some(walk_counts) = walk_counts(|host| host.variable("NUMBA_ENABLE_PROFILING", "1")) else { return };
    for (unwinder, samples, complete) in walk_counts {
        assert!(samples >= 20 && samples == complete, "{unwinder}: {complete} of {samples}");
        support_table::record_cell(NUMBA.name, &unwinder);
    }
}

/// The tests that are part of the patch.
#[test]
fn the_patchs_own_tests() {
    let (Some(python), Some(libraries)) = (integration::python(VENV), paths::library().parent().map(Path::to_owned))
    else {
        return;
    };
    let host = Host::new(python, "llvmlite-tests").variable("LD_LIBRARY_PATH", libraries);
    let host = host.arguments(["-m", "unittest", "llvmlite.tests.test_jitevents"]);
    let stderr = host.run(Preload::Nothing).expect_success().stderr;
    assert!(stderr.contains("Ran 4 tests") && !stderr.contains("skipped"), "{stderr}");
}

/// The library is loaded when it is first asked for, and llvmlite works without it. The file hides an installed one.
#[test]
fn without_the_library_it_works() {
    let Some(host) = integration::numba(VENV, "chain.py") else { return };
    let directory = host.scratch("no-library");
    fs::create_dir_all(&directory).expect("a directory");
    fs::write(directory.join("libjitlisten.so"), "no library").expect("a file");
    let host = host.argument("0").variable("LD_LIBRARY_PATH", directory).variable("NUMBA_ENABLE_PROFILING", "1");
    let outcome = host.run(Preload::Nothing).expect_success();
    assert_eq!(outcome.map, None);
}

/// Control: the patched llvmlite with everything switched off.
#[test]
fn without_a_request_it_does_nothing() {
    let Some(host) = chain(1, &[]) else { return };
    let outcome = host.variable("NUMBA_ENABLE_PROFILING", "0").run(Preload::Nothing).expect_success();
    assert_eq!(outcome.map, None, "other_user has asked for a perf map");
    let Some(walk_counts) = walk_counts(|host| host) else { return };
    for (unwinder, samples, complete) in walk_counts {
        assert!(samples >= 20 && complete == 0, "{unwinder}: {complete} of {samples}: the other tests prove nothing");
    }
}

#[test]
fn switched_off_it_does_nothing() {
    let Some(host) = chain(0, &[]) else { return };
    let outcome = host.variable("JITLISTEN", "off").run(Preload::Nothing).expect_success();
    assert_eq!(outcome.map, None);
}

/// The shim detects every object in `__jit_debug_register_code`, and the listener detects the same objects through LLVM
/// itself.
#[test]
fn linked_and_preloaded_nothing_is_doubled() {
    let names = |map: &PerfMap| {
        let mut names: Vec<String> = map.entries.iter().map(|entry| entry.name.clone()).collect();
        names.sort();
        names
    };
    let (Some(linked), Some(combined)) = (chain(0, &[]), chain(0, &[])) else { return };
    let (linked, combined) =
        (linked.run(Preload::Nothing).expect_success(), combined.run(Preload::Library).expect_success());
    assert_eq!(linked.stdout, combined.stdout);
    // Two overlapping entries would break a rule of the perf map reader.
    let (linked, combined) = (linked.perf_map(), combined.perf_map());
    for function in CHAIN {
        assert_eq!(linked.named(function).count(), combined.named(function).count(), "{function}");
    }
    let (linked, combined) = (names(&linked), names(&combined));
    assert!(
        linked.iter().all(|name| combined.contains(name)),
        "the listener reports more than both:\n{linked:#?}\n{combined:#?}"
    );
}

#[test]
fn linked_and_preloaded_the_jitdump_has_every_function_once() {
    let Some(host) = chain(0, &[]) else { return };
    let host = host.variable("JITLISTEN", "jitdump");
    let _ = host.run(Preload::Library).expect_success();
    let dumps = jitdump_reader::find(&host.scratch("."));
    assert_eq!(dumps.len(), 1, "{}", host.log());
    let dump = jitdump_reader::read(&dumps[0]);
    let mut starts: Vec<u64> = dump.functions.iter().map(|function| function.address).collect();
    let total = starts.len();
    starts.sort_unstable();
    starts.dedup();
    assert!(total >= 3 && starts.len() == total, "{} addresses of {total} functions", starts.len());
}

fn orc(linker: &str, seconds: &str) -> Option<Host> {
    Some(patched_host("orc.py")?.argument(seconds).argument(linker))
}

/// Checks LLJIT with either linker. Stock llvmlite does not register objects that JITLink links.
#[test]
fn orc_is_discovered_with_rtdyld_and_with_jitlink() {
    for linker in ["rtdyld", "jitlink"] {
        let (Some(()), Some(host)) = (perf::is_available(), orc(linker, "2")) else { continue };
        let recording = perf::record(&host.variable("JITLISTEN", "perfmap"), Preload::Nothing);
        scenario::assert_samples_named(&recording.samples, &recording.perf_map(), "gamma");
        Verdict::from_samples(&recording.samples, "libffi").assert_complete();
    }
}

#[test]
fn frame_pointers_are_kept_as_requested() {
    for linker in ["rtdyld", "jitlink"] {
        for (policy, expected) in [("1", true), ("0", false), ("untouched", false)] {
            let Some(host) = orc(linker, "0") else { continue };
            let host = host.variable("JITLISTEN", "perfmap").variable("JITLISTEN_FRAME_POINTERS", policy);
            let outcome = host.run(Preload::Nothing).expect_success();
            let code = machine_code::from_hex(outcome.stderr.trim());
            assert_eq!(machine_code::keeps_frame_pointer(&code), expected, "{linker}, {policy}: {}", outcome.stderr);
        }
    }
}

/// When an engine is closed, its names are dropped, and the next engine reuses its addresses.
#[test]
fn a_closed_engines_name_does_not_outlive_it() {
    let (Some(()), Some(host)) = (perf::is_available(), patched_host("closed_engine.py")) else { return };
    let host = host.argument("1").variable("CLOSED_ENGINE_JIT_EVENTS", "1");
    let recording = perf::record(&host, Preload::Nothing);
    let verdict = Verdict::from_samples(&recording.samples, "libffi");
    verdict.assert_named();
    let has_samples = |function| verdict.leaves.keys().flatten().any(|leaf| scenario::names_function(leaf, function));
    assert!(!has_samples("outdated"), "a closed engine's function is said to run:\n{verdict}");
    assert!(has_samples("current") && has_samples("survivor"), "{verdict}");
}

#[test]
fn the_program_notices_nothing() {
    let (Some(disabled), Some(enabled)) = (chain(0, &[]), chain(0, &[])) else { return };
    let disabled = disabled.variable("NUMBA_ENABLE_PROFILING", "0").variable("NUMBA_DEBUGINFO", "1");
    let (disabled, enabled) =
        (disabled.run(Preload::Nothing).expect_success(), enabled.run(Preload::Nothing).expect_success());
    assert_eq!((disabled.stdout, disabled.stderr), (enabled.stdout, enabled.stderr));
}
