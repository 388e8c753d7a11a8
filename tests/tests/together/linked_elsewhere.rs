//! Hosts that, like Julia, link code for its final address and copy it there themselves, into memory that is always
//! executable. Only the registered `.eh_frame` reveals where an object is.

use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::log::ObjectCounts;
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};

const FUNCTION_COUNT: usize = 20;

fn program(scratch: &Scratch, llvm: u32) -> Option<PathBuf> {
    let compiler = tool::require("c++", Absence::FailsInCi)?;
    let llvm_config = tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)?;
    let query_config = |args: &[&str]| {
        let output = tool::run(Command::new(&llvm_config).args(args));
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let include = query_config(&["--includedir"]).concat();
    let mut flags = vec!["-O1".to_owned(), "-std=c++17".to_owned(), "-isystem".to_owned(), include];
    flags.extend(["-Wall", "-Wextra", "-Werror"].map(str::to_owned));
    flags.extend(query_config(&["--link-shared", "--ldflags", "--libs"]));
    let program = scratch.join("elsewhere");
    let flags: Vec<&str> = ["-Wl,--no-as-needed"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    tool::compile(&compiler, &flags, &paths::host("elsewhere.cpp"), &program);
    Some(program)
}

/// Runs the host without the library, and then with these sources enabled. Returns the outcome and the log as of the
/// end of compilation.
fn run(llvm: u32, mode: &str, sources: &str) -> Option<(Outcome, String)> {
    let scratch = Scratch::new("elsewhere");
    let host = Host::new(program(&scratch, llvm)?, "elsewhere").argument(mode).argument(FUNCTION_COUNT.to_string());
    let host = host.variable("JITLISTEN", "perfmap,image,unwind").variable("JITLISTEN_LOG", "debug:log");
    let host = host.variable("JITLISTEN_LLVM", sources);
    let mut log = String::new();
    let mut run = |preload| {
        let mut running = host.start(preload);
        running.wait_for_line("running");
        log = host.log();
        running.send_newline();
        running.wait().expect_success()
    };
    let stock = run(Preload::Nothing);
    let outcome = run(Preload::Library);
    let first_line = |outcome: &Outcome| outcome.stdout.split(|&byte| byte == b'\n').next().map(<[u8]>::to_vec);
    assert_eq!((first_line(&outcome), &outcome.stderr), (first_line(&stock), &stock.stderr));
    Some((outcome, log))
}

/// Sources for hosts that, like Julia, register nothing with debuggers. (LLVM's own engines register their objects.)
const JULIA_SOURCES: &str = "runtimedyld";

/// Asserts that each function has one name, at the address that LLVM returns for it. Returns the log.
fn check_every_function(llvm: u32, mode: &str, sources: &str) -> Option<String> {
    let (outcome, log) = run(llvm, mode, sources)?;
    let stdout = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let mut expected: Vec<(u64, &str)> = Vec::new();
    for line in stdout.lines().filter(|line| line.starts_with("elsewhere")) {
        let (name, address) = line.split_once(' ').expect("a name and an address");
        expected.push((u64::from_str_radix(address, 16).expect("an address"), name));
    }
    expected.sort_unstable();
    let map = outcome.perf_map();
    let map_entries: Vec<(u64, &str)> = map.entries.iter().map(|entry| (entry.start, entry.name.as_str())).collect();
    assert_eq!(expected.len(), FUNCTION_COUNT);
    assert_eq!(map_entries, expected, "{log}");
    Some(log)
}

#[test]
fn code_that_is_written_through_proc_self_mem() {
    for llvm in [14, 22] {
        let Some(log) = check_every_function(llvm, "mem", JULIA_SOURCES) else { continue };
        assert_eq!(ObjectCounts::in_log(&log), ObjectCounts::new(FUNCTION_COUNT, FUNCTION_COUNT, 0), "{log}");
    }
}

#[test]
fn code_that_is_written_through_another_mapping() {
    let Some(log) = check_every_function(14, "shared", JULIA_SOURCES) else { return };
    assert_eq!(ObjectCounts::in_log(&log), ObjectCounts::new(FUNCTION_COUNT, FUNCTION_COUNT, 0), "{log}");
}

/// The linker reports each object at the address where it was written; LLVM's list then has it at the address where it
/// runs. One of the two is freed.
#[test]
fn objects_that_llvm_lists_at_another_address() {
    let Some(log) = check_every_function(14, "mem", "all") else { return };
    assert_eq!(
        ObjectCounts::in_log(&log),
        ObjectCounts::new(2 * FUNCTION_COUNT, FUNCTION_COUNT, FUNCTION_COUNT),
        "{log}"
    );
}

/// Each object matches each unwind table, so any name would be a guess. Only the last pending object can be identified.
#[test]
fn equal_functions_have_no_names_or_their_own() {
    let Some((outcome, log)) = run(14, "equal", JULIA_SOURCES) else { return };
    assert!(ObjectCounts::in_log(&log).finalized <= 1, "{log}");
    let stdout = String::from_utf8_lossy(&outcome.stdout).into_owned();
    for entry in outcome.map.as_ref().map(|_| outcome.perf_map().entries).unwrap_or_default() {
        assert!(stdout.contains(&format!("{} {:x}\n", entry.name, entry.start)), "{entry:x?}\n{stdout}");
    }
}
