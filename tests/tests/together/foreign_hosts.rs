//! jax, PostgreSQL and llvmpipe as distributions ship them. They register no listener, or register it late, but the
//! library detects their objects.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use jitlisten_tests::foreign::{self, Postgres};
use jitlisten_tests::host::{self, Outcome, Preload, Running};
use jitlisten_tests::log::ObjectCounts;
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::perf_script::{Frame, Sample};
use jitlisten_tests::{gdb, image, jitdump_reader, machine_code, paths, perf, perf_map, scenario};

fn names(map: &PerfMap) -> Vec<&str> {
    let mut names: Vec<&str> = map.entries.iter().map(|entry| &*entry.name).collect();
    names.sort_unstable();
    names
}

/// Number of objects that linkers and GDB JIT lists reported, according to the log.
fn count_loaded_objects(log: &str) -> usize {
    ObjectCounts::in_log(log).loaded
}

fn debug_log(host: host::Host) -> host::Host {
    let log = format!("debug:{}", host.scratch("log").display());
    host.variable("JITLISTEN_LOG", log)
}

#[test]
fn every_function_that_jax_compiles_is_named() {
    let Some(host) = foreign::jax(&[]) else { return };
    let outcome = host::assert_same_output(&debug_log(host));
    let outcome = outcome.expect_success();
    let map = outcome.perf_map();
    let Some(host) = foreign::jax(&[]) else { return };
    host.run(Preload::Nothing).expect_success();
    let dumped_names = foreign::dumped_functions(&host);
    assert!(dumped_names.len() >= 3, "{dumped_names:?}");
    assert_eq!(names(&map), dumped_names.iter().map(|name| &**name).collect::<Vec<_>>());
}

/// The compiled code runs from images, so perf attributes its samples to image files.
#[test]
fn perf_walks_from_a_fusion_of_jax_into_xla() {
    let (Some(()), Some(host)) = (perf::is_available(), foreign::jax(&["loop", "4"])) else { return };
    let host = host.timeout_seconds(300).variable("JITLISTEN", "perfmap,image");
    let recording = perf::record(&host, Preload::Library);
    let is_fusion = |symbol: &Option<String>| symbol.as_deref().is_some_and(|symbol| symbol.ends_with("_fusion"));
    let fusion_samples: Vec<_> = recording
        .samples
        .iter()
        .filter(|sample| sample.frames.first().is_some_and(|leaf| is_fusion(&leaf.symbol)))
        .collect();
    let reaches_xla =
        |frames: &[Frame]| frames.iter().skip(1).filter(|frame| frame.object.contains("libjax_common")).count() >= 2;
    let whole_stacks = fusion_samples.iter().filter(|sample| reaches_xla(&sample.frames)).count();
    assert!(
        fusion_samples.len() >= 100 && whole_stacks * 100 >= fusion_samples.len() * 90,
        "{whole_stacks} of {}",
        fusion_samples.len()
    );
    let leaves_outside_images: Vec<&Frame> =
        fusion_samples.iter().map(|sample| &sample.frames[0]).filter(|leaf| !image::is_image(&leaf.object)).collect();
    // perf attributes samples to an image only after the kernel has recorded its mapping. Samples taken on any
    // processor before that have no image.
    let (count, total) = (leaves_outside_images.len(), fusion_samples.len());
    assert!(
        count * 100 <= total * 5,
        "{count} of {total} have no image: {:?}\n{}",
        leaves_outside_images.first(),
        host.log()
    );
}

#[test]
fn gdb_names_fusions_of_jax() {
    let (Some(()), Some(host)) = (gdb::is_available(), foreign::jax(&["loop", "100"])) else { return };
    let host = host.timeout_seconds(300).variable("JITLISTEN", "perfmap,gdb");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("loops");
    let session = gdb::attach_at("sqrt_add_fusion", &running);
    let frames = &session.backtrace.frames;
    let is_called_by_xla = frames.iter().skip(1).any(|frame| frame.contains("libjax_common"));
    assert!(frames.first().is_some_and(|leaf| leaf.starts_with("sqrt_add_fusion ")), "{}", session.output);
    assert!(is_called_by_xla, "{}", session.output);
}

