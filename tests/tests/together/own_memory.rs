//! Hosts whose LLVM never makes memory executable itself: they have memory managers of their own.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{gdb, image};

const COUNT: usize = 20;

/// What a host does, in the order of its waits.
const WAITS: [&str; 3] = ["running", "one more", "unmapped"];

fn program(scratch: &Scratch) -> Option<PathBuf> {
    let compiler = tool::require("cc", Absence::FailsInCi)?;
    let config = tool::require("llvm-config-14", Absence::FailsInCi)?;
    let output = tool::run(std::process::Command::new(config).arg("--libdir"));
    let libraries = format!("-L{}", String::from_utf8_lossy(&output.stdout).trim());
    let program = scratch.join("own_memory");
    let flags = ["-O1", "-Wall", "-Wextra", "-Werror", &libraries, "-Wl,--no-as-needed", "-lLLVM-14"];
    tool::compile(&compiler, &flags, &paths::host("own_memory.c"), &program);
    Some(program)
}

fn host(scratch: &Scratch, mode: &str) -> Option<Host> {
    let host = Host::new(program(scratch)?, &format!("own-memory-{mode}"));
    let host = host.argument(mode).argument(COUNT.to_string()).variable("JITLISTEN_LOG", "debug:log");
    Some(host.variable("JITLISTEN", "perfmap,image,unwind"))
}

/// How many objects of each kind the log speaks of.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    loaded: usize,
    finalized: usize,
    freed: usize,
}

fn heard(host: &Host) -> Heard {
    let log = host.log();
    let count = |word: &str| log.matches(&format!("{word} ObjectId")).count();
    Heard { loaded: count("loaded"), finalized: count("finalized"), freed: count("freeing") }
}

/// Lets the host go on at each of its waits, after `wait`.
fn run(host: &Host, preload: Preload, mut wait: impl FnMut(usize)) -> Ended {
    run_looking(host, preload, |place, _| wait(place))
}

/// The same, with the process at each wait.
fn run_looking(host: &Host, preload: Preload, mut wait: impl FnMut(usize, u32)) -> Ended {
    let mut running = host.start(preload);
    for (place, line) in WAITS.into_iter().enumerate() {
        running.wait_for_line(line);
        wait(place, running.pid());
        running.nod();
    }
    running.end().well()
}

/// Every object is detected, named, and freed when it is unmapped; returns the log.
/// Where pages stay as they are, the code of each runs from an image.
fn every_object_is_heard(mode: &str, freed: usize) -> Option<(Ended, String)> {
    let scratch = Scratch::new("own-memory");
    let host = host(&scratch, mode)?;
    let stock = run(&host, Preload::Nothing, |_| {});
    let ended = run_looking(&host, Preload::Library, |place, pid| {
        let expected = match place {
            0 => Heard { loaded: COUNT, finalized: COUNT, freed: 0 },
            1 => Heard { loaded: COUNT + 1, finalized: COUNT + 1, freed: 0 },
            _ => Heard { loaded: COUNT + 1, finalized: COUNT + 1, freed },
        };
        assert_eq!(heard(&host), expected, "{mode}, at {:?}:\n{}", WAITS[place], host.log());
        let changes = ["writable", "early"].contains(&mode);
        let images = if changes { 0 } else { expected.finalized - expected.freed };
        assert_eq!(image::mapped(pid), images, "images, {mode}, at {:?}:\n{}", WAITS[place], host.log());
    });
    assert_eq!((&ended.stdout, &ended.stderr), (&stock.stdout, &stock.stderr));
    let map = ended.perf_map();
    for number in 0..=COUNT {
        assert_eq!(map.named(&format!("own{number}")).count(), 1, "own{number}:\n{}", map.names());
    }
    Some((ended, host.log()))
}

#[test]
fn a_program_that_calls_mprotect_itself() {
    let Some((_, log)) = every_object_is_heard("protect", COUNT / 2) else { return };
    assert!(!log.contains("no image for"), "{log}");
}

#[test]
fn a_program_that_calls_pkey_mprotect() {
    every_object_is_heard("pkey", COUNT / 2);
}

#[test]
fn memory_that_may_be_written_and_executed_all_the_time() {
    every_object_is_heard("writable", COUNT / 2);
}

#[test]
fn memory_that_may_be_executed_before_anything_was_heard() {
    every_object_is_heard("early", COUNT / 2);
}

#[test]
fn code_that_is_copied_after_linking() {
    every_object_is_heard("copied", COUNT / 2);
}

/// Two objects that are equal wait when one of them is copied: which one it is cannot be known.
#[test]
fn equal_code_that_is_copied_has_no_names() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "twins") else { return };
    let stock = run(&host, Preload::Nothing, |_| {});
    let ended = run(&host, Preload::Library, |_| {});
    assert_eq!((&ended.stdout, &ended.stderr), (&stock.stdout, &stock.stderr));
    let log = host.log();
    assert!(log.contains("equal objects linked for another address"), "{log}");
    assert_eq!((heard(&host).loaded, heard(&host).finalized), (COUNT + 1, 0), "{log}");
}

