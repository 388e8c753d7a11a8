//! The patched llvmlite of `integrations/llvmlite`: linked with the library, nothing preloaded.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::linked::Linked;
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::scenario::{self, CHAIN, Verdict};
use jitlisten_tests::{integration, jitdump_reader, machine_code, paths, perf, support_table, walk};

const VENV: &str = "numba-0.68.1-patched";

/// A program on the patched llvmlite, which finds the library under test wherever it was when llvmlite was built.
fn patched(program: &str) -> Option<Host> {
    let libraries = paths::library().parent()?.to_owned();
    Some(integration::numba(VENV, program)?.variable("LD_LIBRARY_PATH", libraries))
}

fn chain(seconds: u32, words: &[&str]) -> Option<Host> {
    let host = patched("chain.py")?.argument(seconds.to_string()).variable("NUMBA_ENABLE_PROFILING", "1");
    Some(words.iter().fold(host, |host, word| host.argument(word)))
}

const NUMBA: Linked =
    Linked { name: "patched llvmlite", host: chain, caller_object: "_dispatcher", caller_frame: "Dispatcher_call" };

#[test]
fn perf_map() {
    NUMBA.perf_map();
}

#[test]
fn jitdump() {
    NUMBA.jitdump();
}

#[test]
fn image() {
    NUMBA.image();
}

#[test]
fn gdb() {
    NUMBA.gdb();
}

/// Samples, and walks that reached the start, of each unwinder.
fn walked(host: impl Fn(Host) -> Host) -> Option<Vec<(String, u32, u32)>> {
    let program = patched("walked.py")?;
    let walker = walk::walker(&program)?;
    let ended = host(program.argument(walker).argument("1").argument("early")).run(Preload::Nothing).well();
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let said = |lines: &[&str]| {
        let mut words = lines.first()?.split_ascii_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let walked: Vec<_> = lines.chunks(2).filter_map(said).collect();
    assert_eq!(walked.len(), walk::UNWINDERS.len(), "{}", ended.stderr);
    Some(walked)
}

#[test]
fn both_unwinders_walk_to_the_start() {
    let Some(walked) = walked(|host| host.variable("NUMBA_ENABLE_PROFILING", "1")) else { return };
    for (unwinder, samples, complete) in walked {
        assert!(samples >= 20 && samples == complete, "{unwinder}: {complete} of {samples}");
        support_table::seen(NUMBA.name, &unwinder);
    }
}

/// The control: the same llvmlite, with nothing switched on.
#[test]
fn unasked_it_does_nothing() {
    let Some(host) = chain(1, &[]) else { return };
    let ended = host.variable("NUMBA_ENABLE_PROFILING", "0").run(Preload::Nothing).well();
    assert_eq!(ended.map, None, "other_user has asked for a perf map");
    let Some(walked) = walked(|host| host) else { return };
    for (unwinder, samples, complete) in walked {
        assert!(samples >= 20 && complete == 0, "{unwinder}: {complete} of {samples}: the other tests prove nothing");
    }
}

#[test]
fn switched_off_it_does_nothing() {
    let Some(host) = chain(0, &[]) else { return };
    let ended = host.variable("JITLISTEN", "off").run(Preload::Nothing).well();
    assert_eq!(ended.map, None);
}

/// Both detect every object: the shim in `__jit_debug_register_code`, the listener from LLVM itself.
#[test]
fn linked_and_preloaded_nothing_is_doubled() {
    let names = |map: &PerfMap| {
        let mut names: Vec<String> = map.entries.iter().map(|entry| entry.name.clone()).collect();
        names.sort();
        names
    };
    let (Some(linked), Some(both)) = (chain(0, &[]), chain(0, &[])) else { return };
    let (linked, both) = (linked.run(Preload::Nothing).well(), both.run(Preload::Library).well());
    assert_eq!(linked.stdout, both.stdout);
    // Two entries over one byte would break a rule of the reader.
    let (linked, both) = (linked.perf_map(), both.perf_map());
    for function in CHAIN {
        assert_eq!(linked.named(function).count(), both.named(function).count(), "{function}");
    }
    let (linked, both) = (names(&linked), names(&both));
    assert!(
        linked.iter().all(|name| both.contains(name)),
        "the listener reports more than both:\n{linked:#?}\n{both:#?}"
    );
}

#[test]
fn linked_and_preloaded_the_jitdump_has_every_function_once() {
    let Some(host) = chain(0, &[]) else { return };
    let host = host.variable("JITLISTEN", "jitdump");
    let _ = host.run(Preload::Library).well();
    let dumps = jitdump_reader::find(&host.scratch("."));
    assert_eq!(dumps.len(), 1, "{}", host.log());
    let dump = jitdump_reader::read(&dumps[0]);
    let mut starts: Vec<u64> = dump.functions.iter().map(|function| function.address).collect();
    let all = starts.len();
    starts.sort_unstable();
    starts.dedup();
    assert!(all >= 3 && starts.len() == all, "{} addresses of {all} functions", starts.len());
}

fn orc(linker: &str, seconds: &str) -> Option<Host> {
    Some(patched("orc.py")?.argument(seconds).argument(linker))
}

/// LLJIT with either linker. Stock llvmlite registers nothing that JITLink links.
#[test]
fn orc_is_discovered_with_rtdyld_and_with_jitlink() {
    for linker in ["rtdyld", "jitlink"] {
        let (Some(()), Some(host)) = (perf::is_here(), orc(linker, "2")) else { continue };
        let recording = perf::record(&host.variable("JITLISTEN", "perfmap"), Preload::Nothing);
        scenario::every_sample_is_named(&recording.samples, &recording.perf_map(), "gamma");
        Verdict::of(&recording.samples, "libffi").is_complete();
    }
}

#[test]
fn frame_pointers_are_as_asked() {
    for linker in ["rtdyld", "jitlink"] {
        for (asked, has) in [("1", true), ("0", false), ("untouched", false)] {
            let Some(host) = orc(linker, "0") else { continue };
            let host = host.variable("JITLISTEN", "perfmap").variable("JITLISTEN_FRAME_POINTERS", asked);
            let ended = host.run(Preload::Nothing).well();
            let code = machine_code::from_hex(ended.stderr.trim());
            assert_eq!(machine_code::keeps_frame_pointer(&code), has, "{linker}, {asked}: {}", ended.stderr);
        }
    }
}

/// An engine that is closed takes its names along, and its addresses go to the next.
#[test]
fn a_closed_engines_name_does_not_outlive_it() {
    let (Some(()), Some(host)) = (perf::is_here(), patched("closed_engine.py")) else { return };
    let host = host.argument("1").variable("CLOSED_ENGINE_JIT_EVENTS", "1");
    let recording = perf::record(&host, Preload::Nothing);
    let verdict = Verdict::of(&recording.samples, "libffi");
    verdict.is_named();
    let runs = |function| verdict.leaves.keys().flatten().any(|leaf| scenario::names(leaf, function));
    assert!(!runs("outdated"), "a closed engine's function is said to run:\n{verdict}");
    assert!(runs("current") && runs("survivor"), "{verdict}");
}

#[test]
fn the_program_notices_nothing() {
    let (Some(unasked), Some(asked)) = (chain(0, &[]), chain(0, &[])) else { return };
    let unasked = unasked.variable("NUMBA_ENABLE_PROFILING", "0").variable("NUMBA_DEBUGINFO", "1");
    let (unasked, asked) = (unasked.run(Preload::Nothing).well(), asked.run(Preload::Nothing).well());
    assert_eq!((unasked.stdout, unasked.stderr), (asked.stdout, asked.stderr));
}