const QUERY: &str = "select sum(x::numeric * 3), count(*) from numbers where x % 3 <> 1 and x * 2.5 > 10";

/// Runs the queries without and with the library, and returns both outcomes.
fn run_both(postgres: &Postgres, settings: &[&str]) -> (Outcome, Outcome) {
    let statements = format!(
        "set jit_above_cost = 0\n{QUERY}\nexplain (analyze, timing off, summary off) {QUERY}\nset \
         jit_inline_above_cost = 0\n\
         set jit_optimize_above_cost = 0\nexplain (analyze, timing off, summary off) {QUERY}\n"
    );
    let run = |library: Option<&std::path::Path>| {
        let host = debug_log(postgres.statements(&statements, settings));
        let host = match library {
            Some(library) => host.variable("LD_PRELOAD", library),
            None => host,
        };
        host.run(Preload::Nothing).expect_success()
    };
    (run(None), run(Some(&postgres.library())))
}

#[test]
fn every_function_that_postgresql_compiles_is_named() {
    let Some(postgres) = Postgres::new() else { return };
    for settings in [&[][..], &["jit_debugging_support=on"], &["jit_profiling_support=on"]] {
        let settings = [settings, &["jit_dump_bitcode=on"]].concat();
        let (stock, preloaded) = run_both(&postgres, &settings);
        let text = |outcome: &Outcome| String::from_utf8_lossy(&outcome.stdout).into_owned();
        assert_eq!((text(&stock), &stock.stderr), (text(&preloaded), &preloaded.stderr), "{settings:?}");
        let map = preloaded.perf_map();
        // The first query runs without `explain`, and compiles the same functions as the second one. In the third
        // query, LLVM drops some functions.
        let explained_counts = foreign::explained_functions(&preloaded.stdout);
        let [second, third] = explained_counts[..] else { panic!("{explained_counts:?}") };
        let Some(compiled) = postgres.compiled_functions(preloaded.pid) else { return };
        let counts: Vec<usize> = compiled.iter().map(Vec::len).collect();
        assert!(counts[..2] == [second, second] && counts.len() == 3 && counts[2] > 0, "{counts:?}, {second}, {third}");
        let mut expected = compiled.concat();
        expected.sort();
        assert_eq!(names(&map), expected, "{settings:?}");
    }
}

/// Number of functions that begin by saving the caller's frame pointer, and number of all functions.
fn count_frame_pointers(host: host::Host, policy: &str) -> (usize, usize) {
    let host = host.variable("JITLISTEN", "jitdump").variable("JITDUMPDIR", ".");
    let host = host.variable("JITLISTEN_FRAME_POINTERS", policy);
    host.run(Preload::Nothing).expect_success();
    let dumps: Vec<_> =
        jitdump_reader::find(&host.scratch(".")).iter().map(|dump| jitdump_reader::read(dump)).collect();
    let functions: Vec<_> = dumps.iter().flat_map(|dump| &dump.functions).collect();
    let with_pointer = functions.iter().filter(|function| machine_code::keeps_frame_pointer(&function.code)).count();
    (with_pointer, functions.len())
}

#[test]
#[cfg(target_arch = "x86_64")]
fn functions_of_llvmpipe_and_postgresql_keep_a_frame_pointer() {
    let statements = format!("set jit_above_cost = 0\n{QUERY}\n");
    let postgres = Postgres::new();
    let hosts = || {
        let backend = postgres
            .as_ref()
            .map(|postgres| postgres.statements(&statements, &[]).variable("LD_PRELOAD", postgres.library()));
        [foreign::llvmpipe(1).map(|host| host.variable("LD_PRELOAD", paths::library())), backend]
    };
    for (preloaded, stock) in hosts().into_iter().zip(hosts()) {
        let (Some(preloaded), Some(stock)) = (preloaded, stock) else { continue };
        let (with_pointer, total) = count_frame_pointers(preloaded, "1");
        assert!(total >= 3 && with_pointer == total, "{with_pointer} of {total}");
        let (with_pointer, total) = count_frame_pointers(stock, "untouched");
        assert!(with_pointer < total, "without us {with_pointer} of {total} have one: this proves nothing");
    }
}

