//! A host that has LLVM compile objects to memory and loads them by itself, and what else becomes of such objects.

#![cfg(target_arch = "x86_64")]

use std::path::PathBuf;

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, image, jitdump_reader, machine_code};

const COUNT: usize = 6;
const LLVMS: [u32; 3] = [14, 19, 22];
const FUNCTIONS: [&str; 4] = ["outer", "inner", "ghc", "hidden"];

/// What a host does, in the order of its waits.
const WAITS: [&str; 3] = ["running", "one more", "unmapped"];

fn program(scratch: &Scratch, llvm: u32) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let config = tool::require(&format!("llvm-config-{llvm}"), Absence::FailsInCi)?;
    let output = tool::run(std::process::Command::new(config).arg("--libdir"));
    let directory = format!("-L{}", String::from_utf8_lossy(&output.stdout).trim());
    let (program, library) = (scratch.join(&format!("self-loaded-{llvm}")), format!("-lLLVM-{llvm}"));
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", &directory, "-Wl,--no-as-needed", &library];
    tool::compile(&compiler, &flags, &paths::host("self_loaded.c"), &program);
    Some(program)
}

fn host(scratch: &Scratch, llvm: u32, mode: &str) -> Option<Host> {
    let host = Host::new(program(scratch, llvm)?, &format!("self-loaded-{mode}"));
    let host = host.argument(mode).argument(COUNT.to_string()).variable("JITLISTEN_LOG", "debug:log");
    Some(host.variable("JITLISTEN", "perfmap,image,unwind,gdb"))
}

/// How many objects were loaded, became final, and were freed.
fn heard(host: &Host) -> [usize; 3] {
    let log = host.log();
    ["loaded", "finalized", "freeing"].map(|word| log.matches(&format!("debug: {word} ObjectId(")).count())
}

/// What the log warns of, beside functions that have no frame pointer (ghcN) and memory that gets no image.
fn warnings(log: &str) -> Vec<&str> {
    let known = ["code without frame pointers was loaded", "its pages are writable"];
    log.lines().filter(|line| line.contains(" warn: ") && !known.iter().any(|known| line.contains(known))).collect()
}

/// Lets the host go on at each of its waits, after `look`.
fn run(host: &Host, preload: Preload, mut look: impl FnMut(usize, u32)) -> Ended {
    let mut running = host.start(preload);
    for (place, line) in WAITS.into_iter().enumerate() {
        running.wait_for_line(line);
        look(place, running.pid());
        running.nod();
    }
    running.end().well()
}

/// At each wait so many objects are detected, in the end all; the output is that of the stock program, and every
/// function that is there in the end is named once.
fn every_object_is_heard(llvm: u32, mode: &str, expected: [[usize; 3]; 3], images: [usize; 3]) {
    let scratch = Scratch::new("self-loaded");
    let Some(host) = host(&scratch, llvm, mode) else { return };
    let stock = run(&host, Preload::Nothing, |_, _| {});
    let ended = run(&host, Preload::Library, |place, pid| {
        let log = host.log();
        assert_eq!(heard(&host), expected[place], "LLVM {llvm}, {mode}, at {:?}:\n{log}", WAITS[place]);
        assert_eq!(image::mapped(pid), images[place], "images, LLVM {llvm}, {mode}, at {:?}:\n{log}", WAITS[place]);
    });
    assert_eq!((&ended.stdout, &ended.stderr), (&stock.stdout, &stock.stderr));
    let (map, log) = (ended.perf_map(), host.log());
    assert_eq!(heard(&host)[..2], [COUNT + 1; 2], "{log}");
    assert_eq!(warnings(&log), [""; 0]);
    for number in 0..=COUNT {
        // What others were written over is in no map.
        let times = usize::from(mode != "reused" || number == COUNT);
        for function in FUNCTIONS {
            let name = format!("{function}{number}");
            assert_eq!(map.named(&name).count(), times, "LLVM {llvm}, {mode}: {name}:\n{}\n{log}", map.names());
        }
    }
}

#[test]
fn objects_that_the_program_loads() {
    let (all, more) = (COUNT, COUNT + 1);
    for llvm in LLVMS {
        let heard = [[all, all, 0], [more, more, 0], [more, more, COUNT / 2]];
        every_object_is_heard(llvm, "protect", heard, [all, more, more - COUNT / 2]);
    }
}

/// The code comes after the right to run, and nothing announces it: it is found when the next module is compiled, and
/// at the exit.
#[test]
fn objects_in_memory_that_may_be_written_and_executed_all_the_time() {
    let (before, all) = (COUNT - 1, COUNT);
    for llvm in LLVMS {
        let heard = [[before, before, 0], [all, all, 0], [all, all, COUNT / 2]];
        every_object_is_heard(llvm, "writable", heard, [0; 3]);
    }
}

/// Code that is overwritten is gone, though no call says so.
#[test]
fn objects_that_are_written_over_one_another() {
    let (before, all) = (COUNT - 1, COUNT);
    for llvm in LLVMS {
        let heard = [[before, before, before - 1], [all, all, all - 1], [all, all, all - 1]];
        every_object_is_heard(llvm, "reused", heard, [0; 3]);
    }
}