/// The same object twice has its names twice.
#[test]
fn the_same_code_that_is_copied_twice() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "same") else { return };
    let ended = run(&host, Preload::Library, |_| {});
    let (map, log) = (ended.perf_map(), host.log());
    assert_eq!((heard(&host).loaded, heard(&host).finalized), (COUNT + 1, COUNT), "{log}");
    for number in 0..COUNT / 2 {
        assert_eq!(map.named(&format!("own{number}")).count(), 2, "own{number}:\n{}\n{log}", map.names());
    }
}

/// drjit does so. With unwind tables that we had added, LLVM read them in memory that was gone.
#[test]
fn an_engine_that_ends_after_its_memory() {
    every_object_is_heard("disposed", COUNT / 2);
}

/// LLVM has taken the object out of its list with the engine, and it was never where the code is: what gdb knows is
/// ours.
#[test]
fn gdb_names_code_that_was_copied_out_of_an_engine() {
    let scratch = Scratch::new("own-memory");
    let (Some(()), Some(host)) = (gdb::is_here(), host(&scratch, "disposed")) else { return };
    let host = host.argument("loops").variable("JITLISTEN", "perfmap,gdb");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("running");
    let session = gdb::attach_at(&format!("own{}", COUNT - 1), &running);
    let frames = &session.backtrace.frames;
    let is = |at: Option<&String>, name: &str| at.is_some_and(|frame| frame.starts_with(name));
    let named = is(frames.first(), &format!("own{} ", COUNT - 1)) && is(frames.get(1), "call_last ");
    assert!(named && is(frames.get(2), "main "), "{}\n{}", session.output, host.log());
}

#[test]
fn code_that_is_moved_after_linking() {
    every_object_is_heard("moved", COUNT / 2);
}

/// No hook sees that the code becomes executable; the kernel is asked after a second, when something else happens.
#[test]
fn code_that_may_run_unheard_is_found_late() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "unheard") else { return };
    let ended = run_looking(&host, Preload::Library, |place, pid| match place {
        0 => {
            assert_eq!(heard(&host), Heard { loaded: COUNT, finalized: 0, freed: 0 });
            thread::sleep(Duration::from_millis(1100));
        }
        1 => {
            assert_eq!(heard(&host), Heard { loaded: COUNT + 1, finalized: COUNT, freed: 0 }, "{}", host.log());
            assert_eq!(image::mapped(pid), COUNT, "images\n{}", host.log());
        }
        _ => assert_eq!(heard(&host).freed, COUNT / 2),
    });
    assert_eq!(ended.perf_map().named("own0").count(), 1);
    assert!(!host.log().contains("not final after a second"), "{}", host.log());
}

#[test]
fn an_object_that_never_becomes_final_is_worth_one_line() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "never") else { return };
    let began = Instant::now();
    let mut running = host.start(Preload::Library);
    running.wait_for_line(WAITS[0]);
    assert!(!host.log().contains("not final"), "after {:?}", began.elapsed());
    thread::sleep(Duration::from_millis(1100));
    for line in [WAITS[1], WAITS[2], "more"] {
        running.nod();
        running.wait_for_line(line);
    }
    running.nod();
    running.end().well();
    let log = host.log();
    assert_eq!(log.matches("is not final after a second: its memory may not be executed").count(), 1, "{log}");
    assert!(log.lines().any(|line| line.contains("libLLVM") && line.contains(": an object at ")), "no library: {log}");
}

/// Lets the host continue at each of its waits, with more than a second after the first, and returns the counts at the
/// last.
fn heard_at_the_end(host: &Host) -> Heard {
    let mut running = host.start(Preload::Library);
    for line in WAITS {
        running.wait_for_line(line);
        if line == "running" {
            thread::sleep(Duration::from_millis(1100));
        }
        running.nod();
    }
    running.wait_for_line("more");
    let heard = heard(host);
    running.nod();
    assert_eq!(running.end().well().map, None, "nothing of it has ever run");
    heard
}

/// The program unmaps code that never ran: no hook sees that, and the objects are not kept.
#[test]
fn objects_that_never_become_final_go_with_their_memory() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "never") else { return };
    let heard = heard_at_the_end(&host);
    assert_eq!(heard, Heard { loaded: 2 * COUNT + 1, finalized: 0, freed: COUNT / 2 }, "{}", host.log());
}

/// LLVM gives the memory back when a link fails: no object of it is kept.
#[test]
fn objects_of_links_that_fail_are_not_kept() {
    let scratch = Scratch::new("own-memory");
    let Some(host) = host(&scratch, "fails") else { return };
    let heard = heard_at_the_end(&host);
    assert_eq!((heard.loaded, heard.finalized), (2 * COUNT + 1, 0), "{}", host.log());
    // The last ones may not have had their second.
    assert!(heard.freed >= COUNT, "{heard:?}: {}", host.log());
}
