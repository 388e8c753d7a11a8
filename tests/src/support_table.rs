//! Support table of integrations and consumers, recorded by the tests.
//!
//! A test that has verified a cell records it with [`record_cell`] as its last statement. `ci/support.py --seen`
//! compares the cells of one run with records/integrations.tsv. docs/support.md is rendered from that file.

use std::fs::OpenOptions;
use std::io::Write;

/// Integrations, that is, ways to pass a program's code to jitlisten, in the order of the table.
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

/// Consumers in the order of the table.
pub const CONSUMERS: [&str; 6] = ["perf map", "jitdump", "image", "gdb", "libunwind", "libgcc"];

/// Appends a cell to `$JITLISTEN_SUPPORT`: this consumer passed the whole scenario with this integration.
///
/// # Panics
/// If the table does not contain that cell.
#[track_caller]
pub fn record_cell(integration: &str, consumer: &str) {
    assert!(
        INTEGRATIONS.contains(&integration) && CONSUMERS.contains(&consumer),
        "the table has no cell {integration} x {consumer}"
    );
    let Some(path) = std::env::var_os("JITLISTEN_SUPPORT") else { return };
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let write_result = file.and_then(|mut file| file.write_all(format!("{integration}\t{consumer}\n").as_bytes()));
    write_result.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
