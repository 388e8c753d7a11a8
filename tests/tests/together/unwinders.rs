//! Unwinders inside the process: a signal handler walks from compiled code to the start of the program, with nongnu
//! libunwind and with libgcc. The unwinder is loaded before or after the code is compiled.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::integration;
use jitlisten_tests::{paths, support_table, walk};

const VENVS: [&str; 4] = ["numba-0.68.1", "numba-0.60.0", "numba-0.57.1", "numba-0.56.4"];

/// Results that `hosts/walked.py` prints for one unwinder.
struct WalkCounts {
    unwinder: String,
    /// libunwind's names for the compiled frames.
    names: String,
    samples: u32,
    complete: u32,
    compiled_frames: u32,
}

fn host(venv: &str, load_order: &str) -> Option<Host> {
    let host = Host::new(integration::python(venv)?, venv).argument(paths::host("walked.py"));
    let walker = walk::compile_walker(&host)?;
    Some(host.argument(walker).argument("1").argument(load_order))
}

fn run_walks(host: &Host, preload: Preload) -> Vec<WalkCounts> {
    let outcome = host.run(preload).expect_success();
    let parse_counts = |lines: &[&str]| {
        let mut fields = lines.first()?.split_ascii_whitespace();
        let unwinder = fields.next()?.to_owned();
        let mut next_number = || fields.next()?.parse().ok();
        let names = (*lines.get(1)?).to_owned();
        Some(WalkCounts {
            unwinder,
            names,
            samples: next_number()?,
            complete: next_number()?,
            compiled_frames: next_number()?,
        })
    };
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let walk_counts: Vec<WalkCounts> = lines.chunks(2).filter_map(parse_counts).collect();
    assert_eq!(walk_counts.len(), 2, "{}", outcome.stderr);
    walk_counts
}

fn assert_complete_walks(load_order: &str, frame_pointers: &str) {
    for venv in VENVS {
        let Some(host) = host(venv, load_order) else { continue };
        let host = host.variable("JITLISTEN_FRAME_POINTERS", frame_pointers);
        for WalkCounts { unwinder, samples, complete, compiled_frames, .. } in run_walks(&host, Preload::Library) {
            assert!(samples >= 20, "{venv}, {unwinder}: only {samples} samples");
            assert_eq!(samples, complete, "{venv}, {unwinder}: walks that did not reach the start");
            assert_eq!(compiled_frames, 3, "{venv}, {unwinder}: gamma, beta, and beta's wrapper are compiled");
            support_table::record_cell("shim, stock wheels", &unwinder);
        }
    }
}

#[test]
fn stock_walks_end_in_compiled_code() {
    let Some(host) = host(VENVS[0], "early") else { return };
    for WalkCounts { unwinder, samples, complete, .. } in run_walks(&host, Preload::Nothing) {
        assert!(samples >= 20 && complete == 0, "{unwinder}: {complete} of {samples}: the other tests prove nothing");
    }
}

#[test]
fn every_walk_reaches_the_start() {
    assert_complete_walks("early", "1");
}

#[test]
fn an_unwinder_that_is_loaded_later_finds_the_tables() {
    assert_complete_walks("late", "1");
}

#[test]
fn no_frame_pointer_is_needed() {
    assert_complete_walks("early", "0");
}

#[test]
fn with_images_libunwind_knows_the_names() {
    let Some(host) = host(VENVS[0], "early") else { return };
    let host = host.variable("JITLISTEN", "image,unwind");
    for WalkCounts { unwinder, samples, complete, names, .. } in run_walks(&host, Preload::Library) {
        assert!(samples >= 20 && samples == complete, "{unwinder}: {complete} of {samples}");
        for function in ["gamma", "beta", "cpython"] {
            assert!(names.contains(function), "{unwinder}: {function} is not among {names:?}");
        }
    }
}

/// Numba's cache has code from a stock process: its functions lack frame pointers, and some lack unwind tables.
#[test]
fn rules_are_read_from_code_that_has_none() {
    let Some(host) = host(VENVS[0], "early") else { return };
    let host = host.argument("cache");
    let _ = host.run(Preload::Nothing).expect_success();
    for WalkCounts { unwinder, samples, complete, .. } in run_walks(&host, Preload::Library) {
        if unwinder == "libunwind" {
            assert!(samples >= 20 && samples == complete, "{unwinder}: {complete} of {samples}");
        }
    }
}
