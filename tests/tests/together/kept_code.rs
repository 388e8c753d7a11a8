//! A host that destroys its engines and keeps their code. The code is live until its memory is unmapped, not just until
//! LLVM removes it from the GDB JIT list.

use std::fs;
use std::path::PathBuf;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::log::ObjectCounts;
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};

const FUNCTION_COUNT: usize = 50;

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("g++", Absence::FailsInCi)?;
    let llvm_config = tool::require("llvm-config-14", Absence::FailsInCi)?;
    let output = tool::run(std::process::Command::new(llvm_config).args(["--includedir", "--libdir"]));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (include, libraries) = text.trim().split_once('\n').expect("two lines");
    let program = scratch.join("keeps_code");
    let (include, libraries) = (format!("-isystem{include}"), format!("-L{libraries}"));
    let flags = ["-std=c++17", "-O1", "-fno-rtti", &include, &libraries, "-Wl,--no-as-needed", "-lLLVM-14"];
    tool::compile(&compiler, &flags, &paths::root().join("tests/cpp/keeps_code.cpp"), &program);
    Some(program)
}

#[test]
fn code_outlives_its_engine() {
    let scratch = Scratch::new("keeps-code");
    let Some(program) = program(&scratch) else { return };
    // The quota is smaller than all images together. If the code counted as freed, its image files would be deleted to
    // make space for new ones.
    let host = Host::new(program, "kept").argument(FUNCTION_COUNT.to_string()).variable("JITLISTEN_QUOTA", "100k");
    let host = host.variable("JITLISTEN", "perfmap,image,unwind").variable("JITLISTEN_LOG", "debug:log");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let maps = fs::read_to_string(format!("/proc/{}/maps", running.pid())).expect("maps");
    let images: Vec<&str> = maps.lines().filter(|line| line.contains("/image-")).collect();
    assert!(!images.is_empty(), "{maps}");
    assert!(images.iter().all(|line| !line.contains("(deleted)")), "files of code that may run are gone:\n{maps}");
    let log = host.log();
    assert_eq!(ObjectCounts::in_log(&log), ObjectCounts::new(FUNCTION_COUNT, FUNCTION_COUNT, 0), "{log}");
    running.send_newline();
    running.wait_for_line("freed");
    assert_eq!(ObjectCounts::in_log(&host.log()).freed, FUNCTION_COUNT, "{}", host.log());
    running.send_newline();
    let outcome = running.wait().expect_success();
    assert_eq!(outcome.perf_map().named("kept7").count(), 1);
}
