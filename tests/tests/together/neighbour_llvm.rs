//! Several compilers in one process: two LLVM libraries, an LLVM library that is closed, another JIT that registers
//! with debuggers, and two copies of our library.

use std::fs;
use std::path::{Path, PathBuf};

use jitlisten_tests::host::{self, Host, Outcome, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

fn lines(outcome: &Outcome) -> Vec<String> {
    String::from_utf8_lossy(&outcome.stdout).lines().map(str::to_owned).collect()
}

fn assert_named_once(outcome: &Outcome, function: &str) {
    let map = outcome.perf_map();
    assert_eq!(map.entries.iter().filter(|entry| entry.name == function).count(), 1, "{function}:\n{}", map.names());
}

/// Compiles a host written in C.
fn compile_host(name: &str, directory: &Path, flags: &[&str]) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let program = directory.join(name.trim_end_matches(".c"));
    let base_flags = ["-O1", "-Wall", "-Wextra", "-Werror"];
    tool::compile(&compiler, &[&base_flags[..], flags].concat(), &paths::host(name), &program);
    Some(program)
}

#[test]
fn two_llvms_in_one_process() {
    for version in [14, 22] {
        let directory = PathBuf::from(format!("/usr/lib/llvm-{version}/lib"));
        let names = [format!("libLLVM-{version}.so.1"), format!("libLLVM.so.{version}.1")];
        let Some(library) = names.iter().map(|name| directory.join(name)).find(|path| path.is_file()) else {
            let absence = if version == 14 { Absence::FailsInCi } else { Absence::IsAllowed };
            tool::skip("libLLVM", &format!("no LLVM {version}; run ci/setup.sh"), absence);
            continue;
        };
        let Some(host) = integration::numba("numba-0.68.1", "two_llvms.py") else { continue };
        let outcome = host::assert_same_output(&host.argument(library)).expect_success();
        ["first", "second", "third"].into_iter().for_each(|function| assert_named_once(&outcome, function));
    }
}

/// LLVM libraries are opened more often than the library has slots for them, so the slots of closed ones must be
/// reused.
#[test]
fn an_llvm_that_is_closed_and_opened_again() {
    // The LLVM library of this wheel can be unloaded; those of llvmlite 0.50 and Debian stay loaded.
    let Some(python) = integration::python("numba-0.60.0") else { return };
    let host = Host::new(&python, "closed-llvm").argument(paths::host("closed_llvm.py"));
    let outcome =
        host::assert_same_output(&host.argument(integration::libllvmlite(&python)).argument("20")).expect_success();
    assert!(lines(&outcome).contains(&"gone 20".to_owned()), "the library stayed: {:?}", lines(&outcome));
    assert_named_once(&outcome, "last");
}

#[test]
fn another_jit_that_registers_with_debuggers() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    for flags in [&["-rdynamic", "-DCOUNTS"][..], &["-rdynamic"]] {
        let build_dir = paths::Scratch::new("own-jit");
        let Some(program) = compile_host("own_jit.c", &build_dir.join("."), flags) else { return };
        let object = paths::root().join("jitlisten/testdata/lli-14-mcjit-plain.o");
        let host = Host::new(program, "own-jit").argument(integration::libllvmlite(&python));
        let outcome =
            host::assert_same_output(&host.argument(paths::host("chain.ll")).argument(object)).expect_success();
        assert_eq!(lines(&outcome)[1], "3, whole");
        ["alpha", "beta", "gamma"].into_iter().for_each(|function| assert_named_once(&outcome, function));
    }
}

/// The program is linked to one copy of the library. It runs without a preload; with the same copy preloaded; with
/// another copy preloaded, to which the program is then bound; and with both preloaded, in which case the last one
/// starts first. Only one copy may write, and each function must have one line.
#[test]
fn the_library_twice() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let build_dir = paths::Scratch::new("linked");
    let directory = paths::library().parent().expect("a directory").display().to_string();
    let include = format!("-I{}", paths::root().join("include").display());
    let (search_flag, run_path_flag) = (format!("-L{directory}"), format!("-Wl,-rpath,{directory}"));
    let flags = [&*include, &*search_flag, "-Wl,--no-as-needed", "-ljitlisten", &*run_path_flag];
    let Some(program) = compile_host("linked.c", &build_dir.join("."), &flags) else { return };
    let other_copy = build_dir.join("libjitlisten-other.so");
    fs::copy(paths::library(), &other_copy).expect("copied");
    let (linked_copy, other_copy) = (paths::library().display().to_string(), other_copy.display().to_string());
    let success_line = "open 0, statistics 0";
    let both_preloads = format!("{other_copy} {linked_copy}");
    for (preload, expected) in [
        ("", success_line),
        (&linked_copy, success_line),
        (&other_copy, success_line),
        (&both_preloads, "open 4, statistics 2"),
    ] {
        let host =
            Host::new(&program, "linked").argument(integration::libllvmlite(&python)).variable("LD_PRELOAD", preload);
        let outcome = host.run(Preload::Nothing).expect_success();
        let output_lines = lines(&outcome);
        assert_eq!(output_lines[..2], ["2", "2"]);
        assert!(output_lines[2].starts_with(expected), "{preload:?}: {output_lines:?}\n{}", host.log());
        // 7: RuntimeDyld, JITLink and the hook of the list. RuntimeDyld misses code compiled before the open.
        if expected == success_line {
            let (version, observed) = output_lines[3].split_once(", discovered by ").expect("a copy of LLVM");
            assert!(version.starts_with("libllvmlite.so, version 2"), "{version}");
            assert!(
                observed.starts_with("1, heard by 7, ") && observed.ends_with(" 2 listed, 0 missing"),
                "{observed}"
            );
        }
        assert_named_once(&outcome, "before_open");
        assert_named_once(&outcome, "after_open");
    }
}

/// If a copy of the library is opened while another one is active, `jitlisten_open` returns `JITLISTEN_SWITCHED_OFF`.
#[test]
fn a_second_copy_that_is_opened_says_no() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let build_dir = paths::Scratch::new("second");
    let other_copy = build_dir.join("libjitlisten-other.so");
    fs::copy(paths::library(), &other_copy).expect("copied");
    let script = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).jitlisten_open())";
    let host = || Host::new(&python, "second").argument("-c").argument(script).argument(&other_copy);
    assert_eq!(lines(&host().run(Preload::Library).expect_success()), ["4"], "JITLISTEN_SWITCHED_OFF");
    assert_eq!(lines(&host().run(Preload::Nothing).expect_success()), ["0"], "alone, it works");
}
