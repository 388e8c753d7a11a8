//! The C API with a JIT without LLVM (`hosts/raw_jit.c`), which writes machine code by hand and reports it. Nothing is
//! preloaded.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::linked::compile_jit;
use jitlisten_tests::paths::Scratch;
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::scenario::{self, Symbols, Verdict};
use jitlisten_tests::{gdb, perf, perf_inject, support_table, walk};

const INTEGRATION: &str = "C API";

/// Compiles `hosts/raw_jit.c` and sets the host's sinks.
pub(crate) fn raw_jit(seconds: &str, sinks: &str, build_dir: &Scratch) -> Option<Host> {
    let program = compile_jit("raw_jit", build_dir)?;
    Some(Host::new(program, "raw-jit").argument(seconds).variable("JITLISTEN", sinks))
}

#[test]
fn perf_reads_the_map() {
    let build_dir = Scratch::new("raw-jit-bin");
    let (Some(()), Some(host)) = (perf::is_available(), raw_jit("2", "perfmap", &build_dir)) else { return };
    let recording = perf::record(&host, Preload::Nothing);
    scenario::assert_samples_named(&recording.samples, &recording.perf_map(), "gamma");
    Verdict::from_samples(&recording.samples, "raw_jit").assert_complete();
    support_table::record_cell(INTEGRATION, "perf map");
}

#[test]
fn perf_injects_the_jitdump_with_its_lines() {
    let build_dir = Scratch::new("raw-jit-bin");
    let (Some(()), Some(host)) = (perf::is_available(), raw_jit("2", "jitdump", &build_dir)) else { return };
    let injected = perf_inject::record_with(host, Preload::Nothing, 499, "fp");
    let (gamma, total) = (injected.count_leaves_in("gamma"), injected.samples.len());
    assert!(
        gamma >= 100 && gamma * 10 >= total * 8,
        "{gamma} of {total} samples are in gamma: {:?}",
        injected.count_leaves()
    );
    let complete_samples = injected.samples.iter().filter(|sample| {
        let symbols: Vec<&str> = sample.frames.iter().filter_map(|frame| frame.symbol.as_deref()).collect();
        symbols.starts_with(&["gamma", "beta", "alpha", "call_alpha"])
    });
    let complete_samples = complete_samples.count();
    assert!(complete_samples * 100 >= gamma * 95, "{complete_samples} of {gamma} stacks are complete");
    let lines = injected.dump().named("gamma").next().expect("gamma is in the dump").line_numbers();
    assert_eq!(lines, [21, 22, 23].into());
    support_table::record_cell(INTEGRATION, "jitdump");
}

#[test]
fn perf_takes_the_image_for_a_library() {
    let build_dir = Scratch::new("raw-jit-bin");
    let (Some(()), Some(host)) = (perf::is_available(), raw_jit("2", "image", &build_dir)) else { return };
    let recording = perf::record(&host, Preload::Nothing);
    assert_eq!(recording.map, None, "no perf map was asked for");
    let jit_samples = recording
        .samples
        .iter()
        .filter(|sample| sample.frames.first().is_some_and(|leaf| leaf.object.contains("/image-")));
    let (mut total, mut complete_samples) = (0, 0);
    for sample in jit_samples {
        let symbols: Vec<&str> = sample.frames.iter().filter_map(|frame| frame.symbol.as_deref()).collect();
        total += 1;
        complete_samples += usize::from(symbols.starts_with(&["gamma", "beta", "alpha", "call_alpha"]));
    }
    assert!(
        total >= 150 && complete_samples * 100 >= total * 95,
        "{complete_samples} of {total} stacks are complete\n{}",
        host.log()
    );
    support_table::record_cell(INTEGRATION, "image");
}