/// Debian's PostgreSQL keeps frame pointers. With frame pointers in the compiled code too, `perf record -g` sees the
/// callers of that code; without them, two stacks in five lacked the caller.
#[test]
fn perf_walks_through_what_postgresql_compiles() {
    let (Some(()), Some(postgres)) = (perf::is_available(), Postgres::new()) else { return };
    let query = "select sum(case when (x * 7 + 3) % 11 < 5 then (x * 31 + 7) % 1009 else (x # 77) % 503 end) from \
        numbers a, generate_series(1, 40) b where (a.x + b) % 3 <> 1 and (a.x * 5 + b) % 7 > 1";
    let host = postgres.statements(&format!("set jit_above_cost = 0\n{query}\n"), &[]);
    let host = host.variable("LD_PRELOAD", postgres.library()).variable("JITLISTEN", "perfmap,image");
    let recording = perf::record(&host, Preload::Nothing);
    let has_prefix =
        |frame: &Frame, prefix: &str| frame.symbol.as_deref().is_some_and(|symbol| symbol.starts_with(prefix));
    let stacks: Vec<&[Frame]> = recording
        .samples
        .iter()
        .filter(|sample| {
            sample.frames.first().is_some_and(|leaf| has_prefix(leaf, "evalexpr_") || has_prefix(leaf, "deform_"))
        })
        .map(|sample| sample.frames.as_slice())
        .collect();
    let is_whole = |frames: &&&[Frame]| {
        // The executor function calls the plan's nodes, never an expression.
        frames.len() >= 3
            && !has_prefix(&frames[1], "standard_ExecutorRun")
            && frames.iter().any(|frame| has_prefix(frame, "main"))
    };
    let whole_stacks = stacks.iter().filter(is_whole).count();
    assert!(stacks.len() >= 50 && whole_stacks * 100 >= stacks.len() * 90, "{whole_stacks} of {}", stacks.len());
    assert!(stacks.iter().all(|frames| image::is_image(&frames[0].object)), "not all of it has an image");
}

