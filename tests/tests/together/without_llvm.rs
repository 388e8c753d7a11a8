//! A process without LLVM: the library is loaded but has no effect.

use jitlisten_tests::host::{self, Host};
use jitlisten_tests::integration;
use jitlisten_tests::tool::{self, Absence};

/// Asserts that the output is unchanged, and that the library writes no perf map, no other file and no log.
fn assert_unaffected(host: &Host) {
    let outcome = host::assert_same_output(host);
    assert_eq!(outcome.map, None, "a perf map of a process without JIT code");
    assert!(host::files_in(&host.scratch(".")).is_empty(), "{:?}", host::files_in(&host.scratch(".")));
}

#[test]
fn programs_are_left_alone() {
    let programs: [(&str, &[&str]); 4] =
        [("true", &[]), ("false", &[]), ("echo", &["one", "two"]), ("sh", &["-c", "echo $$ >/dev/null; exit 7"])];
    for (program, arguments) in programs {
        let Some(program) = tool::require(program, Absence::FailsInCi) else { continue };
        let host = Host::new(program, "without-llvm");
        assert_unaffected(&host.arguments(arguments));
    }
}

#[test]
fn python_without_numba_is_left_alone() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    assert_unaffected(&Host::new(&python, "python").argument("-c").argument("pass"));
    assert_unaffected(
        &Host::new(&python, "python").argument("-c").argument("import ssl, sqlite3, json; print(json.dumps(1))"),
    );
}

#[test]
fn llvm_that_compiles_nothing_leaves_no_file() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    assert_unaffected(
        &Host::new(python, "python")
            .argument("-c")
            .argument("import llvmlite.binding as b; print(b.llvm_version_info)"),
    );
}
