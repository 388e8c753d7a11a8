//! Shared code of the tests that run real hosts under real tools.
//!
//! One scenario covers many integrations: every host under `hosts/` JIT-compiles the chain `alpha -> beta -> gamma` and
//! spends its time in `gamma`. An *integration* ([`integration`]) is one way for LLVM code to enter a process: a Numba
//! release, a kind of `lli`. A *consumer* is a tool that reads the process from outside: [`perf`], [`gdb`]. The test
//! suite crosses integrations with consumers, with one expectation ([`scenario`]): the functions have names, and the
//! stack leads from `gamma` back to the C code that called the chain.
//!
//! ```text
//!   integration ──Host──> perf record ──> perf_script ──┐
//!     │                                                 ├──> scenario: named? complete?
//!     ├───Host──> gdb ─────────> gdb::Backtrace ────────┘
//!     └───Host──> /tmp/perf-PID.map ──> perf_map: obeys every rule?
//! ```
//!
//! The parsers and checks (`perf_script`, `perf_map`, `gdb::backtrace`, `scenario`) are pure functions with unit tests
//! of their own. The table begins with a process without the library, which must fail the same expectation: a check
//! that cannot fail proves nothing.
//!
//! The tests are modules of three binaries, because linking one binary per file takes minutes and gigabytes. `together`
//! runs four tests at a time, the tests of `alone` need all processors, and the tests of `long` take minutes.
//!
//! `ci/setup.sh` provides tools and virtual environments. A missing tool fails a test if `CI` is set; elsewhere the
//! test is skipped with a message ([`tool`]).

#![forbid(unsafe_code)]

pub mod embedder;
pub mod foreign;
pub mod gdb;
pub mod host;
pub mod image;
pub mod integration;
pub mod jitdump_format;
pub mod jitdump_reader;
mod jitdump_second_reader;
mod jitdump_unwinding;
pub mod linked;
pub mod log;
pub mod machine_code;
pub mod mount;
pub mod paths;
pub mod perf;
pub mod perf_inject;
pub mod perf_lines;
pub mod perf_map;
pub mod perf_script;
pub mod safety_host;
pub mod sampled;
pub mod scenario;
pub mod support_table;
pub mod symbols;
pub mod tool;
pub mod walk;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// Fails if a test file lacks a `mod` line: it would never run.
    #[test]
    fn every_file_is_a_module() {
        for binary in ["together", "alone", "long"] {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(binary);
            let main = fs::read_to_string(directory.join("main.rs")).expect("main.rs");
            for entry in fs::read_dir(&directory).expect("a directory").flatten() {
                let name = entry.file_name().into_string().expect("a name").replace(".rs", "");
                let line = format!("mod {name};");
                assert!(
                    name == "main" || main.lines().any(|declaration| declaration == line),
                    "{binary}/main.rs lacks {line:?}"
                );
            }
        }
    }
}
