//! Builds `hosts/safety.c`, a small program that embeds LLVM, and runs its scenarios.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

use crate::host::Host;
use crate::paths::{self, Scratch};
use crate::tool::{self, Absence};

/// The distribution's LLVM library, or `$JITLISTEN_TEST_LLVM`. The hosts need no LLVM headers.
fn llvm() -> PathBuf {
    env::var_os("JITLISTEN_TEST_LLVM").map_or_else(|| "/usr/lib/llvm-14/lib/libLLVM-14.so.1".into(), PathBuf::from)
}

/// Builds a C host that links to LLVM, or returns `None` if the test is skipped.
///
/// # Panics
/// If the compiler reports an error.
#[must_use]
pub fn build(source: &str, flags: &[&str], program: &std::path::Path) -> Option<()> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let llvm = llvm();
    if !llvm.is_file() {
        tool::skip(&llvm.to_string_lossy(), "not installed; run ci/setup.sh", Absence::FailsInCi);
        return None;
    }
    let mut command = Command::new(compiler);
    command.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-nonnull", "-rdynamic", "-pthread", "-I"]);
    command.arg(paths::root().join("include")).arg(paths::host(source)).arg(llvm).args(flags);
    // Before glibc 2.34, dlopen is in libdl.
    let compile_run = tool::run(command.args(["-ldl", "-o"]).arg(program));
    assert!(compile_run.status.success(), "{source}: {}", String::from_utf8_lossy(&compile_run.stderr));
    Some(())
}

/// The `safety` program, built once per test binary.
///
/// # Panics
/// If the compiler reports an error.
#[must_use]
pub fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build_program = || {
        // All tests of this binary share the directory, so it must outlive each test; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("safety-program"));
        let program = scratch.join("safety");
        build("safety.c", &[], &program).map(|()| program)
    };
    PROGRAM.get_or_init(build_program).clone()
}

/// Host that runs a scenario with every sink enabled, or `None` if the test is skipped.
#[must_use]
pub fn scenario(words: &[&str]) -> Option<Host> {
    let name: String = words[0].chars().take(32).collect();
    let host = Host::new(program()?, &format!("safety-{name}")).variable("JITLISTEN", "all");
    let statistics = host.scratch("statistics");
    Some(words.iter().fold(host.variable("SAFETY_STATISTICS", statistics), |host, word| host.argument(word)))
}

/// Host that a shell becomes through `exec` after it has executed the commands in `first`. In `first`, `$$` is
/// therefore the process id of the host.
///
/// # Panics
/// If the compiler reports an error.
#[must_use]
pub fn scenario_after_commands(first: &str, words: &[&str]) -> Option<Host> {
    let program = program()?;
    let host = Host::new("/bin/sh", &format!("safety-{}", words[0])).variable("JITLISTEN", "all");
    let statistics = host.scratch("statistics");
    let host = host.variable("SAFETY_STATISTICS", statistics);
    // The shell's own commands run without the library.
    let script = format!("preload=$LD_PRELOAD; unset LD_PRELOAD; {first}\nexport LD_PRELOAD=$preload; exec \"$@\"");
    let host = host.argument("-c").argument(script).argument("sh").argument(program);
    Some(host.arguments(words))
}

/// Value of a counter in the library's statistics.
///
/// # Panics
/// If the host wrote no statistics.
#[must_use]
pub fn counter(host: &Host, name: &str) -> u64 {
    let text = fs::read_to_string(host.scratch("statistics")).expect("the host writes its statistics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}: {text}"));
    line.trim().parse().expect("a number")
}
