//! The integration x consumer table, as a run of the test suite has seen it.
//!
//! A test that has proved a cell says so with [`seen`], as its last statement; `ci/support.py --seen` compares
//! the lines of one run with records/integrations.tsv, from which docs/support.md is rendered.

use std::fs::OpenOptions;
use std::io::Write;

/// How a program gets its code to jitlisten, in the order of the table.
pub const INTEGRATIONS: [&str; 8] = [
    "shim, stock wheels",
    "shim, lli",
    "C API",
    "C++ listener",
    "C++ plugin",
    "patched llvmlite",
    "llvm-sys",
    "inkwell",
];

/// Who looks at it, in the order of the table.
pub const CONSUMERS: [&str; 6] = ["perf map", "jitdump", "image", "gdb", "libunwind", "libgcc"];

/// This consumer has just seen the whole scenario with this integration. Written to the file `$JITLISTEN_SUPPORT`.
///
/// # Panics
/// When there is no such cell.
#[track_caller]
pub fn seen(integration: &str, consumer: &str) {
    assert!(
        INTEGRATIONS.contains(&integration) && CONSUMERS.contains(&consumer),
        "the table has no cell {integration} x {consumer}"
    );
    let Some(path) = std::env::var_os("JITLISTEN_SUPPORT") else { return };
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(format!("{integration}\t{consumer}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
