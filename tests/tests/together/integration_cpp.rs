//! The C++ adapters of `include/jitlisten_llvm.hpp` in programs that embed LLVM 14 to 22: every pair of LLVM release,
//! engine and consumer.
//!
//! `mcjit` is MCJIT with our memory manager. `mcjit_said` is MCJIT with its own memory manager, and the program itself
//! reports finalized code.

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::perf_script::Sample;
use jitlisten_tests::scenario::{self, CHAIN, Symbols, Verdict};
use jitlisten_tests::{embedder, gdb, perf, perf_inject, support_table};

/// Function of the host that calls `alpha`.
const CALLER: &str = "work";

/// Module that deliberately has neither frame pointers nor unwind tables.
const BARE_MODULE: &str = "hosts/chain.ll";
/// Variant of `BARE_MODULE` with each function in its own section. JITLink drops the unused functions in between.
const SPLIT_MODULE: &str = "cpp/split.ll";

/// Records a tested pair in the support table. Each engine belongs to one of two integrations.
fn mark_tested(engine: &str, consumer: &str) {
    support_table::record_cell(if engine == "orc-jitlink" { "C++ plugin" } else { "C++ listener" }, consumer);
}

fn chain(llvm: u32, engine: &str, seconds: u32) -> Option<Host> {
    embedder::host(llvm, engine, BARE_MODULE, seconds)
}

/// Every sample has a name, 95 of 100 stacks are complete, and the perf map obeys every rule.
fn perf_map(llvm: u32, engine: &str) {
    let (Some(()), Some(host)) = (perf::is_available(), chain(llvm, engine, 1)) else { return };
    let recording = perf::record(&host, Preload::Nothing);
    let map = recording.perf_map();
    for function in CHAIN {
        assert!(map.named(function).next().is_some(), "the perf map does not name {function}:\n{}", map.names());
    }
    scenario::assert_samples_named(&recording.samples, &map, "gamma");
    Verdict::from_samples(&recording.samples, &format!("host-{llvm}")).assert_complete();
    mark_tested(engine, "perf map");
}

/// The function names come from `perf inject`; the host writes no perf map.
fn jitdump(llvm: u32, engine: &str) {
    let (Some(()), Some(host)) = (perf::is_available(), chain(llvm, engine, 1)) else { return };
    let host = host.variable("JITLISTEN", "jitdump");
    let injected = perf_inject::record_with(host, Preload::Nothing, 997, "fp");
    assert_whole_stacks(&injected.samples, |object| object.contains("jitted-"));
    mark_tested(engine, "jitdump");
}

/// The function names come from an ELF file that is mapped over the code.
fn image(llvm: u32, engine: &str) {
    let (Some(()), Some(host)) = (perf::is_available(), chain(llvm, engine, 1)) else { return };
    let host = host.variable("JITLISTEN", "image");
    let recording = perf::record(&host, Preload::Nothing);
    assert_eq!(recording.map, None, "no perf map was asked for");
    assert_whole_stacks(&recording.samples, |object| object.contains("/image-"));
    mark_tested(engine, "image");
}

/// Asserts that 95 of 100 samples whose leaf is in a JIT object have the whole chain and its caller.
#[track_caller]
fn assert_whole_stacks(samples: &[Sample], is_jit_object: impl Fn(&str) -> bool) {
    let is_whole = |sample: &&&Sample| {
        let caller = sample.frames.get(CHAIN.len()).and_then(|frame| frame.symbol.as_deref());
        scenario::begins_with_chain(&sample.frames)
            && caller.is_some_and(|symbol| scenario::names_function(symbol, CALLER))
    };
    let jit_samples =
        samples.iter().filter(|sample| sample.frames.first().is_some_and(|leaf| is_jit_object(&leaf.object)));
    let jit_samples: Vec<&Sample> = jit_samples.collect();
    let whole_stacks = jit_samples.iter().filter(is_whole).count();
    assert!(jit_samples.len() >= 150, "only {} of {} samples are in such objects", jit_samples.len(), samples.len());
    assert!(whole_stacks * 100 >= jit_samples.len() * 95, "{whole_stacks} of {} stacks are whole", jit_samples.len());
}

