//! A host that has LLVM compile objects to memory and loads them itself; also other uses of such objects.

#![cfg(target_arch = "x86_64")]

use std::path::PathBuf;

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::log::{self, LogEvent, ObjectCounts};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, image, jitdump_reader, machine_code};

const OBJECT_COUNT: usize = 6;
const LLVMS: [u32; 3] = [14, 19, 22];
const FUNCTIONS: [&str; 4] = ["outer", "inner", "ghc", "hidden"];

/// Lines that a host prints before its pauses, in order.
const PAUSES: [&str; 3] = ["running", "one more", "unmapped"];

fn program(scratch: &Scratch, llvm: u32) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let llvm_config = tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)?;
    let output = tool::run(std::process::Command::new(llvm_config).arg("--libdir"));
    let link_path = format!("-L{}", String::from_utf8_lossy(&output.stdout).trim());
    let (program, library) = (scratch.join(&format!("self-loaded-{llvm}")), format!("-lLLVM-{llvm}"));
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", &link_path, "-Wl,--no-as-needed", &library];
    tool::compile(&compiler, &flags, &paths::host("self_loaded.c"), &program);
    Some(program)
}

fn host(scratch: &Scratch, llvm: u32, mode: &str) -> Option<Host> {
    let host = Host::new(program(scratch, llvm)?, &format!("self-loaded-{mode}"));
    let host = host.argument(mode).argument(OBJECT_COUNT.to_string()).variable("JITLISTEN_LOG", "debug:log");
    Some(host.variable("JITLISTEN", "perfmap,image,unwind,gdb"))
}

/// Numbers of objects that were loaded, became final, and were freed.
fn count_events(host: &Host) -> [usize; 3] {
    let ObjectCounts { loaded, finalized, freed } = ObjectCounts::in_log(&host.log());
    [loaded, finalized, freed]
}

/// Warnings in the log, except those about functions without a frame pointer (`ghcN`) and about memory that gets no
/// image.
fn warnings(log: &str) -> Vec<&str> {
    let is_known = |line: &&str| {
        matches!(
            LogEvent::from_line(line),
            Some(LogEvent::LoadedWithoutFramePointers { .. } | LogEvent::NoImage { .. })
        )
    };
    log.lines().filter(|line| line.contains(" warn: ") && !is_known(line)).collect()
}

/// Runs the host, and calls `inspect` with the index of each pause and the pid.
fn run(host: &Host, preload: Preload, mut inspect: impl FnMut(usize, u32)) -> Outcome {
    let mut running = host.start(preload);
    for (pause, line) in PAUSES.into_iter().enumerate() {
        running.wait_for_line(line);
        inspect(pause, running.pid());
        running.send_newline();
    }
    running.wait().expect_success()
}

/// Asserts the expected numbers of objects and images at each pause, the output of the stock program, and that every
/// live function is named once at the end.
fn check_every_object(llvm: u32, mode: &str, expected: [[usize; 3]; 3], images: [usize; 3]) {
    let scratch = Scratch::new("self-loaded");
    let Some(host) = host(&scratch, llvm, mode) else { return };
    let stock = run(&host, Preload::Nothing, |_, _| {});
    let outcome = run(&host, Preload::Library, |pause, pid| {
        let log = host.log();
        assert_eq!(count_events(&host), expected[pause], "LLVM {llvm}, {mode}, at {:?}:\n{log}", PAUSES[pause]);
        assert_eq!(
            image::count_mappings(pid),
            images[pause],
            "images, LLVM {llvm}, {mode}, at {:?}:\n{log}",
            PAUSES[pause]
        );
    });
    assert_eq!((&outcome.stdout, &outcome.stderr), (&stock.stdout, &stock.stderr));
    let (map, log) = (outcome.perf_map(), host.log());
    assert_eq!(count_events(&host)[..2], [OBJECT_COUNT + 1; 2], "{log}");
    assert_eq!(warnings(&log), [""; 0]);
    for number in 0..=OBJECT_COUNT {
        // Overwritten functions must not be in the perf map.
        let copies = usize::from(mode != "reused" || number == OBJECT_COUNT);
        for function in FUNCTIONS {
            let name = format!("{function}{number}");
            assert_eq!(map.named(&name).count(), copies, "LLVM {llvm}, {mode}: {name}:\n{}\n{log}", map.names());
        }
    }
}

