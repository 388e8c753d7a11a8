//! The C++ adapters of `include/jitlisten_llvm.hpp` in programs that embed LLVM 14 to 22: every pair of LLVM, engine
//! and consumer.
//!
//! `mcjit` is MCJIT with our memory manager, `mcjit_said` MCJIT with its own, where the program says when code is
//! final.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::perf_script::Sample;
use jitlisten_tests::scenario::{self, CHAIN, Symbols, Verdict};
use jitlisten_tests::{embedder, gdb, perf, perf_inject, support_table};

/// The function of the host that calls alpha.
const CALLER: &str = "work";

/// Deliberately without what it takes to be walked.
const BARE: &str = "hosts/chain.ll";
/// The same in sections of their own, with unused functions between, which JITLink drops.
const SPLIT: &str = "cpp/split.ll";

/// Each engine belongs to one of two integrations.
fn seen(engine: &str, consumer: &str) {
    support_table::seen(if engine == "orc-jitlink" { "C++ plugin" } else { "C++ listener" }, consumer);
}

fn chain(llvm: u32, engine: &str, seconds: u32) -> Option<Host> {
    embedder::host(llvm, engine, BARE, seconds)
}

/// Every sample has a name, 95 of 100 stacks are complete, and the map they come from obeys every rule.
fn perf_map(llvm: u32, engine: &str) {
    let (Some(()), Some(host)) = (perf::is_here(), chain(llvm, engine, 1)) else { return };
    let recording = perf::record(&host, Preload::Nothing);
    let map = recording.perf_map();
    for function in CHAIN {
        assert!(map.named(function).next().is_some(), "the perf map does not name {function}:\n{}", map.names());
    }
    scenario::every_sample_is_named(&recording.samples, &map, "gamma");
    Verdict::of(&recording.samples, &format!("host-{llvm}")).is_complete();
    seen(engine, "perf map");
}

/// The names come from `perf inject`, and no map is there to help.
fn jitdump(llvm: u32, engine: &str) {
    let (Some(()), Some(host)) = (perf::is_here(), chain(llvm, engine, 1)) else { return };
    let host = host.variable("JITLISTEN", "jitdump");
    let injected = perf_inject::record_with(host, Preload::Nothing, 997, "fp");
    whole_stacks(&injected.samples, |object| object.contains("jitted-"));
    seen(engine, "jitdump");
}

/// The names come from an ELF file mapped over the code.
fn image(llvm: u32, engine: &str) {
    let (Some(()), Some(host)) = (perf::is_here(), chain(llvm, engine, 1)) else { return };
    let host = host.variable("JITLISTEN", "image");
    let recording = perf::record(&host, Preload::Nothing);
    assert_eq!(recording.map, None, "no perf map was asked for");
    whole_stacks(&recording.samples, |object| object.contains("/image-"));
    seen(engine, "image");
}

/// Requires the chain up to its caller in 95 of 100 samples whose leaf is in an object of this kind.
#[track_caller]
fn whole_stacks(samples: &[Sample], is_ours: impl Fn(&str) -> bool) {
    let is_whole = |sample: &&&Sample| {
        let caller = sample.frames.get(CHAIN.len()).and_then(|frame| frame.symbol.as_deref());
        scenario::begins_with_chain(&sample.frames) && caller.is_some_and(|symbol| scenario::names(symbol, CALLER))
    };
    let ours = samples.iter().filter(|sample| sample.frames.first().is_some_and(|leaf| is_ours(&leaf.object)));
    let ours: Vec<&Sample> = ours.collect();
    let whole = ours.iter().filter(is_whole).count();
    assert!(ours.len() >= 150, "only {} of {} samples are in such objects", ours.len(), samples.len());
    assert!(whole * 100 >= ours.len() * 95, "{whole} of {} stacks are whole", ours.len());
}

/// LLVM's own registration; but before LLVM 19 its plugin for JITLink leaves out what has no debug information, so
/// there it is our list that gdb reads.
fn gdb(llvm: u32, engine: &str) {
    let (Some(()), Some(host)) = (gdb::is_here(), chain(llvm, engine, 60)) else { return };
    let sinks = if engine == "orc-jitlink" && llvm < 19 { "gdb" } else { "perfmap,unwind" };
    let host = host.variable("JITLISTEN", sinks);
    let mut running = host.start(Preload::Nothing);
    running.wait_for_line("running");
    // One in very many stops is in a function that calls gamma.
    let session = gdb::attach_in("gamma", &running);
    // gdb ends at main, where it knows main's debug information.
    let whole = session.backtrace.frames.last().is_some_and(|frame| frame.starts_with("main "));
    let checked = scenario::check_backtrace(&session.backtrace, CALLER, Symbols::Stripped);
    assert!(checked.is_ok() && whole, "{}\ngdb said:\n{}", checked.err().unwrap_or_default(), session.output);
    seen(engine, "gdb");
}

