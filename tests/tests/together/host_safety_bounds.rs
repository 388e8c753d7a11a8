//! What the library takes from a process stays within bounds: work in proportion to what there is, address space where
//! that is limited, and nothing of the signals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};

/// `hosts/calls.c`, built once for this binary.
fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let make = || {
        let compiler = tool::require("cc", Absence::FailsInCi)?;
        // Every test of this binary uses it; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("bounds-program"));
        let program = scratch.join("calls");
        let include = format!("-I{}", paths::root().join("include").display());
        let strict = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", &include];
        tool::compile(&compiler, &strict, &paths::host("calls.c"), &program);
        Some(program)
    };
    PROGRAM.get_or_init(make).clone()
}

/// `calls SCENARIO WORD...`, below a shell that runs `before` first.
fn calls_after(before: &str, words: &[&str]) -> Option<Host> {
    let shell = Host::new("/bin/sh", &format!("bounds-{}", words[0]));
    let host = shell.argument("-c").argument(format!("{before}; exec \"$@\"")).argument("sh").argument(program()?);
    Some(words.iter().fold(host, |host, word| host.argument(word)))
}

/// The number on the only line of the output that begins with `word`.
fn number(host: &Host, preload: Preload, word: &str) -> u64 {
    let ended = host.run(preload).well();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(word));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok())
        .unwrap_or_else(|| panic!("no {word}: {text}"))
}

/// Instructions, as callgrind counts them, and system calls, as strace does, for one object with so many functions,
/// each in a section of its own.
fn work(functions: u32) -> Option<(u64, u64)> {
    let (valgrind, strace) =
        (tool::require("valgrind", Absence::FailsInCi)?, tool::require("strace", Absence::FailsInCi)?);
    let host = Host::new(program()?, &format!("work-{functions}")).argument("sections").argument(functions.to_string());
    let place = host.scratch("files");
    fs::create_dir(&place).expect("a directory");
    let host = host.variable("JITLISTEN", "perfmap,jitdump,unwind").variable("JITLISTEN_DIR", place);
    let profile = host.scratch("profile");
    let mut command = Command::new(valgrind);
    command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", profile.display()));
    command.args(host.words()).envs(host.variables(Preload::Library));
    let done = tool::run_within(Duration::from_secs(600), &mut command);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = fs::read_to_string(profile).expect("callgrind has written");
    let total = text.lines().find_map(|line| line.strip_prefix("summary: ").or(line.strip_prefix("totals: ")));

    // The library looks at the maps of other processes, of which other tests leave some.
    let host = host.in_mount_namespace("mount -t tmpfs none /tmp")?;
    let system_calls = system_calls(&strace, &host).lines().count();
    Some((total?.trim().trim_end_matches("kB").trim().parse().expect("a number"), system_calls as u64))
}

/// The system calls of the program under the library, one a line, as strace writes them.
fn system_calls(strace: &Path, host: &Host) -> String {
    let calls = host.scratch("calls");
    let mut command = Command::new(strace);
    command.args(["-f", "-qq", "-o"]).arg(&calls);
    for (name, value) in host.variables(Preload::Library) {
        let mut setting = std::ffi::OsString::from(name);
        setting.push("=");
        setting.push(value);
        command.arg("-E").arg(setting);
    }
    let done = tool::run(command.args(host.words()));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    fs::read_to_string(calls).expect("strace has written")
}

/// What a caller of the C API points to is read plainly. Each name and each file by `process_vm_readv(2)` were 15,019
/// calls of it for 5,000 functions with lines, and 12 since.
#[test]
fn inputs_of_the_api_are_read_plainly() {
    let (Some(strace), Some(program)) = (tool::require("strace", Absence::FailsInCi), program()) else { return };
    let reads = |functions: u32| {
        let host =
            Host::new(&program, &format!("plain-{functions}")).argument("sections").argument(functions.to_string());
        let host = host.argument("lines").variable("JITLISTEN", "perfmap,unwind");
        system_calls(&strace, &host).lines().filter(|line| line.contains("process_vm_readv(")).count()
    };
    let (one, many) = (reads(1), reads(5_000));
    assert!(one > 0, "the library is there, and its code is read so");
    assert!(many < one + 100, "{many} reads for 5,000 functions, {one} for one");
}

/// 20,000 functions in 20,000 sections are eight times 2,500, and not sixty-four.
#[test]
fn work_grows_with_the_functions_of_an_object() {
    let Some([one, some, many]) = [1, 2_500, 20_000].map(work).into_iter().collect::<Option<Vec<_>>>().map(|all| {
        let all: [(u64, u64); 3] = all.try_into().expect("three");
        all
    }) else {
        return;
    };
    let instructions = (many.0 - one.0) as f64 / (some.0 - one.0) as f64;
    // n log n: 8 x 14.3 / 11.3
    assert!(
        (6.0..10.5).contains(&instructions),
        "{instructions:.1} times the instructions: {one:?}, {some:?}, {many:?}"
    );
    assert!(many.1 - one.1 <= 9 * (some.1 - one.1).max(100), "system calls: {one:?}, {some:?}, {many:?}");
}

/// Address space is reserved for unwind entries: a gibibyte where nothing forbids it, little where it is limited.
#[test]
fn a_limited_address_space_is_left_to_the_program() {
    let of_library = fs::metadata(paths::library()).expect("built").len() >> 10;
    let more = |limit: &str| {
        let host = calls_after(limit, &["address-space"])?.variable("JITLISTEN", "perfmap,unwind");
        let [stock, ours] = [Preload::Nothing, Preload::Library].map(|preload| number(&host, preload, "VmPeak"));
        Some(ours.saturating_sub(stock + of_library))
    };
    let (Some(limited), Some(free)) = (more("ulimit -v 2000000"), more("true")) else { return };
    assert!(limited <= 64 << 10, "{limited} KiB under the limit");
    assert!(free > 256 << 10, "{free} KiB without a limit: nothing is seen");
}

/// Signals blocked, ignored and caught: at the start, and after the life of an object.
#[test]
fn the_signal_masks_are_the_programs() {
    for before in ["true", "trap '' USR2"] {
        let Some(host) = calls_after(before, &["signals"]) else { return };
        let host = host.variable("JITLISTEN", "all");
        let [stock, ours] = [Preload::Nothing, Preload::Library].map(|preload| host.run(preload).well().stdout);
        let text = String::from_utf8_lossy(&ours).into_owned();
        assert_eq!(text.lines().filter(|line| line.starts_with("SigBlk")).count(), 3, "{text}");
        assert!(text.lines().any(|line| line.starts_with("SigBlk") && !line.ends_with("0000000000000000")), "{text}");
        assert_eq!(text, String::from_utf8_lossy(&stock), "{before}");
    }
}
