//! The library allocates nothing from the program's `malloc`: that may be a profiler's, which takes locks and asks the
//! loader.

use std::path::PathBuf;

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

/// Functions of the C library and of libgcc that allocate when we call them. `?` has no name: `opendir` jumps to a
/// static function.
const THROUGH: [&str; 5] = ["?", "opendir", "dlopen", "__register_atfork", "__register_frame"];

/// A program with Numba, and `hosts/watched_malloc.c` in front of the library.
fn run(mode: &str) -> Option<Ended> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let python = integration::python("numba-0.68.1")?;
    let host = Host::new(python, "own-heap").variable("JITLISTEN", "all").variable("WATCHED_MALLOC", mode);
    let malloc: PathBuf = host.scratch("watched_malloc.so");
    tool::compile(&compiler, &["-O1", "-fPIC", "-shared"], &paths::host("watched_malloc.c"), &malloc);
    let list = format!("{}:{}", malloc.display(), paths::library().display());
    let host = host.variable("LD_PRELOAD", list).argument(paths::host("chain.py")).argument("0");
    let ended = host.run(Preload::Nothing).well();
    assert_eq!(host.log(), "");
    Some(ended)
}

#[test]
fn nothing_comes_from_the_malloc_of_the_program() {
    let Some(ended) = run("counts") else { return };
    let mut lines = ended.stderr.lines();
    assert_eq!(lines.next(), Some("direct 0"), "{}", ended.stderr);
    for line in lines {
        let name = line.split(' ').nth(1).expect("through NAME CALLS");
        assert!(THROUGH.contains(&name), "{line}: not in docs/limits.md");
    }
    assert!(ended.perf_map().named("alpha").next().is_some(), "nothing was compiled: this proves nothing");
}

/// heaptrack's does: its `malloc` waits for libunwind's lock, whose owner waits for the loader's.
#[test]
fn a_malloc_whose_lock_is_held_by_a_thread_that_asks_the_loader() {
    let Some(ended) = run("locks") else { return };
    assert!(ended.perf_map().named("alpha").next().is_some(), "nothing was compiled: this proves nothing");
}
