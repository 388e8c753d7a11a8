//! The Rust integrations, tested through examples of the crate that `ci/rust-producers.sh` builds. Nothing is
//! preloaded.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::linked::LinkedIntegration;
use jitlisten_tests::log::ObjectCounts;
use jitlisten_tests::scenario::{self, CHAIN, Verdict};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{paths, perf};

fn example(name: &str, seconds: u32, args: &[&str]) -> Option<Host> {
    let program = paths::root().join("target/debug/examples").join(name);
    if !program.is_file() {
        tool::skip(name, "not built; run ci/rust-producers.sh", Absence::FailsInCi);
        return None;
    }
    let host = Host::new(program, name).argument(seconds.to_string());
    Some(host.arguments(args))
}

const INKWELL: LinkedIntegration = LinkedIntegration {
    name: "inkwell",
    host: |seconds, args| example("inkwell", seconds, args),
    caller_object: "/inkwell",
    caller_frame: "inkwell::main",
};

const LLVM_SYS: LinkedIntegration = LinkedIntegration {
    name: "llvm-sys",
    host: |seconds, args| example("llvm_sys_orc", seconds, args),
    caller_object: "/llvm_sys_orc",
    caller_frame: "llvm_sys_orc::",
};

macro_rules! row {
    ($row:ident: $integration:expr => [$($consumer:ident),*]) => {
        mod $row {
            $(#[test] fn $consumer() { $integration.$consumer() })*
        }
    };
}

row!(inkwell: super::INKWELL => [check_perf_map, check_jitdump, check_image, check_gdb, check_libunwind, check_libgcc]);
row!(llvm_sys: super::LLVM_SYS => [check_perf_map, check_jitdump, check_image, check_gdb, check_libunwind, check_libgcc]);

/// Checks an engine created without our API, and LLVM's default linker (JITLink in LLVM 22).
#[test]
fn other_engines_are_discovered_too() {
    for (integration, mode) in [(INKWELL, "attach"), (LLVM_SYS, "default")] {
        let (Some(()), Some(host)) = (perf::is_available(), (integration.host)(2, &[mode])) else { continue };
        let recording = perf::record(&host, Preload::Nothing);
        scenario::assert_samples_named(&recording.samples, &recording.perf_map(), "gamma");
        Verdict::from_samples(&recording.samples, integration.caller_object).assert_complete();
    }
}

/// If the library is already loaded in the process, the crate opens no session of its own.
#[test]
fn linked_and_preloaded_nothing_is_doubled() {
    for (integration, args) in [(INKWELL, &[][..]), (INKWELL, &["attach"]), (LLVM_SYS, &[]), (LLVM_SYS, &["default"])] {
        let (Some(linked), Some(combined)) = ((integration.host)(0, args), (integration.host)(0, args)) else {
            continue;
        };
        let (linked, combined) =
            (linked.run(Preload::Nothing).expect_success(), combined.run(Preload::Library).expect_success());
        assert_eq!(linked.stdout, combined.stdout);
        // Two overlapping entries would break a rule of the perf map reader.
        let (linked, combined) = (linked.perf_map(), combined.perf_map());
        for function in CHAIN {
            let count = |map: &jitlisten_tests::perf_map::PerfMap| map.named(function).count();
            assert_eq!((count(&linked), count(&combined)), (1, 1), "{}, {args:?}: {function}", integration.name);
        }
    }
}

/// A closed JIT frees its object, both with RuntimeDyld and with JITLink. ORC does not free a JIT that lives until the
/// process exits.
#[test]
fn a_disposed_jit_frees_its_objects() {
    for linker in ["rtdyld", "default"] {
        for (args, freed) in [(&[linker, "closed"][..], 1), (&[linker], 0)] {
            let Some(host) = (LLVM_SYS.host)(0, args) else { return };
            let log = host.scratch("debug");
            let host = host.variable("JITLISTEN_LOG", format!("debug:{}", log.display()));
            let _ = host.run(Preload::Nothing).expect_success();
            let log = std::fs::read_to_string(log).expect("a log");
            assert_eq!(ObjectCounts::in_log(&log), ObjectCounts::new(1, 1, freed), "{args:?}:\n{log}");
        }
    }
}

#[test]
fn switched_off_they_do_nothing() {
    for integration in [INKWELL, LLVM_SYS] {
        let Some(host) = (integration.host)(0, &[]) else { continue };
        assert_eq!(
            host.variable("JITLISTEN", "off").run(Preload::Nothing).expect_success().map,
            None,
            "{}",
            integration.name
        );
    }
}