/// gdb reads the objects that LLVM itself registers. Before LLVM 19, its JITLink plugin omits objects without debug
/// information, so gdb reads our list instead.
fn gdb(llvm: u32, engine: &str) {
    let (Some(()), Some(host)) = (gdb::is_available(), chain(llvm, engine, 60)) else { return };
    let sinks = if engine == "orc-jitlink" && llvm < 19 { "gdb" } else { "perfmap,unwind" };
    let host = host.variable("JITLISTEN", sinks);
    let mut running = host.start(Preload::Nothing);
    running.wait_for_line("running");
    // Very rarely, gdb stops in a function that calls `gamma`.
    let session = gdb::attach_in("gamma", &running);
    // gdb ends the stack at `main`, because `main` has debug information.
    let reaches_main = session.backtrace.frames.last().is_some_and(|frame| frame.starts_with("main "));
    let check_result = scenario::check_backtrace(&session.backtrace, CALLER, Symbols::Stripped);
    assert!(
        check_result.is_ok() && reaches_main,
        "{}\ngdb said:\n{}",
        check_result.err().unwrap_or_default(),
        session.output
    );
    mark_tested(engine, "gdb");
}

fn libunwind(llvm: u32, engine: &str) {
    assert_whole_walks(llvm, engine, "libunwind");
}

fn libgcc(llvm: u32, engine: &str) {
    assert_whole_walks(llvm, engine, "libgcc");
}

/// The walks use only unwind tables, because the code keeps no frame pointers.
fn assert_whole_walks(llvm: u32, engine: &str, unwinder: &str) {
    for source in [BARE_MODULE, SPLIT_MODULE] {
        let Some(host) = embedder::host(llvm, engine, source, 1) else { return };
        let outcome = host.argument("tables").argument(unwinder).run(Preload::Nothing).expect_success();
        let counts = WalkCounts::read(&outcome.stderr);
        assert!(counts.walks >= 20, "{source}: only {} walks", counts.walks);
        assert_eq!((counts.complete, counts.frames), (counts.walks, 3), "{source}: {}", outcome.stderr);
    }
    mark_tested(engine, unwinder);
}

/// Engines in four threads report twelve objects each and no others. Each object is loaded, finalized and freed once.
fn every_object_is_freed(llvm: u32, engine: &str) {
    let Some(host) = embedder::host(llvm, engine, SPLIT_MODULE, 0) else { return };
    let outcome = host.argument("threads").run(Preload::Nothing).expect_success();
    assert_eq!(outcome.stderr, "48 loaded, 48 finalized, 48 freed, 0 refused\n");
}

/// Counts of stack walks that the host prints.
struct WalkCounts {
    walks: u32,
    complete: u32,
    frames: u32,
}

impl WalkCounts {
    /// Parses a line such as `41 walks, 41 complete, 3 frames`.
    fn read(stderr: &str) -> Self {
        let line =
            stderr.lines().find(|line| line.contains(" walks, ")).unwrap_or_else(|| panic!("no walks: {stderr}"));
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
        let mut number = || numbers.next().expect("three numbers");
        WalkCounts { walks: number(), complete: number(), frames: number() }
    }
}

macro_rules! rows {
    ($($row:ident: $llvm:literal, $engine:literal => [$($consumer:ident),*];)*) => {
        $(mod $row { $(#[test] fn $consumer() { super::$consumer($llvm, $engine) })* })*
    };
}

// The rows cover every pair of LLVM and consumer, of engine and consumer, and of LLVM and engine. From LLVM 19 on, gdb
// reads JITLink's objects from LLVM's own list, so that engine has a second gdb row.
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

/// Control: every unwinder must stop in code that stock LLVM generates; otherwise the other tests would prove nothing.
#[test]
fn walks_end_in_code_that_is_left_as_it_is() {
    for (engine, unwinder) in [("mcjit", "libgcc"), ("orc-rtdyld", "libunwind"), ("orc-jitlink", "libgcc")] {
        let Some(host) = chain(14, engine, 1) else { return };
        let host = host.variable("JITLISTEN", "perfmap").argument("as-is").argument(unwinder);
        let counts = WalkCounts::read(&host.run(Preload::Nothing).expect_success().stderr);
        assert!(counts.walks >= 20 && counts.frames < 3, "{engine}: {} whole: the rows prove nothing", counts.complete);
    }
}

#[test]
fn another_compiler_agrees() {
    // LLVM 15 and 22 represent the two C++ dialects.
    for llvm in [15, 22] {
        let Some(()) = embedder::check_with_other_compiler(llvm) else { continue };
    }
}
