//! Hosts with their own memory managers: LLVM itself never makes memory executable.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::log::{self, LogEvent, ObjectCounts};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, image};

const OBJECT_COUNT: usize = 20;

/// Lines that a host prints before its pauses, in order.
const PAUSES: [&str; 3] = ["running", "one more", "unmapped"];

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let llvm_config = tool::require("llvm-config-14", Absence::FailsInCi)?;
    let output = tool::run(std::process::Command::new(llvm_config).arg("--libdir"));
    let libraries = format!("-L{}", String::from_utf8_lossy(&output.stdout).trim());
    let program = scratch.join("own_memory");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", &libraries, "-Wl,--no-as-needed", "-lLLVM-14"];
    tool::compile(&compiler, &flags, &paths::host("own_memory.c"), &program);
    Some(program)
}

fn host(scratch: &Scratch, mode: &str) -> Option<Host> {
    let host = Host::new(program(scratch)?, &format!("own-memory-{mode}"));
    let host = host.argument(mode).argument(OBJECT_COUNT.to_string()).variable("JITLISTEN_LOG", "debug:log");
    Some(host.variable("JITLISTEN", "perfmap,image,unwind"))
}

fn count_events(host: &Host) -> ObjectCounts {
    ObjectCounts::in_log(&host.log())
}

fn count_never_final(log: &str) -> usize {
    log::count(log, |event| matches!(event, LogEvent::NeverFinal { .. }))
}

/// Runs the host, and calls `at_pause` with the index of each pause.
fn run(host: &Host, preload: Preload, mut at_pause: impl FnMut(usize)) -> Outcome {
    run_with_pid(host, preload, |pause, _| at_pause(pause))
}

/// Runs the host, and calls `at_pause` with the index of each pause and the pid.
fn run_with_pid(host: &Host, preload: Preload, mut at_pause: impl FnMut(usize, u32)) -> Outcome {
    let mut running = host.start(preload);
    for (pause, line) in PAUSES.into_iter().enumerate() {
        running.wait_for_line(line);
        at_pause(pause, running.pid());
        running.send_newline();
    }
    running.wait().expect_success()
}

/// Asserts that every object is detected, named, and freed when it is unmapped. Returns the outcome and the log. Unless
/// its pages stay writable, each object must run from an image.
fn check_every_object(mode: &str, freed: usize) -> Option<(Outcome, String)> {
    let scratch = Scratch::new("own-memory");
    let host = host(&scratch, mode)?;
    let stock = run(&host, Preload::Nothing, |_| {});
    let outcome = run_with_pid(&host, Preload::Library, |pause, pid| {
        let expected = match pause {
            0 => ObjectCounts::new(OBJECT_COUNT, OBJECT_COUNT, 0),
            1 => ObjectCounts::new(OBJECT_COUNT + 1, OBJECT_COUNT + 1, 0),
            _ => ObjectCounts::new(OBJECT_COUNT + 1, OBJECT_COUNT + 1, freed),
        };
        assert_eq!(count_events(&host), expected, "{mode}, at {:?}:\n{}", PAUSES[pause], host.log());
        let pages_change = ["writable", "early"].contains(&mode);
        let images = if pages_change { 0 } else { expected.finalized - expected.freed };
        assert_eq!(image::count_mappings(pid), images, "images, {mode}, at {:?}:\n{}", PAUSES[pause], host.log());
    });
    assert_eq!((&outcome.stdout, &outcome.stderr), (&stock.stdout, &stock.stderr));
    let map = outcome.perf_map();
    for number in 0..=OBJECT_COUNT {
        assert_eq!(map.named(&format!("own{number}")).count(), 1, "own{number}:\n{}", map.names());
    }
    Some((outcome, host.log()))
}

#[test]
fn a_program_that_calls_mprotect_itself() {
    let Some((_, log)) = check_every_object("protect", OBJECT_COUNT / 2) else { return };
    assert_eq!(log::count(&log, |event| matches!(event, LogEvent::NoImage { .. })), 0, "{log}");
}

#[test]
fn a_program_that_calls_pkey_mprotect() {
    check_every_object("pkey", OBJECT_COUNT / 2);
}

#[test]
fn memory_that_is_always_writable_and_executable() {
    check_every_object("writable", OBJECT_COUNT / 2);
}

#[test]
fn memory_that_is_executable_before_the_code_is_written() {
    check_every_object("early", OBJECT_COUNT / 2);
}

#[test]
fn code_that_is_copied_after_linking() {
    check_every_object("copied", OBJECT_COUNT / 2);
}

/// Two identical objects are pending when one of them is copied, and nothing tells which of them it is.
#[test]
fn equal_code_that_is_copied_has_no_names() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "twins") else { return };
    let stock = run(&host, Preload::Nothing, |_| {});
    let outcome = run(&host, Preload::Library, |_| {});
    assert_eq!((&outcome.stdout, &outcome.stderr), (&stock.stdout, &stock.stderr));
    let log = host.log();
    assert!(log::events(&log).any(|event| matches!(event, LogEvent::EqualMoved { .. })), "{log}");
    assert_eq!((count_events(&host).loaded, count_events(&host).finalized), (OBJECT_COUNT + 1, 0), "{log}");
}