/// Equal objects stay without names when those that are remembered were compiled long after the others.
#[test]
fn of_equal_objects_none_has_a_name_when_others_are_forgotten() {
    let scratch = Scratch::new("self-loaded");
    let Some(program) = program(&scratch, LLVMS[1]) else { return };
    let host = Host::new(program, "self-loaded-doubtful").argument("doubtful").argument("100");
    let host = host.variable("JITLISTEN", "perfmap").variable("JITLISTEN_LOG", "debug:log");
    run(&host, Preload::Library, |_, _| {});
    assert_eq!(heard(&host), [0; 3], "{}", host.log());
}

/// RuntimeDyld or JITLink reports them: once.
#[test]
fn objects_that_the_program_gives_to_llvm() {
    linkers_report_every_object("linked");
}

/// bcc and bpftrace have LLVM link what the kernel shall run.
#[test]
fn an_object_for_another_machine_is_no_fault() {
    linkers_report_every_object("bpf");
}

fn linkers_report_every_object(mode: &str) {
    let (all, more) = (COUNT, COUNT + 1);
    for llvm in LLVMS {
        let heard = [[all, all, 0], [more, more, 0], [more, more, 0]];
        every_object_is_heard(llvm, mode, heard, [all, more, more]);
    }
}

/// Assembly and what is for another machine are the same to the byte (the host prints their sizes). Equal code has no
/// names.
#[test]
fn what_is_not_loaded_or_not_certain_has_no_names_and_no_warning() {
    for (llvm, mode) in [(14, "other"), (19, "file"), (19, "equal"), (22, "assembly"), (22, "other")] {
        let scratch = Scratch::new("self-loaded");
        let Some(host) = host(&scratch, llvm, mode) else { return };
        let stock = run(&host, Preload::Nothing, |_, _| {});
        let ended = run(&host, Preload::Library, |_, _| {});
        assert_eq!((&ended.stdout, &ended.stderr), (&stock.stdout, &stock.stderr));
        let log = host.log();
        assert_eq!(heard(&host), [0; 3], "LLVM {llvm}, {mode}: {log}");
        assert_eq!(warnings(&log), [""; 0], "LLVM {llvm}, {mode}");
        assert_eq!(log.contains("have equal code, or are in two places"), mode == "equal", "{log}");
    }
}

/// Where a linker is left out, an object that it may have got is not looked for.
#[test]
fn what_is_left_out_is_not_looked_for() {
    let scratch = Scratch::new("self-loaded");
    let objects = |llvm: &str| {
        let host = host(&scratch, LLVMS[1], "protect")?.variable("JITLISTEN_LLVM", llvm);
        run(&host, Preload::Library, |_, _| {});
        Some(heard(&host)[1])
    };
    let Some(all) = objects("all") else { return };
    assert_eq!(all, COUNT + 1);
    assert_eq!(["runtimedyld,jitlink", "runtimedyld,list", "jitlink", "off"].map(objects), [all, 0, 0, 0].map(Some));
}

/// Every function gets one but those that have an argument in its register, and their callers.
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
        assert_eq!(dump.functions.len(), FUNCTIONS.len() * (COUNT + 1));
        for function in dump.functions {
            let uses_register = ["hidden", "ghc"].iter().any(|name| function.name.starts_with(name));
            let expected = policy == "1" && !uses_register;
            let found = machine_code::keeps_frame_pointer(&function.code);
            assert_eq!(found, expected, "LLVM {llvm}, {policy}: {} {:x?}", function.name, function.code);
        }
    }
}

#[test]
fn gdb_names_functions_and_their_callers() {
    let scratch = Scratch::new("self-loaded");
    let (Some(()), Some(host)) = (gdb::is_here(), host(&scratch, LLVMS[1], "protect")) else { return };
    let host = host.argument("loops").variable("JITLISTEN", "perfmap,gdb");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let last = COUNT - 1;
    let session = gdb::attach_at(&format!("inner{last}"), &running);
    let frames = &session.backtrace.frames;
    let expected = [format!("inner{last} ()"), format!("outer{last} ()"), "main ()".to_owned()];
    assert_eq!(frames.get(..3), Some(&expected[..]), "{}\n{}", session.output, host.log());
}

/// Without the objects there are no names: the memory is one function.
#[test]
fn what_a_program_has_cached_has_addresses_for_names() {
    let (scratch, Some(compiler)) = (Scratch::new("cached"), tool::require("cc", Absence::FailsInCi)) else { return };
    let program = scratch.join("cached");
    tool::compile(&compiler, &["-O1", "-Wall", "-Wextra", "-Werror", "-ldl"], &paths::host("loads_cached.c"), &program);
    for (llvm, count) in [("all", COUNT), ("off", 0)] {
        let host = Host::new(&program, "cached").argument(COUNT.to_string()).variable("JITLISTEN_LLVM", llvm);
        let host = host.variable("JITLISTEN", "perfmap").variable("JITLISTEN_LOG", "debug:log");
        let ended = host.run(Preload::Library).well();
        assert_eq!(heard(&host)[1], count, "{}", host.log());
        let map = (count > 0).then(|| ended.perf_map());
        for line in String::from_utf8_lossy(&ended.stdout).lines().filter_map(|line| line.strip_prefix("0x")) {
            let name = format!("cached+jit@{line}");
            assert!(map.as_ref().is_none_or(|map| map.named(&name).count() == 1), "{name}: {}", host.log());
        }
    }
}