/// Waits until the perf map contains `name`.
fn wait_for_name(running: &Running<'_>, name: &str) {
    let map = format!("/tmp/perf-{}.map", running.pid());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&map).unwrap_or_default().contains(name) {
        assert!(Instant::now() < deadline, "nothing is compiled");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn gdb_names_what_postgresql_has_registered_nowhere() {
    let (Some(()), Some(postgres)) = (gdb::is_available(), Postgres::new()) else { return };
    let statements = "set jit_above_cost = 0\nselect sum(a.x % 7) from numbers a, generate_series(1, 100000) b where \
        a.x % 3 <> b % 5\n";
    let host = postgres.statements(statements, &[]).variable("JITLISTEN", "perfmap,gdb");
    let host = host.variable("LD_PRELOAD", postgres.library());
    let running = host.start(Preload::Nothing);
    wait_for_name(&running, "evalexpr");
    // The backend is nearly always in compiled code or in a function called from compiled code.
    let mut session = gdb::attach(&running);
    for _ in 0..10 {
        if session.backtrace.frames.iter().any(|frame| frame.starts_with("evalexpr_")) {
            break;
        }
        session = gdb::attach(&running);
    }
    let is_named = session.backtrace.frames.iter().any(|frame| frame.starts_with("evalexpr_"));
    drop(perf_map::take(running.pid()));
    assert!(is_named, "{}", session.output);
}

#[test]
fn every_object_of_llvmpipe_is_detected() {
    let Some(host) = foreign::llvmpipe(3) else { return };
    let host = debug_log(host);
    let outcome = host::assert_same_output(&host).expect_success();
    assert!(String::from_utf8_lossy(&outcome.stdout).starts_with("llvmpipe "), "another renderer");
    let map = outcome.perf_map();
    for name in ["fs_variant_whole", "draw_llvm_vs_variant"] {
        assert!(names(&map).iter().any(|symbol| symbol.starts_with(name)), "{name}:\n{}", map.names());
    }
    let log = host.log();
    if gdb::is_available().is_some() {
        assert_eq!(count_loaded_objects(&log), foreign::count_objects_with_gdb(&host), "{log}");
    }
}

/// Mesa keeps no frame pointers, so perf unwinds with the images' unwind tables. The fragment shader is in the first
/// compiled object.
#[test]
fn perf_walks_from_a_shader_to_the_start_of_its_thread() {
    let (Some(()), Some(host)) = (perf::is_available(), foreign::llvmpipe(400)) else { return };
    let host = host.variable("JITLISTEN", "perfmap,image");
    let recording = perf::record_dwarf(&host, Preload::Library);
    let in_image = |sample: &&Sample| sample.frames.first().is_some_and(|leaf| image::is_image(&leaf.object));
    let shaders: Vec<&Sample> = recording.samples.iter().filter(in_image).collect();
    let is_whole = |sample: &&&Sample| {
        let symbols = || sample.frames.iter().filter_map(|frame| frame.symbol.as_deref());
        symbols().next().is_some_and(|leaf| leaf.starts_with("fs_variant_"))
            && symbols().any(|symbol| ["start_thread", "_start"].contains(&symbol))
    };
    let whole_stacks = shaders.iter().filter(is_whole).count();
    let first_object_count = shaders.iter().filter(|sample| sample.frames[0].object.ends_with("/object-0.so")).count();
    assert!(
        first_object_count >= 50,
        "{first_object_count} samples in the first object, of {}\n{}",
        shaders.len(),
        host.log()
    );
    // Later objects run from images, too: all names are in the perf map, but perf must take none of them from there.
    let is_from_map =
        |sample: &&Sample| sample.frames.iter().any(|frame| scenario::is_jit(frame) && frame.symbol.is_some());
    assert_eq!(recording.samples.iter().find(is_from_map), None);
    let image_names: BTreeSet<String> =
        image::files(&host).iter().flat_map(|image| image::function_names(image)).collect();
    let map_names: BTreeSet<String> = recording.perf_map().entries.into_iter().map(|entry| entry.name).collect();
    assert!(map_names.len() >= 3 && map_names.is_subset(&image_names), "{map_names:?}\n{image_names:?}");
    let incomplete = shaders.iter().find(|sample| !is_whole(sample));
    assert!(whole_stacks * 100 >= shaders.len() * 95, "{whole_stacks} of {}: {incomplete:?}", shaders.len());
}

/// Mesa destroys its engines and keeps their code, which LLVM has then removed from the GDB JIT list.
#[test]
fn gdb_names_shaders_whose_engine_is_destroyed() {
    let (Some(()), Some(host)) = (gdb::is_available(), foreign::llvmpipe(1_000_000)) else { return };
    // Without worker threads, llvmpipe draws in the main thread.
    let host = host.variable("LP_NUM_THREADS", "0").variable("JITLISTEN", "perfmap,gdb");
    let running = host.start(Preload::Library);
    wait_for_name(&running, "fs_variant_whole");
    let session = gdb::attach_at("fs_variant_whole", &running);
    let frames = &session.backtrace.frames;
    let is_named = |frame_at: Option<&String>, name: &str| frame_at.is_some_and(|frame| frame.starts_with(name));
    assert!(is_named(frames.first(), "fs_variant_whole ") && is_named(frames.last(), "main "), "{}", session.output);
}

/// A disabled source detects nothing; the other sources name the objects that it would have named.
#[test]
fn what_is_left_out_is_not_listened_to() {
    if foreign::llvmpipe(1).is_none() {
        return;
    }
    let count_objects = |llvm: &str| {
        let Some(host) = foreign::llvmpipe(1) else { return 0 };
        let host = debug_log(host).variable("JITLISTEN_LLVM", llvm);
        host.run(Preload::Library).expect_success();
        count_loaded_objects(&host.log())
    };
    let all_sources = count_objects("all");
    assert!(all_sources >= 3);
    assert_eq!(
        [count_objects("off"), count_objects("runtimedyld"), count_objects("list")],
        [0, all_sources, all_sources]
    );
}