#[test]
fn objects_that_the_program_loads() {
    let (initial, total) = (OBJECT_COUNT, OBJECT_COUNT + 1);
    for llvm in LLVMS {
        let event_counts = [[initial, initial, 0], [total, total, 0], [total, total, OBJECT_COUNT / 2]];
        check_every_object(llvm, "protect", event_counts, [initial, total, total - OBJECT_COUNT / 2]);
    }
}

/// The memory is executable before the code is written, and no call announces the code. The library finds it when the
/// next module is compiled, or at exit.
#[test]
fn objects_in_memory_that_may_be_written_and_executed_all_the_time() {
    let (initial, total) = (OBJECT_COUNT - 1, OBJECT_COUNT);
    for llvm in LLVMS {
        let event_counts = [[initial, initial, 0], [total, total, 0], [total, total, OBJECT_COUNT / 2]];
        check_every_object(llvm, "writable", event_counts, [0; 3]);
    }
}

/// Overwritten code counts as freed, although no call reports it.
#[test]
fn objects_that_are_written_over_one_another() {
    let (initial, total) = (OBJECT_COUNT - 1, OBJECT_COUNT);
    for llvm in LLVMS {
        let event_counts = [[initial, initial, initial - 1], [total, total, total - 1], [total, total, total - 1]];
        check_every_object(llvm, "reused", event_counts, [0; 3]);
    }
}

/// Identical objects stay unnamed, even if the ones that the library remembers were compiled long after those that it
/// has forgotten.
#[test]
fn of_equal_objects_none_has_a_name_when_others_are_forgotten() {
    let scratch = Scratch::new("self-loaded");
    let Some(program) = program(&scratch, LLVMS[1]) else { return };
    let host = Host::new(program, "self-loaded-doubtful").argument("doubtful").argument("100");
    let host = host.variable("JITLISTEN", "perfmap").variable("JITLISTEN_LOG", "debug:log");
    run(&host, Preload::Library, |_, _| {});
    assert_eq!(count_events(&host), [0; 3], "{}", host.log());
}

/// RuntimeDyld or JITLink reports each object once.
#[test]
fn objects_that_the_program_passes_to_llvm() {
    check_linker_reports("linked");
}

/// bcc and bpftrace use LLVM to compile programs that the kernel runs.
#[test]
fn an_object_for_another_architecture_is_not_an_error() {
    check_linker_reports("bpf");
}

fn check_linker_reports(mode: &str) {
    let (initial, total) = (OBJECT_COUNT, OBJECT_COUNT + 1);
    for llvm in LLVMS {
        let event_counts = [[initial, initial, 0], [total, total, 0], [total, total, 0]];
        check_every_object(llvm, mode, event_counts, [initial, total, total]);
    }
}

/// Assembly and objects for another architecture stay the same to the byte; the host prints their sizes. Identical code
/// gets no names.
#[test]
fn what_is_not_loaded_or_not_certain_has_no_names_and_no_warning() {
    for (llvm, mode) in [(14, "other"), (19, "file"), (19, "equal"), (22, "assembly"), (22, "other")] {
        let scratch = Scratch::new("self-loaded");
        let Some(host) = host(&scratch, llvm, mode) else { return };
        let stock = run(&host, Preload::Nothing, |_, _| {});
        let outcome = run(&host, Preload::Library, |_, _| {});
        assert_eq!((&outcome.stdout, &outcome.stderr), (&stock.stdout, &stock.stderr));
        let log = host.log();
        assert_eq!(count_events(&host), [0; 3], "LLVM {llvm}, {mode}: {log}");
        assert_eq!(warnings(&log), [""; 0], "LLVM {llvm}, {mode}");
        let is_equal = log::events(&log).any(|event| matches!(event, LogEvent::EqualCompiled { .. }));
        assert_eq!(is_equal, mode == "equal", "{log}");
    }
}

