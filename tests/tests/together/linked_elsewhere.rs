//! Hosts that link code for a place where they write it by themselves, and that may run all the time, as Julia does:
//! only the `.eh_frame` that is registered says where an object is.

use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};

const COUNT: usize = 20;

fn program(scratch: &Scratch, llvm: u32) -> Option<PathBuf> {
    let compiler = tool::require("c++", Absence::FailsInCi)?;
    let config = tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)?;
    let words = |arguments: &[&str]| {
        let output = tool::run(Command::new(&config).args(arguments));
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let include = words(&["--includedir"]).concat();
    let mut flags = vec!["-O1".to_owned(), "-std=c++17".to_owned(), "-isystem".to_owned(), include];
    flags.extend(["-Wall", "-Wextra", "-Werror"].map(str::to_owned));
    flags.extend(words(&["--link-shared", "--ldflags", "--libs"]));
    let program = scratch.join("elsewhere");
    let flags: Vec<&str> = ["-Wl,--no-as-needed"].into_iter().chain(flags.iter().map(String::as_str)).collect();
    tool::compile(&compiler, &flags, &paths::host("elsewhere.cpp"), &program);
    Some(program)
}

/// Runs the host with the library, which observes that, and without; returns the log when everything is compiled.
fn run(llvm: u32, mode: &str, listens_to: &str) -> Option<(Ended, String)> {
    let scratch = Scratch::new("elsewhere");
    let host = Host::new(program(&scratch, llvm)?, "elsewhere").argument(mode).argument(COUNT.to_string());
    let host = host.variable("JITLISTEN", "perfmap,image,unwind").variable("JITLISTEN_LOG", "debug:log");
    let host = host.variable("JITLISTEN_LLVM", listens_to);
    let mut log = String::new();
    let mut run = |preload| {
        let mut running = host.start(preload);
        running.wait_for_line("running");
        log = host.log();
        running.nod();
        running.end().well()
    };
    let stock = run(Preload::Nothing);
    let ended = run(Preload::Library);
    let first = |ended: &Ended| ended.stdout.split(|&byte| byte == b'\n').next().map(<[u8]>::to_vec);
    assert_eq!((first(&ended), &ended.stderr), (first(&stock), &stock.stderr));
    Some((ended, log))
}

/// Julia registers nothing with debuggers; an engine of LLVM's own does.
const AS_JULIA: &str = "runtimedyld";

fn heard(log: &str) -> [usize; 3] {
    ["loaded", "finalized", "freeing"].map(|word| log.matches(&format!("{word} ObjectId")).count())
}

/// Each has its name once, and at the address that LLVM has for it; returns the log.
fn every_function_is_named(llvm: u32, mode: &str, listens_to: &str) -> Option<String> {
    let (ended, log) = run(llvm, mode, listens_to)?;
    let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
    let mut expected: Vec<(u64, &str)> = Vec::new();
    for line in stdout.lines().filter(|line| line.starts_with("elsewhere")) {
        let (name, address) = line.split_once(' ').expect("a name and an address");
        expected.push((u64::from_str_radix(address, 16).expect("an address"), name));
    }
    expected.sort_unstable();
    let map = ended.perf_map();
    let named: Vec<(u64, &str)> = map.entries.iter().map(|entry| (entry.start, entry.name.as_str())).collect();
    assert_eq!(expected.len(), COUNT);
    assert_eq!(named, expected, "{log}");
    Some(log)
}

#[test]
fn code_that_is_written_through_proc_self_mem() {
    for llvm in [14, 22] {
        let Some(log) = every_function_is_named(llvm, "mem", AS_JULIA) else { continue };
        assert_eq!(heard(&log), [COUNT, COUNT, 0], "{log}");
    }
}

#[test]
fn code_that_is_written_through_another_mapping() {
    let Some(log) = every_function_is_named(14, "shared", AS_JULIA) else { return };
    assert_eq!(heard(&log), [COUNT, COUNT, 0], "{log}");
}

/// LLVM's list has each where it runs, after the linker has reported it where it was written: one of the two goes.
#[test]
fn what_llvm_lists_for_debuggers_where_it_has_moved_it() {
    let Some(log) = every_function_is_named(14, "mem", "all") else { return };
    assert_eq!(heard(&log), [2 * COUNT, COUNT, COUNT], "{log}");
}

/// Each fits each table: a name would be a guess. The last one that waits is the only one left.
#[test]
fn equal_functions_have_no_names_or_their_own() {
    let Some((ended, log)) = run(14, "equal", AS_JULIA) else { return };
    assert!(log.matches("finalized ObjectId").count() <= 1, "{log}");
    let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
    for entry in ended.map.as_ref().map(|_| ended.perf_map().entries).unwrap_or_default() {
        assert!(stdout.contains(&format!("{} {:x}\n", entry.name, entry.start)), "{entry:x?}\n{stdout}");
    }
}
