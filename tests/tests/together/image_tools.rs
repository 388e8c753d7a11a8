//! More tools on images: exact counts, and images that come late.

use std::fs;
use std::process::Command;

use jitlisten_tests::host::Preload;
use jitlisten_tests::integration::{self, Integration};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{image, paths};

/// callgrind counts every instruction of JIT code under its source line.
#[test]
fn callgrind_counts_by_source_line() {
    let Some(valgrind) = tool::require("valgrind", Absence::IsAllowed) else { return };
    let Some(host) = Integration::Lli(14, &["--jit-kind=mcjit"]).chain(0, &[]) else { return };
    let host = image::with_images(host);
    let profile = host.scratch("callgrind.out");
    let mut command = Command::new(valgrind);
    command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", profile.display()));
    let done = tool::run(command.args(host.words()).envs(host.variables(Preload::Library)));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = fs::read_to_string(profile).expect("callgrind wrote it");
    // Names are written once, `fn=(12) gamma`, and later by their number alone.
    for function in ["gamma", "beta", "alpha"] {
        assert!(text.lines().any(|line| line.ends_with(&format!(") {function}"))), "no {function}\n{}", host.log());
    }
    // Whichever position line mentions a file first has its name: the function's, an inlined part's, or a callee's.
    let mentions = |line: &str| ["fl=", "fi=", "fe=", "cfi=", "cfl="].iter().any(|key| line.starts_with(key));
    assert!(text.lines().any(|line| mentions(line) && line.ends_with("chain.c")), "no source file\n{text}");
}

/// The pages are exchanged under threads that run in them, for code that was compiled before the sink was on.
#[test]
fn images_come_and_go_under_running_threads() {
    let Some(host) = integration::numba("numba-0.68.1", "late_images.py") else { return };
    let ended = host.argument(paths::library()).variable("JITLISTEN", "perfmap").run(Preload::Library).well();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "wrong: 0\nimages: 60\n");
}
