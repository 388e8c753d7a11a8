//! `hosts/sampled_soak.cpp`: recordings begin and end every tenth of a second under threads that compile, fork, exec,
//! throw, walk their stacks, raise signals, begin, end, and load libraries. A minute here; `JITLISTEN_SOAK=3600` makes
//! it an hour.

use std::path::PathBuf;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::sampled::read;
use jitlisten_tests::tool::{self, Absence};

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("g++", Absence::FailsInCi)?;
    let config = tool::require("llvm-config-14", Absence::FailsInCi)?;
    let output = tool::run(std::process::Command::new(config).arg("--libdir"));
    let libraries = format!("-L{}", String::from_utf8_lossy(&output.stdout).trim());
    let include = format!("-I{}", paths::root().join("include").display());
    let program = scratch.join("sampled_soak");
    let flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", &include, &libraries];
    let linked = ["-Wl,--no-as-needed", "-lLLVM-14", "-ldl"];
    tool::compile(&compiler, &[&flags[..], &linked].concat(), &paths::host("sampled_soak.cpp"), &program);
    Some(program)
}

#[test]
fn starts_and_stops_under_threads_that_do_everything() {
    if tool::require("perf", Absence::FailsInCi).is_none() {
        return;
    }
    let seconds: u64 = std::env::var("JITLISTEN_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let scratch = Scratch::new("sampled-soak");
    let Some(program) = program(&scratch) else { return };
    let host = Host::new(program, "soak").variable("JITLISTEN", "unwind").patience(seconds + 120);
    let directory = host.scratch("");
    let host = host.argument(seconds.to_string()).argument(&directory);
    let ended = host.run(Preload::Library).well();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [recordings, samples, before, after, descriptors, descriptors_after] = numbers[..] else { panic!("{said}") };
    // A machine with better things to do gets to fewer.
    // How many there are says how busy the machine is; some must be.
    assert!(recordings > seconds / 10 && samples > seconds / 10, "{said}");
    // From a fifth of the time on nothing grows.
    assert!(after < before + before / 5 + 4096, "{said}");
    assert!(descriptors_after <= descriptors, "{said}");
    let whole: usize = (0..8).map(|number| read(&directory.join(format!("soak-{number}.data"))).len()).sum();
    assert!(whole > 0, "perf reads the last eight: {said}");
}
