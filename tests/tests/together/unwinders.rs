//! The unwinders inside a process: a signal handler walks from compiled code to the start of the program, with nongnu
//! libunwind and with libgcc, whether they were there before the code or came after.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration;
use jitlisten_tests::{paths, support_table, walk};

const VENVS: [&str; 4] = ["numba-0.68.1", "numba-0.60.0", "numba-0.57.1", "numba-0.56.4"];

/// What `hosts/walked.py` says of one unwinder.
struct Walked {
    unwinder: String,
    /// What libunwind calls the compiled frames.
    names: String,
    samples: u32,
    complete: u32,
    compiled_frames: u32,
}

fn host(venv: &str, when: &str) -> Option<Host> {
    let host = Host::new(integration::python(venv)?, venv).argument(paths::host("walked.py"));
    let walker = walk::walker(&host)?;
    Some(host.argument(walker).argument("1").argument(when))
}

fn walked(host: &Host, preload: Preload) -> Vec<Walked> {
    let ended = host.run(preload).well();
    let said = |lines: &[&str]| {
        let mut words = lines.first()?.split_ascii_whitespace();
        let unwinder = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        let names = (*lines.get(1)?).to_owned();
        Some(Walked { unwinder, names, samples: number()?, complete: number()?, compiled_frames: number()? })
    };
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let walked: Vec<Walked> = lines.chunks(2).filter_map(said).collect();
    assert_eq!(walked.len(), 2, "{}", ended.stderr);
    walked
}

fn every_walk_is_complete(when: &str, frame_pointers: &str) {
    for venv in VENVS {
        let Some(host) = host(venv, when) else { continue };
        let host = host.variable("JITLISTEN_FRAME_POINTERS", frame_pointers);
        for Walked { unwinder, samples, complete, compiled_frames, .. } in walked(&host, Preload::Library) {
            assert!(samples >= 20, "{venv}, {unwinder}: only {samples} samples");
            assert_eq!(samples, complete, "{venv}, {unwinder}: walks that did not reach the start");
            assert_eq!(compiled_frames, 3, "{venv}, {unwinder}: gamma, beta, and beta's wrapper are compiled");
            support_table::seen("shim, stock wheels", &unwinder);
        }
    }
}

#[test]
fn stock_walks_end_in_compiled_code() {
    let Some(host) = host(VENVS[0], "early") else { return };
    for Walked { unwinder, samples, complete, .. } in walked(&host, Preload::Nothing) {
        assert!(samples >= 20 && complete == 0, "{unwinder}: {complete} of {samples}: the other tests prove nothing");
    }
}

#[test]
fn every_walk_reaches_the_start() {
    every_walk_is_complete("early", "1");
}

#[test]
fn an_unwinder_that_comes_later_knows_too() {
    every_walk_is_complete("late", "1");
}

#[test]
fn no_frame_pointer_is_needed() {
    every_walk_is_complete("early", "0");
}

#[test]
fn with_images_libunwind_knows_the_names() {
    let Some(host) = host(VENVS[0], "early") else { return };
    let host = host.variable("JITLISTEN", "image,unwind");
    for Walked { unwinder, samples, complete, names, .. } in walked(&host, Preload::Library) {
        assert!(samples >= 20 && samples == complete, "{unwinder}: {complete} of {samples}");
        for function in ["gamma", "beta", "cpython"] {
            assert!(names.contains(function), "{unwinder}: {function} is not among {names:?}");
        }
    }
}

/// Code that a stock process has left in Numba's cache: no frame pointers, and for some functions no unwind table.
#[test]
fn rules_are_read_from_code_that_has_none() {
    let Some(host) = host(VENVS[0], "early") else { return };
    let host = host.argument("cache");
    let _ = host.run(Preload::Nothing).well();
    for Walked { unwinder, samples, complete, .. } in walked(&host, Preload::Library) {
        if unwinder == "libunwind" {
            assert!(samples >= 20 && samples == complete, "{unwinder}: {complete} of {samples}");
        }
    }
}
