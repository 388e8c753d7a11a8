//! Libraries that stand in for parts of libc: an allocator, a clock, a sanitizer.

use std::fs;
use std::path::{Path, PathBuf};

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, jitdump_reader, paths};

fn installed(paths: &[&str]) -> Option<PathBuf> {
    let architecture = std::env::consts::ARCH;
    let multiarch = PathBuf::from(format!("/usr/lib/{architecture}-linux-gnu"));
    let found = paths.iter().map(|path| multiarch.join(path)).find(|path| path.is_file());
    if found.is_none() {
        tool::skip(paths[0], "not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    found
}

/// Runs a host with the neighbour alone and with both, in either order: it says the same, and every sink has worked.
fn works_beside(neighbour: &Path, host: impl Fn() -> Host, check: impl Fn(&Host, &Ended)) {
    let neighbour = neighbour.to_str().expect("UTF-8");
    let library = paths::library();
    let ours = library.to_str().expect("UTF-8");
    let alone = host().variable("LD_PRELOAD", neighbour).run(Preload::Nothing).well();
    for list in [format!("{neighbour}:{ours}"), format!("{ours}:{neighbour}")] {
        let host = host().variable("LD_PRELOAD", &list).variable("JITLISTEN", "all");
        let ended = host.run(Preload::Nothing).well();
        assert_eq!((&alone.stdout, &alone.stderr), (&ended.stdout, &ended.stderr), "{list}");
        assert_eq!(host.log(), "", "{list}");
        every_sink_has_worked(&host, &ended);
        check(&host, &ended);
    }
}

fn every_sink_has_worked(host: &Host, ended: &Ended) {
    let map = ended.perf_map();
    for function in ["alpha", "beta", "gamma"] {
        assert!(map.named(function).next().is_some(), "{function}:\n{}", map.names());
    }
    assert_eq!(jitdump_reader::find(&host.scratch(".")).len(), 1, "one jitdump");
    let entries = fs::read_dir(host.scratch(".")).expect("a directory").flatten();
    let images = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("image-")).count();
    assert_eq!(images, 1, "one directory of images");
}

fn chain(venv: &str) -> Option<impl Fn() -> Host + use<>> {
    let python = integration::python(venv)?;
    Some(move || Host::new(&python, "beside").argument(paths::host("chain.py")).argument("0"))
}

#[test]
fn an_allocator() {
    let Some(jemalloc) = installed(&["libjemalloc.so.2"]) else { return };
    let Some(host) = chain("numba-0.68.1") else { return };
    works_beside(&jemalloc, host, |_, _| {});
}

/// A profiler's clock is the kernel's: a jitdump of ten years ago would name nothing.
#[test]
fn a_clock_that_lies() {
    let Some(faketime) = installed(&["faketime/libfaketime.so.1"]) else { return };
    let Some(host) = chain("numba-0.68.1") else { return };
    let host = || host().variable("FAKETIME", "-10y").variable("FAKETIME_DONT_FAKE_MONOTONIC", "0");
    works_beside(&faketime, host, |host, _| {
        let dump = fs::read(&jitdump_reader::find(&host.scratch("."))[0]).expect("a jitdump");
        // `struct jitheader`: the timestamp is its last field but one.
        let reported = u64::from_le_bytes(dump[24..32].try_into().expect("eight bytes")) / 1_000_000_000;
        let uptime = fs::read_to_string("/proc/uptime").expect("uptime");
        let now: u64 = uptime.split(['.', ' ']).next().and_then(|seconds| seconds.parse().ok()).expect("seconds");
        assert!(
            reported <= now && now - reported < 3600,
            "{reported} s reported, {now} s since the machine was started"
        );
    });
}

/// The sanitizer's own checks hold for us, too: it would end the process.
#[test]
fn a_program_with_a_sanitizer_in_it() {
    let (Some(python), Some(compiler)) = (integration::python("numba-0.68.1"), tool::require("cc", Absence::FailsInCi))
    else {
        return;
    };
    let bin = paths::Scratch::new("sanitized");
    let program = bin.join("opens_llvmlite");
    let flags = ["-g", "-O1", "-fsanitize=address,undefined", "-static-libasan", "-fno-omit-frame-pointer"];
    tool::compile(&compiler, &flags, &paths::host("opens_llvmlite.c"), &program);
    let host = || {
        let words = [integration::libllvmlite(&python), paths::host("chain.ll")];
        let host = words.iter().fold(Host::new(&program, "sanitized"), |host, word| host.argument(word));
        // LLVM keeps what it has until the end, and does not say so.
        host.argument("now").argument("0").variable("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
    };
    let stock = host().run(Preload::Nothing).well();
    let host = host().variable("JITLISTEN", "all");
    let ended = host.run(Preload::Library).well();
    assert_eq!((stock.stdout, stock.stderr), (ended.stdout.clone(), ended.stderr.clone()));
    assert_eq!(host.log(), "");
    every_sink_has_worked(&host, &ended);
}