/// The names of an object that is copied twice appear twice.
#[test]
fn the_same_code_that_is_copied_twice() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "same") else { return };
    let outcome = run(&host, Preload::Library, |_| {});
    let (map, log) = (outcome.perf_map(), host.log());
    assert_eq!((count_events(&host).loaded, count_events(&host).finalized), (OBJECT_COUNT + 1, OBJECT_COUNT), "{log}");
    for number in 0..OBJECT_COUNT / 2 {
        assert_eq!(map.named(&format!("own{number}")).count(), 2, "own{number}:\n{}\n{log}", map.names());
    }
}

/// drjit closes its engines after their memory is unmapped. LLVM once read the unwind tables that we had added, in that
/// unmapped memory.
#[test]
fn an_engine_that_ends_after_its_memory() {
    check_every_object("disposed", OBJECT_COUNT / 2);
}

/// LLVM listed the object at the address where it was linked, not where the code runs, and removed it from the list
/// together with the engine. gdb takes the names from our list.
#[test]
fn gdb_names_code_that_was_copied_out_of_an_engine() {
    let scratch = Scratch::new("own-memory");
    let (Some(()), Some(host)) = (gdb::is_available(), host(&scratch, "disposed")) else { return };
    let host = host.argument("loops").variable("JITLISTEN", "perfmap,gdb");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let session = gdb::attach_at(&format!("own{}", OBJECT_COUNT - 1), &running);
    let frames = &session.backtrace.frames;
    let is_frame = |candidate: Option<&String>, name: &str| candidate.is_some_and(|frame| frame.starts_with(name));
    let is_named =
        is_frame(frames.first(), &format!("own{} ", OBJECT_COUNT - 1)) && is_frame(frames.get(1), "call_last ");
    assert!(is_named && is_frame(frames.get(2), "main "), "{}\n{}", session.output, host.log());
}

#[test]
fn code_that_is_moved_after_linking() {
    check_every_object("moved", OBJECT_COUNT / 2);
}

/// No hook sees that the code becomes executable. After a second, the next event makes the library query the kernel for
/// the memory's permissions.
#[test]
fn code_that_becomes_executable_unobserved_is_found_late() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "unheard") else { return };
    let outcome = run_with_pid(&host, Preload::Library, |pause, pid| match pause {
        0 => {
            assert_eq!(count_events(&host), ObjectCounts::new(OBJECT_COUNT, 0, 0));
            thread::sleep(Duration::from_millis(1100));
        }
        1 => {
            assert_eq!(count_events(&host), ObjectCounts::new(OBJECT_COUNT + 1, OBJECT_COUNT, 0), "{}", host.log());
            assert_eq!(image::count_mappings(pid), OBJECT_COUNT, "images\n{}", host.log());
        }
        _ => assert_eq!(count_events(&host).freed, OBJECT_COUNT / 2),
    });
    assert_eq!(outcome.perf_map().named("own0").count(), 1);
    assert_eq!(count_never_final(&host.log()), 0, "{}", host.log());
}

#[test]
fn an_object_that_never_becomes_final_is_logged_once() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "never") else { return };
    let start_time = Instant::now();
    let mut running = host.start(Preload::Library);
    running.wait_for_line(PAUSES[0]);
    assert_eq!(count_never_final(&host.log()), 0, "after {:?}", start_time.elapsed());
    thread::sleep(Duration::from_millis(1100));
    for line in [PAUSES[1], PAUSES[2], "more"] {
        running.send_newline();
        running.wait_for_line(line);
    }
    running.send_newline();
    running.wait().expect_success();
    let log = host.log();
    let events: Vec<LogEvent<'_>> =
        log::events(&log).filter(|event| matches!(event, LogEvent::NeverFinal { .. })).collect();
    let [LogEvent::NeverFinal { library, reason, .. }] = events[..] else { panic!("{log}") };
    assert!(library.contains("libLLVM") && reason.starts_with("its memory may not be executed"), "{log}");
}

/// Continues the host at each pause, at the first one only after more than a second. Returns the counts at the last
/// pause.
fn final_counts(host: &Host) -> ObjectCounts {
    let mut running = host.start(Preload::Library);
    for line in PAUSES {
        running.wait_for_line(line);
        if line == "running" {
            thread::sleep(Duration::from_millis(1100));
        }
        running.send_newline();
    }
    running.wait_for_line("more");
    let counts = count_events(host);
    running.send_newline();
    assert_eq!(running.wait().expect_success().map, None, "nothing of it has ever run");
    counts
}

/// The program unmaps code that never ran. No hook sees that the objects are gone, but the library drops them.
#[test]
fn objects_that_never_become_final_go_with_their_memory() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "never") else { return };
    let counts = final_counts(&host);
    assert_eq!(counts, ObjectCounts::new(2 * OBJECT_COUNT + 1, 0, OBJECT_COUNT / 2), "{}", host.log());
}

/// LLVM frees the memory of a failed link, so the library drops its objects.
#[test]
fn objects_of_links_that_fail_are_not_kept() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "fails") else { return };
    let counts = final_counts(&host);
    assert_eq!((counts.loaded, counts.finalized), (2 * OBJECT_COUNT + 1, 0), "{}", host.log());
    // The last objects may not have been pending for a second.
    assert!(counts.freed >= OBJECT_COUNT, "{counts:?}: {}", host.log());
}