fn libunwind(llvm: u32, engine: &str) {
    every_walk_is_whole(llvm, engine, "libunwind");
}

fn libgcc(llvm: u32, engine: &str) {
    every_walk_is_whole(llvm, engine, "libgcc");
}

/// By unwind tables alone: the code keeps no frame pointers.
fn every_walk_is_whole(llvm: u32, engine: &str, unwinder: &str) {
    for source in [BARE, SPLIT] {
        let Some(host) = embedder::host(llvm, engine, source, 1) else { return };
        let ended = host.argument("tables").argument(unwinder).run(Preload::Nothing).well();
        let walked = Walked::read(&ended.stderr);
        assert!(walked.taken >= 20, "{source}: only {} walks", walked.taken);
        assert_eq!((walked.complete, walked.frames), (walked.taken, 3), "{source}: {}", ended.stderr);
    }
    seen(engine, unwinder);
}

/// Each object is reported three times, and nothing else is, with engines in four threads: four times twelve.
fn every_object_is_freed(llvm: u32, engine: &str) {
    let Some(host) = embedder::host(llvm, engine, SPLIT, 0) else { return };
    let ended = host.argument("threads").run(Preload::Nothing).well();
    assert_eq!(ended.stderr, "48 loaded, 48 finalized, 48 freed, 0 refused\n");
}

/// What the host says of its walks.
struct Walked {
    taken: u32,
    complete: u32,
    frames: u32,
}

impl Walked {
    /// `41 walks, 41 complete, 3 frames`
    fn read(stderr: &str) -> Self {
        let line =
            stderr.lines().find(|line| line.contains(" walks, ")).unwrap_or_else(|| panic!("no walks: {stderr}"));
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
        let mut number = || numbers.next().expect("three numbers");
        Walked { taken: number(), complete: number(), frames: number() }
    }
}

macro_rules! rows {
    ($($row:ident: $llvm:literal, $engine:literal => [$($consumer:ident),*];)*) => {
        $(mod $row { $(#[test] fn $consumer() { super::$consumer($llvm, $engine) })* })*
    };
}

// Every pair of LLVM and consumer, of engine and consumer, and of LLVM and engine. gdb reads an object of JITLink by
// LLVM's own list from LLVM 19 on, so it has a second row of that engine.
rows! {
    llvm_14_mcjit: 14, "mcjit" => [perf_map, gdb, every_object_is_freed];
    llvm_14_mcjit_said: 14, "mcjit-said" => [perf_map, every_object_is_freed];
    llvm_14_orc_rtdyld: 14, "orc-rtdyld" => [jitdump, libunwind];
    llvm_14_orc_jitlink: 14, "orc-jitlink" => [image, libgcc];
    llvm_15_mcjit: 15, "mcjit" => [image, libgcc];
    llvm_15_orc_rtdyld: 15, "orc-rtdyld" => [perf_map, gdb, every_object_is_freed];
    llvm_15_orc_jitlink: 15, "orc-jitlink" => [jitdump, libunwind];
    llvm_16_mcjit: 16, "mcjit" => [jitdump, libunwind];
    llvm_16_orc_rtdyld: 16, "orc-rtdyld" => [image, libgcc];
    llvm_16_orc_jitlink: 16, "orc-jitlink" => [perf_map, gdb, every_object_is_freed];
    llvm_19_mcjit: 19, "mcjit" => [perf_map, gdb, every_object_is_freed];
    llvm_19_orc_rtdyld: 19, "orc-rtdyld" => [jitdump, libunwind];
    llvm_19_orc_jitlink: 19, "orc-jitlink" => [image, libgcc];
    llvm_22_mcjit: 22, "mcjit" => [image, libgcc];
    llvm_22_mcjit_said: 22, "mcjit-said" => [perf_map, every_object_is_freed];
    llvm_22_orc_rtdyld: 22, "orc-rtdyld" => [perf_map, gdb, every_object_is_freed];
    llvm_22_orc_jitlink: 22, "orc-jitlink" => [jitdump, gdb, libunwind];
}

/// The control: as LLVM compiles these functions by itself, no unwinder gets through them without rules of ours.
#[test]
fn walks_end_in_code_that_is_left_as_it_is() {
    for (engine, unwinder) in [("mcjit", "libgcc"), ("orc-rtdyld", "libunwind"), ("orc-jitlink", "libgcc")] {
        let Some(host) = chain(14, engine, 1) else { return };
        let host = host.variable("JITLISTEN", "perfmap").argument("as-is").argument(unwinder);
        let walked = Walked::read(&host.run(Preload::Nothing).well().stderr);
        assert!(walked.taken >= 20 && walked.frames < 3, "{engine}: {} whole: the rows prove nothing", walked.complete);
    }
}

#[test]
fn another_compiler_agrees() {
    // One for each dialect.
    for llvm in [15, 22] {
        let Some(()) = embedder::other_compiler_agrees(llvm) else { continue };
    }
}
