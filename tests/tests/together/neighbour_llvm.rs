//! More than one compiler: two LLVMs, an LLVM that is closed, another JIT that registers with debuggers, two copies of
//! the library.

use std::fs;
use std::path::{Path, PathBuf};

use jitlisten_tests::host::{self, Ended, Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

fn lines(ended: &Ended) -> Vec<String> {
    String::from_utf8_lossy(&ended.stdout).lines().map(str::to_owned).collect()
}

fn is_notified_once(ended: &Ended, function: &str) {
    let map = ended.perf_map();
    assert_eq!(map.entries.iter().filter(|entry| entry.name == function).count(), 1, "{function}:\n{}", map.names());
}

/// Compiles a host in C.
fn built(name: &str, directory: &Path, flags: &[&str]) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let program = directory.join(name.trim_end_matches(".c"));
    let always = ["-O1", "-Wall", "-Wextra", "-Werror"];
    tool::compile(&compiler, &[&always[..], flags].concat(), &paths::host(name), &program);
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
        let ended = host::same_output(&host.argument(library)).well();
        ["first", "second", "third"].into_iter().for_each(|function| is_notified_once(&ended, function));
    }
}

/// More often than there are places for LLVMs in a process: places of closed ones are used again.
#[test]
fn an_llvm_that_is_closed_and_opened_again() {
    // This wheel's library can be unloaded; that of 0.50 never goes, and neither does Debian's libLLVM.
    let Some(python) = integration::python("numba-0.60.0") else { return };
    let host = Host::new(&python, "closed-llvm").argument(paths::host("closed_llvm.py"));
    let ended = host::same_output(&host.argument(integration::libllvmlite(&python)).argument("20")).well();
    assert!(lines(&ended).contains(&"gone 20".to_owned()), "the library stayed: {:?}", lines(&ended));
    is_notified_once(&ended, "last");
}

#[test]
fn another_jit_that_registers_with_debuggers() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    for flags in [&["-rdynamic", "-DCOUNTS"][..], &["-rdynamic"]] {
        let bin = paths::Scratch::new("own-jit");
        let Some(program) = built("own_jit.c", &bin.join("."), flags) else { return };
        let object = paths::root().join("jitlisten/testdata/lli-14-mcjit-plain.o");
        let host = Host::new(program, "own-jit").argument(integration::libllvmlite(&python));
        let ended = host::same_output(&host.argument(paths::host("chain.ll")).argument(object)).well();
        assert_eq!(lines(&ended)[1], "3, whole");
        ["alpha", "beta", "gamma"].into_iter().for_each(|function| is_notified_once(&ended, function));
    }
}

/// A program that is linked with one copy: with nothing else; with the same copy preloaded; with another one preloaded,
/// which the program is then bound to; with two preloaded, of which the last one begins. One copy writes, and there is
/// one line for each function.
#[test]
fn the_library_twice() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let bin = paths::Scratch::new("linked");
    let directory = paths::library().parent().expect("a directory").display().to_string();
    let include = format!("-I{}", paths::root().join("include").display());
    let (search, path) = (format!("-L{directory}"), format!("-Wl,-rpath,{directory}"));
    let flags = [&*include, &*search, "-Wl,--no-as-needed", "-ljitlisten", &*path];
    let Some(program) = built("linked.c", &bin.join("."), &flags) else { return };
    let other = bin.join("libjitlisten-other.so");
    fs::copy(paths::library(), &other).expect("copied");
    let (same, other) = (paths::library().display().to_string(), other.display().to_string());
    let works = "open 0, statistics 0";
    let both = format!("{other} {same}");
    for (preload, says) in [("", works), (&same, works), (&other, works), (&both, "open 4, statistics 2")] {
        let host =
            Host::new(&program, "linked").argument(integration::libllvmlite(&python)).variable("LD_PRELOAD", preload);
        let ended = host.run(Preload::Nothing).well();
        let said = lines(&ended);
        assert_eq!(said[..2], ["2", "2"]);
        assert!(said[2].starts_with(says), "{preload:?}: {said:?}\n{}", host.log());
        is_notified_once(&ended, "before_open");
        is_notified_once(&ended, "after_open");
    }
}

/// A copy that is opened beside one that is at work returns that it is switched off.
#[test]
fn a_second_copy_that_is_opened_says_no() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let bin = paths::Scratch::new("second");
    let other = bin.join("libjitlisten-other.so");
    fs::copy(paths::library(), &other).expect("copied");
    let script = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).jitlisten_open())";
    let host = || Host::new(&python, "second").argument("-c").argument(script).argument(&other);
    assert_eq!(lines(&host().run(Preload::Library).well()), ["4"], "JITLISTEN_SWITCHED_OFF");
    assert_eq!(lines(&host().run(Preload::Nothing).well()), ["0"], "alone, it works");
}
