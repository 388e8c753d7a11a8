//! The library never allocates with the program's `malloc`, which may belong to a profiler and take locks or call the
//! loader.

use std::path::PathBuf;

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

/// Functions of the C library and of libgcc that allocate when the library calls them. `?` stands for a static function
/// without a symbol, the target of a jump in `opendir`.
const ALLOCATING_FUNCTIONS: [&str; 5] = ["?", "opendir", "dlopen", "__register_atfork", "__register_frame"];

/// Runs a Numba program with `hosts/watched_malloc.c` preloaded before the library.
fn run(mode: &str) -> Option<Outcome> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let python = integration::python("numba-0.68.1")?;
    let host = Host::new(python, "own-heap").variable("JITLISTEN", "all").variable("WATCHED_MALLOC", mode);
    let malloc: PathBuf = host.scratch("watched_malloc.so");
    tool::compile(&compiler, &["-O1", "-fPIC", "-shared"], &paths::host("watched_malloc.c"), &malloc);
    let preloads = format!("{}:{}", malloc.display(), paths::library().display());
    let host = host.variable("LD_PRELOAD", preloads).argument(paths::host("chain.py")).argument("0");
    let outcome = host.run(Preload::Nothing).expect_success();
    assert_eq!(host.log(), "");
    Some(outcome)
}

#[test]
fn nothing_comes_from_the_malloc_of_the_program() {
    let Some(outcome) = run("counts") else { return };
    let mut lines = outcome.stderr.lines();
    assert_eq!(lines.next(), Some("direct 0"), "{}", outcome.stderr);
    for line in lines {
        let name = line.split(' ').nth(1).expect("through NAME CALLS");
        assert!(ALLOCATING_FUNCTIONS.contains(&name), "{line}: not in docs/limits.md");
    }
    assert!(outcome.perf_map().named("alpha").next().is_some(), "nothing was compiled: this proves nothing");
}

/// heaptrack's `malloc` waits for libunwind's lock, whose owner may be waiting for the loader's lock.
#[test]
fn a_malloc_whose_lock_is_held_by_a_thread_that_asks_the_loader() {
    let Some(outcome) = run("locks") else { return };
    assert!(outcome.perf_map().named("alpha").next().is_some(), "nothing was compiled: this proves nothing");
}
