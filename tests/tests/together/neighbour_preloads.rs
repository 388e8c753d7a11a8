//! Other preloaded libraries that replace parts of libc: an allocator, a clock, a sanitizer.

use std::fs;
use std::path::{Path, PathBuf};

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, jitdump_reader, paths};

fn find_installed(paths: &[&str]) -> Option<PathBuf> {
    let architecture = std::env::consts::ARCH;
    let multiarch = PathBuf::from(format!("/usr/lib/{architecture}-linux-gnu"));
    let installed_path = paths.iter().map(|path| multiarch.join(path)).find(|path| path.is_file());
    if installed_path.is_none() {
        tool::skip(paths[0], "not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    installed_path
}

/// Runs a host with the other library alone, and with both libraries in either order. Asserts the same output, and that
/// every sink has worked.
fn check_with_neighbour(neighbour: &Path, host: impl Fn() -> Host, check: impl Fn(&Host, &Outcome)) {
    let neighbour = neighbour.to_str().expect("UTF-8");
    let library = paths::library();
    let our_library = library.to_str().expect("UTF-8");
    let neighbour_outcome = host().variable("LD_PRELOAD", neighbour).run(Preload::Nothing).expect_success();
    for preloads in [format!("{neighbour}:{our_library}"), format!("{our_library}:{neighbour}")] {
        let host = host().variable("LD_PRELOAD", &preloads).variable("JITLISTEN", "all");
        let outcome = host.run(Preload::Nothing).expect_success();
        assert_eq!(
            (&neighbour_outcome.stdout, &neighbour_outcome.stderr),
            (&outcome.stdout, &outcome.stderr),
            "{preloads}"
        );
        assert_eq!(host.log(), "", "{preloads}");
        assert_all_sinks_worked(&host, &outcome);
        check(&host, &outcome);
    }
}

fn assert_all_sinks_worked(host: &Host, outcome: &Outcome) {
    let map = outcome.perf_map();
    for function in ["alpha", "beta", "gamma"] {
        assert!(map.named(function).next().is_some(), "{function}:\n{}", map.names());
    }
    assert_eq!(jitdump_reader::find(&host.scratch(".")).len(), 1, "one jitdump");
    let entries = fs::read_dir(host.scratch(".")).expect("a directory").flatten();
    let images = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("image-")).count();
    assert_eq!(images, 1, "one directory of images");
}

fn chain_host(venv: &str) -> Option<impl Fn() -> Host + use<>> {
    let python = integration::python(venv)?;
    Some(move || Host::new(&python, "beside").argument(paths::host("chain.py")).argument("0"))
}

#[test]
fn an_allocator() {
    let Some(jemalloc) = find_installed(&["libjemalloc.so.2"]) else { return };
    let Some(host) = chain_host("numba-0.68.1") else { return };
    check_with_neighbour(&jemalloc, host, |_, _| {});
}

/// Jitdump timestamps must use the kernel's clock, as profilers do: perf would match no function of a jitdump whose
/// times are ten years off.
#[test]
fn a_clock_that_lies() {
    let Some(faketime) = find_installed(&["faketime/libfaketime.so.1"]) else { return };
    let Some(host) = chain_host("numba-0.68.1") else { return };
    let host = || host().variable("FAKETIME", "-10y").variable("FAKETIME_DONT_FAKE_MONOTONIC", "0");
    check_with_neighbour(&faketime, host, |host, _| {
        let dump = fs::read(&jitdump_reader::find(&host.scratch("."))[0]).expect("a jitdump");
        // In `struct jitheader`, the timestamp is the second last field.
        let dump_seconds = u64::from_le_bytes(dump[24..32].try_into().expect("eight bytes")) / 1_000_000_000;
        let uptime = fs::read_to_string("/proc/uptime").expect("uptime");
        let uptime_seconds: u64 =
            uptime.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok()).expect("seconds");
        assert!(
            dump_seconds <= uptime_seconds && uptime_seconds - dump_seconds < 3600,
            "{dump_seconds} s reported, {uptime_seconds} s since the machine was started"
        );
    });
}

/// The sanitizer also checks our library, and would end the process if it found an error.
#[test]
fn a_program_built_with_a_sanitizer() {
    let (Some(python), Some(compiler)) = (integration::python("numba-0.68.1"), tool::require("cc", Absence::FailsInCi))
    else {
        return;
    };
    let build_dir = paths::Scratch::new("sanitized");
    let program = build_dir.join("opens_llvmlite");
    let flags = ["-g", "-O1", "-fsanitize=address,undefined", "-static-libasan", "-fno-omit-frame-pointer"];
    tool::compile(&compiler, &flags, &paths::host("opens_llvmlite.c"), &program);
    let host = || {
        let args = [integration::libllvmlite(&python), paths::host("chain.ll")];
        let host = args.iter().fold(Host::new(&program, "sanitized"), |host, arg| host.argument(arg));
        // LLVM does not free all its allocations at exit, so leak detection is disabled.
        host.argument("now").argument("0").variable("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
    };
    let stock = host().run(Preload::Nothing).expect_success();
    let host = host().variable("JITLISTEN", "all");
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!((stock.stdout, stock.stderr), (outcome.stdout.clone(), outcome.stderr.clone()));
    assert_eq!(host.log(), "");
    assert_all_sinks_worked(&host, &outcome);
}