/// perf looks for unwind tables in the first page of a file, which only an image with padding has in memory.
#[test]
fn perf_unwinds_by_the_tables_of_an_image_with_padding() {
    for (word, expects_callers) in [("padded", true), ("frameless", false)] {
        let build_dir = Scratch::new("raw-jit-bin");
        let (Some(()), Some(host)) = (perf::is_available(), raw_jit("2", "image", &build_dir)) else { return };
        let recording = perf::record_dwarf(&host.argument(word), Preload::Nothing);
        let (mut total, mut complete) = (0, 0);
        for sample in &recording.samples {
            let symbols: Vec<&str> = sample.frames.iter().filter_map(|frame| frame.symbol.as_deref()).collect();
            total += usize::from(symbols.first() == Some(&"gamma"));
            complete += usize::from(symbols.starts_with(&["gamma", "beta", "alpha", "call_alpha"]));
        }
        assert!(total >= 30, "{word}: {total} samples");
        let expected = if expects_callers { complete * 100 >= total * 95 } else { complete == 0 };
        assert!(expected, "{word}: {complete} of {total} stacks are complete");
    }
}

#[test]
fn gdb_knows_the_frames() {
    let build_dir = Scratch::new("raw-jit-bin");
    let (Some(()), Some(host)) = (gdb::is_available(), raw_jit("60", "gdb", &build_dir)) else { return };
    let mut running = host.start(Preload::Nothing);
    running.wait_for_line("running");
    // The innermost function occasionally reads the clock.
    let session = gdb::attach_in("gamma", &running);
    // gdb ends the stack at `main`, so there are no outer frames to check.
    let check_result = scenario::check_backtrace(&session.backtrace, "call_alpha", Symbols::Stripped);
    check_result.unwrap_or_else(|error| panic!("{error}\n{}", session.output));
    let [leaf, .., last] = &session.backtrace.frames[..] else { panic!("{}", session.output) };
    assert!(leaf.contains("chain.raw:22") && last.starts_with("main"), "{:?}", session.backtrace.frames);
    support_table::record_cell(INTEGRATION, "gdb");
}

/// Without unwind tables, gdb could not leave `beta`, whose frame pointer register holds 0 during its call.
#[test]
fn gdb_leaves_a_function_without_a_frame_pointer() {
    for tables in ["frameless", "tableless"] {
        let build_dir = Scratch::new("raw-jit-bin");
        let (Some(()), Some(host)) = (gdb::is_available(), raw_jit("60", "gdb", &build_dir)) else { return };
        let host = host.argument(tables);
        let mut running = host.start(Preload::Nothing);
        running.wait_for_line("running");
        let session = gdb::attach_in("gamma", &running);
        let check_result = scenario::check_backtrace(&session.backtrace, "call_alpha", Symbols::Stripped);
        check_result.unwrap_or_else(|error| panic!("{tables}: {error}\n{}", session.output));
        let last = session.backtrace.frames.last();
        assert!(last.is_some_and(|last| last.starts_with("main")), "{tables}: {:?}", session.backtrace.frames);
    }
}

#[test]
fn in_process_unwinders_walk_it() {
    for unwinder in walk::UNWINDERS {
        let build_dir = Scratch::new("raw-jit-bin");
        let Some(host) = raw_jit("1", "unwind", &build_dir) else { return };
        // Without tables, libunwind follows frame pointers, which this code keeps.
        if unwinder == "libgcc" {
            let stock = raw_jit("1", "perfmap", &build_dir).expect("compiled just before");
            let Some(stock_walk) = walk::run_with_walker(stock, unwinder, Preload::Nothing) else { return };
            assert!(stock_walk.samples > 0 && stock_walk.complete == 0, "{unwinder} walks without us: {stock_walk:?}");
        }
        let Some(walked) = walk::run_with_walker(host, unwinder, Preload::Nothing) else { return };
        walked.assert_complete();
        support_table::record_cell(INTEGRATION, unwinder);
        for tables in ["frameless", "tableless"] {
            let host = raw_jit("1", "unwind", &build_dir).expect("compiled just before").argument(tables);
            walk::run_with_walker(host, unwinder, Preload::Nothing).expect("it ran before").assert_complete();
        }
    }
}

/// A library that is both linked and preloaded is loaded only once, and its session is open before the program opens
/// one.
#[test]
fn a_library_that_is_linked_and_preloaded_has_one_session() {
    let build_dir = Scratch::new("raw-jit-bin");
    let Some(host) = raw_jit("0", "perfmap", &build_dir) else { return };
    let outcome = host.run(Preload::Library).expect_success();
    let map = PerfMap::parse(outcome.map.as_deref().expect("there is a map")).expect("it obeys the rules");
    assert_eq!(map.named("gamma").count(), 1);
}
