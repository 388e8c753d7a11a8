//! Real hosts x real tools.
//!
//! One scenario, many integrations: every host under `hosts/` JIT-compiles the chain `alpha -> beta -> gamma` and
//! spends its time in `gamma`. An *integration* ([`integration`]) is a way LLVM code gets into a process: a Numba
//! release, a kind of `lli`. A *consumer* is a tool that looks at the process from outside: [`perf`], [`gdb`]. The test
//! suite is the table of both with one expectation ([`scenario`]): the names are there, and so is the way from `gamma`
//! back to the C code that called it.
//!
//! ```text
//!   integration ──Host──> perf record ──> perf_script ──┐
//!     │                                                 ├──> scenario: named? complete?
//!     ├───Host──> gdb ─────────> gdb::Backtrace ─┘
//!     └───Host──> /tmp/perf-PID.map ──> perf_map: obeys every rule?
//! ```
//!
//! What reads text (`perf_script`, `perf_map`, `gdb::backtrace`, `scenario`) is pure and has its own unit tests, and
//! the table begins with the stock process, which must fail the same expectation: a check that cannot fail proves
//! nothing.
//!
//! The tests are modules of three binaries, because linking one for each file takes minutes and gigabytes: `together`,
//! four of whose tests run at a time, `alone`, whose tests need the processors for themselves, and `long`, whose tests
//! take minutes.
//!
//! `ci/setup.sh` provides tools and virtual environments. A missing tool fails a test when `CI` is set and is a loud
//! skip elsewhere ([`tool`]).

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

    /// A file without a `mod` line would be a test that never runs.
    #[test]
    fn every_file_is_a_module() {
        for binary in ["together", "alone", "long"] {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(binary);
            let main = fs::read_to_string(directory.join("main.rs")).expect("main.rs");
            for entry in fs::read_dir(&directory).expect("a directory").flatten() {
                let name = entry.file_name().into_string().expect("a name").replace(".rs", "");
                let line = format!("mod {name};");
                assert!(name == "main" || main.lines().any(|found| found == line), "{binary}/main.rs lacks {line:?}");
            }
        }
    }
}
