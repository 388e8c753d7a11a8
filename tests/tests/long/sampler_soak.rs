//! Starts and stops recordings every tenth of a second (`hosts/sampled_soak.cpp`) while threads compile, fork, exec,
//! throw, walk their stacks, raise signals, start, exit, and load libraries. The test takes a minute;
//! `JITLISTEN_SOAK=3600` makes it an hour.

use std::path::PathBuf;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::sampled::read;
use jitlisten_tests::tool::{self, Absence};

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("g++", Absence::FailsInCi)?;
    let llvm_config = tool::require("llvm-config-14", Absence::FailsInCi)?;
    let output = tool::run(std::process::Command::new(llvm_config).arg("--libdir"));
    let libraries = format!("-L{}", String::from_utf8_lossy(&output.stdout).trim());
    let include = format!("-I{}", paths::root().join("include").display());
    let program = scratch.join("sampled_soak");
    let flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", &include, &libraries];
    let link_flags = ["-Wl,--no-as-needed", "-lLLVM-14", "-ldl"];
    tool::compile(&compiler, &[&flags[..], &link_flags].concat(), &paths::host("sampled_soak.cpp"), &program);
    Some(program)
}

#[test]
fn starts_and_stops_while_threads_do_everything() {
    if tool::require("perf", Absence::FailsInCi).is_none() {
        return;
    }
    let seconds: u64 = std::env::var("JITLISTEN_SOAK").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let scratch = Scratch::new("sampled-soak");
    let Some(program) = program(&scratch) else { return };
    let host = Host::new(program, "soak").variable("JITLISTEN", "unwind").timeout_seconds(seconds + 120);
    let directory = host.scratch("");
    let host = host.argument(seconds.to_string()).argument(&directory);
    let outcome = host.run(Preload::Library).expect_success();
    let output = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let numbers: Vec<u64> = output.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [recordings, samples, early_memory, final_memory, descriptors, descriptors_after] = numbers[..] else {
        panic!("{output}")
    };
    // The number of recordings depends on the machine's load, but there must be some.
    assert!(recordings > seconds / 10 && samples > seconds / 10, "{output}");
    // The first memory measurement is taken after a fifth of the time; from then on, memory use must not grow.
    assert!(final_memory < early_memory + early_memory / 5 + 4096, "{output}");
    assert!(descriptors_after <= descriptors, "{output}");
    let readable_samples: usize = (0..8).map(|number| read(&directory.join(format!("soak-{number}.data"))).len()).sum();
    assert!(readable_samples > 0, "perf reads the last eight: {output}");
}
