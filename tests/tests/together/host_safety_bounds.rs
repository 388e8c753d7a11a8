//! Limits on the resources of a process that the library uses: time proportional to the amount of code, little address
//! space if that is limited, and no signals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};

/// Compiles `hosts/calls.c` once for this binary.
fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let compiler = tool::require("cc", Absence::FailsInCi)?;
        // All tests of this binary share the program, so its directory outlives them; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("bounds-program"));
        let program = scratch.join("calls");
        let include = format!("-I{}", paths::root().join("include").display());
        let strict_flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", &include];
        tool::compile(&compiler, &strict_flags, &paths::host("calls.c"), &program);
        Some(program)
    };
    PROGRAM.get_or_init(compile).clone()
}

/// Builds a host that runs `calls` with these arguments in a shell, after a shell command.
fn calls_in_shell(shell_command: &str, args: &[&str]) -> Option<Host> {
    let shell = Host::new("/bin/sh", &format!("bounds-{}", args[0]));
    let host =
        shell.argument("-c").argument(format!("{shell_command}; exec \"$@\"")).argument("sh").argument(program()?);
    Some(host.arguments(args))
}

/// Number on the output line that begins with `prefix`.
fn read_number(host: &Host, preload: Preload, prefix: &str) -> u64 {
    let outcome = host.run(preload).expect_success();
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(prefix));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok())
        .unwrap_or_else(|| panic!("no {prefix}: {text}"))
}

/// Instructions (from callgrind) and system calls (from strace) for one object of `functions` functions, each in its
/// own section.
fn measure_work(functions: u32) -> Option<(u64, u64)> {
    let (valgrind, strace) =
        (tool::require("valgrind", Absence::FailsInCi)?, tool::require("strace", Absence::FailsInCi)?);
    let host = Host::new(program()?, &format!("work-{functions}")).argument("sections").argument(functions.to_string());
    let output_dir = host.scratch("files");
    fs::create_dir(&output_dir).expect("a directory");
    let host = host.variable("JITLISTEN", "perfmap,jitdump,unwind").variable("JITLISTEN_DIR", output_dir);
    let profile = host.scratch("profile");
    let mut command = Command::new(valgrind);
    command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", profile.display()));
    command.args(host.command_line()).envs(host.variables(Preload::Library));
    let valgrind_run = tool::run_with_timeout(Duration::from_secs(600), &mut command);
    assert!(valgrind_run.status.success(), "{}", String::from_utf8_lossy(&valgrind_run.stderr));
    let text = fs::read_to_string(profile).expect("callgrind has written");
    let total = text.lines().find_map(|line| line.strip_prefix("summary: ").or(line.strip_prefix("totals: ")));

    // The library reads the perf maps of other processes. Other tests leave some in `/tmp`, so the host gets an empty
    // `/tmp`.
    let host = host.in_mount_namespace("mount -t tmpfs none /tmp")?;
    let system_calls = system_calls(&strace, &host).lines().count();
    Some((total?.trim().trim_end_matches("kB").trim().parse().expect("a number"), system_calls as u64))
}

/// System calls of the program with the library, one per line, in strace's format.
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
    let strace_run = tool::run(command.args(host.command_line()));
    assert!(strace_run.status.success(), "{}", String::from_utf8_lossy(&strace_run.stderr));
    fs::read_to_string(calls).expect("strace has written")
}

/// The library reads the memory of a C API caller directly. When it called `process_vm_readv(2)` for each name and
/// file, 5,000 functions with lines required 15,019 such calls; now they require 12.
#[test]
fn arguments_of_the_api_are_read_directly() {
    let (Some(strace), Some(program)) = (tool::require("strace", Absence::FailsInCi), program()) else { return };
    let count_reads = |functions: u32| {
        let host =
            Host::new(&program, &format!("plain-{functions}")).argument("sections").argument(functions.to_string());
        let host = host.argument("lines").variable("JITLISTEN", "perfmap,unwind");
        system_calls(&strace, &host).lines().filter(|line| line.contains("process_vm_readv(")).count()
    };
    let (reads_for_one, reads_for_many) = (count_reads(1), count_reads(5_000));
    assert!(reads_for_one > 0, "the library is there, and its code is read so");
    assert!(
        reads_for_many < reads_for_one + 100,
        "{reads_for_many} reads for 5,000 functions, {reads_for_one} for one"
    );
}

/// 20,000 functions in 20,000 sections cost eight times as much as 2,500, not sixty-four times.
#[test]
fn work_grows_with_the_functions_of_an_object() {
    let Some([single, medium, large]) =
        [1, 2_500, 20_000].map(measure_work).into_iter().collect::<Option<Vec<_>>>().map(|results| {
            let results: [(u64, u64); 3] = results.try_into().expect("three");
            results
        })
    else {
        return;
    };
    let instruction_ratio = (large.0 - single.0) as f64 / (medium.0 - single.0) as f64;
    // Sorting takes O(n log n) time: the factor is 8 x 14.3 / 11.3.
    assert!(
        (6.0..10.5).contains(&instruction_ratio),
        "{instruction_ratio:.1} times the instructions: {single:?}, {medium:?}, {large:?}"
    );
    assert!(
        large.1 - single.1 <= 9 * (medium.1 - single.1).max(100),
        "system calls: {single:?}, {medium:?}, {large:?}"
    );
}

/// The library reserves address space for unwind entries: a gibibyte without a limit, but little under `ulimit -v`.
#[test]
fn a_limited_address_space_is_left_to_the_program() {
    let library_kib = fs::metadata(paths::library()).expect("built").len() >> 10;
    let measure_extra_kib = |limit: &str| {
        let host = calls_in_shell(limit, &["address-space"])?.variable("JITLISTEN", "perfmap,unwind");
        let [stock, preloaded] =
            [Preload::Nothing, Preload::Library].map(|preload| read_number(&host, preload, "VmPeak"));
        Some(preloaded.saturating_sub(stock + library_kib))
    };
    let (Some(limited_kib), Some(unlimited_kib)) = (measure_extra_kib("ulimit -v 2000000"), measure_extra_kib("true"))
    else {
        return;
    };
    assert!(limited_kib <= 64 << 10, "{limited_kib} KiB under the limit");
    assert!(unlimited_kib > 256 << 10, "{unlimited_kib} KiB without a limit: nothing is seen");
}

/// The library does not change blocked, ignored and caught signals, neither at startup nor when an object is loaded and
/// freed.
#[test]
fn the_signal_masks_are_the_programs() {
    for shell_command in ["true", "trap '' USR2"] {
        let Some(host) = calls_in_shell(shell_command, &["signals"]) else { return };
        let host = host.variable("JITLISTEN", "all");
        let [stock, preloaded] =
            [Preload::Nothing, Preload::Library].map(|preload| host.run(preload).expect_success().stdout);
        let text = String::from_utf8_lossy(&preloaded).into_owned();
        assert_eq!(text.lines().filter(|line| line.starts_with("SigBlk")).count(), 3, "{text}");
        assert!(text.lines().any(|line| line.starts_with("SigBlk") && !line.ends_with("0000000000000000")), "{text}");
        assert_eq!(text, String::from_utf8_lossy(&stock), "{shell_command}");
    }
}
