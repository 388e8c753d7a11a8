//! Exact callgrind counts on images, and images that appear and disappear at run time.

use std::fs;
use std::process::Command;

use jitlisten_tests::host::Preload;
use jitlisten_tests::integration::{self, Integration};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{image, paths};

/// callgrind attributes every instruction of JIT code to its source line.
#[test]
fn callgrind_counts_by_source_line() {
    let Some(valgrind) = tool::require("valgrind", Absence::IsAllowed) else { return };
    let Some(host) = Integration::Lli(14, &["--jit-kind=mcjit"]).chain(0, &[]) else { return };
    let host = image::with_images(host);
    let profile = host.scratch("callgrind.out");
    let mut command = Command::new(valgrind);
    command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", profile.display()));
    let callgrind_run = tool::run(command.args(host.command_line()).envs(host.variables(Preload::Library)));
    assert!(callgrind_run.status.success(), "{}", String::from_utf8_lossy(&callgrind_run.stderr));
    let text = fs::read_to_string(profile).expect("callgrind wrote it");
    // callgrind writes each name only once, as `fn=(12) gamma`, and then refers to its number.
    for function in ["gamma", "beta", "alpha"] {
        assert!(text.lines().any(|line| line.ends_with(&format!(") {function}"))), "no {function}\n{}", host.log());
    }
    // The first position line that refers to a file contains the file's name. Position lines introduce a function, an
    // inlined part or a callee.
    let is_position_line = |line: &str| ["fl=", "fi=", "fe=", "cfi=", "cfl="].iter().any(|key| line.starts_with(key));
    assert!(text.lines().any(|line| is_position_line(line) && line.ends_with("chain.c")), "no source file\n{text}");
}

/// Code was compiled before the sink was enabled; its pages are replaced while threads run on them.
#[test]
fn images_appear_and_disappear_while_threads_run() {
    let Some(host) = integration::numba("numba-0.68.1", "late_images.py") else { return };
    let outcome =
        host.argument(paths::library()).variable("JITLISTEN", "perfmap").run(Preload::Library).expect_success();
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "wrong: 0\nimages: 60\n");
}