/// If a linker's source is disabled, the library does not search for objects that may have been passed to that linker.
#[test]
fn what_is_left_out_is_not_looked_for() {
    let scratch = Scratch::new("self-loaded");
    let count_objects = |llvm: &str| {
        let host = host(&scratch, LLVMS[1], "protect")?.variable("JITLISTEN_LLVM", llvm);
        run(&host, Preload::Library, |_, _| {});
        Some(count_events(&host)[1])
    };
    let Some(all_objects) = count_objects("all") else { return };
    assert_eq!(all_objects, OBJECT_COUNT + 1);
    assert_eq!(
        ["runtimedyld,jitlink", "runtimedyld,list", "jitlink", "off"].map(count_objects),
        [all_objects, 0, 0, 0].map(Some)
    );
}

/// Every function gets a frame pointer, except functions that take an argument in the frame-pointer register, and their
/// callers.
#[test]
fn functions_keep_a_frame_pointer() {
    for (llvm, policy) in LLVMS.into_iter().flat_map(|llvm| [(llvm, "1"), (llvm, "untouched")]) {
        let scratch = Scratch::new("self-loaded");
        let Some(host) = host(&scratch, llvm, "protect") else { return };
        let host = host.variable("JITLISTEN_FRAME_POINTERS", policy);
        let host = host.variable("JITLISTEN", "jitdump").variable("JITDUMPDIR", ".");
        run(&host, Preload::Library, |_, _| {});
        let dumps = jitdump_reader::find(&host.scratch("."));
        let [dump] = &dumps[..] else { panic!("{dumps:?}") };
        let dump = jitdump_reader::read(dump);
        assert_eq!(dump.functions.len(), FUNCTIONS.len() * (OBJECT_COUNT + 1));
        for function in dump.functions {
            let uses_register = ["hidden", "ghc"].iter().any(|name| function.name.starts_with(name));
            let expected = policy == "1" && !uses_register;
            let keeps_pointer = machine_code::keeps_frame_pointer(&function.code);
            assert_eq!(keeps_pointer, expected, "LLVM {llvm}, {policy}: {} {:x?}", function.name, function.code);
        }
    }
}

#[test]
fn gdb_names_functions_and_their_callers() {
    let scratch = Scratch::new("self-loaded");
    let (Some(()), Some(host)) = (gdb::is_available(), host(&scratch, LLVMS[1], "protect")) else { return };
    let host = host.argument("loops").variable("JITLISTEN", "perfmap,gdb");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let last = OBJECT_COUNT - 1;
    let session = gdb::attach_at(&format!("inner{last}"), &running);
    let frames = &session.backtrace.frames;
    let expected = [format!("inner{last} ()"), format!("outer{last} ()"), "main ()".to_owned()];
    assert_eq!(frames.get(..3), Some(&expected[..]), "{}\n{}", session.output, host.log());
}

/// The observed LLVM never had the cached objects, so no names are available, and each mapping appears as one function.
#[test]
fn code_from_a_programs_cache_is_named_by_its_addresses() {
    let (scratch, Some(compiler)) = (Scratch::new("cached"), tool::require("cc", Absence::FailsInCi)) else { return };
    let program = scratch.join("cached");
    tool::compile(&compiler, &["-O1", "-Wall", "-Wextra", "-Werror", "-ldl"], &paths::host("loads_cached.c"), &program);
    for (llvm, count) in [("all", OBJECT_COUNT), ("off", 0)] {
        let host = Host::new(&program, "cached").argument(OBJECT_COUNT.to_string()).variable("JITLISTEN_LLVM", llvm);
        let host = host.variable("JITLISTEN", "perfmap").variable("JITLISTEN_LOG", "debug:log");
        let outcome = host.run(Preload::Library).expect_success();
        assert_eq!(count_events(&host)[1], count, "{}", host.log());
        let map = (count > 0).then(|| outcome.perf_map());
        for line in String::from_utf8_lossy(&outcome.stdout).lines().filter_map(|line| line.strip_prefix("0x")) {
            let name = format!("cached+jit@{line}");
            assert!(map.as_ref().is_none_or(|map| map.named(&name).count() == 1), "{name}: {}", host.log());
        }
    }
}
