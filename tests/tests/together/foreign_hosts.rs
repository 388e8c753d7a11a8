//! jax, PostgreSQL and llvmpipe as they are shipped: they register no listener, or late, and are observed all the same.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use jitlisten_tests::foreign::{self, Postgres};
use jitlisten_tests::host::{self, Ended, Preload, Running};
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::perf_script::{Frame, Sample};
use jitlisten_tests::{gdb, image, jitdump_reader, machine_code, paths, perf, perf_map, scenario};

fn names(map: &PerfMap) -> Vec<&str> {
    let mut names: Vec<&str> = map.entries.iter().map(|entry| &*entry.name).collect();
    names.sort_unstable();
    names
}

/// How many objects the library says it has heard from linkers and lists together.
fn heard(log: &str) -> usize {
    log.lines().filter(|line| line.contains("debug: loaded ObjectId(")).count()
}

fn debug_log(host: host::Host) -> host::Host {
    let log = format!("debug:{}", host.scratch("log").display());
    host.variable("JITLISTEN_LOG", log)
}

#[test]
fn every_function_that_jax_compiles_is_named() {
    let Some(host) = foreign::jax(&[]) else { return };
    let ended = host::same_output(&debug_log(host));
    let ended = ended.well();
    let map = ended.perf_map();
    let Some(host) = foreign::jax(&[]) else { return };
    host.run(Preload::Nothing).well();
    let written = foreign::dumped_functions(&host);
    assert!(written.len() >= 3, "{written:?}");
    assert_eq!(names(&map), written.iter().map(|name| &**name).collect::<Vec<_>>());
}

/// The code runs from images: in the samples it is in their files.
#[test]
fn perf_walks_from_a_fusion_of_jax_into_xla() {
    let (Some(()), Some(host)) = (perf::is_here(), foreign::jax(&["loop", "4"])) else { return };
    let host = host.patience(300).variable("JITLISTEN", "perfmap,image");
    let recording = perf::record(&host, Preload::Library);
    let is_fusion = |symbol: &Option<String>| symbol.as_deref().is_some_and(|symbol| symbol.ends_with("_fusion"));
    let inside: Vec<_> = recording
        .samples
        .iter()
        .filter(|sample| sample.frames.first().is_some_and(|leaf| is_fusion(&leaf.symbol)))
        .collect();
    let into_xla =
        |frames: &[Frame]| frames.iter().skip(1).filter(|frame| frame.object.contains("libjax_common")).count() >= 2;
    let whole = inside.iter().filter(|sample| into_xla(&sample.frames)).count();
    assert!(inside.len() >= 100 && whole * 100 >= inside.len() * 90, "{whole} of {}", inside.len());
    let outside: Vec<&Frame> =
        inside.iter().map(|sample| &sample.frames[0]).filter(|leaf| !image::is_image(&leaf.object)).collect();
    // perf knows of an image from the moment that the kernel has written down, on whatever processor.
    let (count, all) = (outside.len(), inside.len());
    assert!(count * 100 <= all * 5, "{count} of {all} have no image: {:?}\n{}", outside.first(), host.log());
}

#[test]
fn gdb_names_fusions_of_jax() {
    let (Some(()), Some(host)) = (gdb::is_here(), foreign::jax(&["loop", "100"])) else { return };
    let host = host.patience(300).variable("JITLISTEN", "perfmap,gdb");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("loops");
    let session = gdb::attach_at("sqrt_add_fusion", &running);
    let frames = &session.backtrace.frames;
    let is_called_by_xla = frames.iter().skip(1).any(|frame| frame.contains("libjax_common"));
    assert!(frames.first().is_some_and(|leaf| leaf.starts_with("sqrt_add_fusion ")), "{}", session.output);
    assert!(is_called_by_xla, "{}", session.output);
}

const QUERY: &str = "select sum(x::numeric * 3), count(*) from numbers where x % 3 <> 1 and x * 2.5 > 10";

/// Both outputs, with the library and without.
fn both(postgres: &Postgres, settings: &[&str]) -> (Ended, Ended) {
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
        host.run(Preload::Nothing).well()
    };
    (run(None), run(Some(&postgres.library())))
}

#[test]
fn every_function_that_postgresql_compiles_is_named() {
    let Some(postgres) = Postgres::new() else { return };
    for settings in [&[][..], &["jit_debugging_support=on"], &["jit_profiling_support=on"]] {
        let settings = [settings, &["jit_dump_bitcode=on"]].concat();
        let (stock, ours) = both(&postgres, &settings);
        let text = |ended: &Ended| String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!((text(&stock), &stock.stderr), (text(&ours), &ours.stderr), "{settings:?}");
        let map = ours.perf_map();
        // The first query is not explained, and compiles what the second one does; in the third, LLVM leaves functions
        // out.
        let explained = foreign::explained_functions(&ours.stdout);
        let [second, third] = explained[..] else { panic!("{explained:?}") };
        let Some(compiled) = postgres.compiled_functions(ours.pid) else { return };
        let counts: Vec<usize> = compiled.iter().map(Vec::len).collect();
        assert!(counts[..2] == [second, second] && counts.len() == 3 && counts[2] > 0, "{counts:?}, {second}, {third}");
        let mut all = compiled.concat();
        all.sort();
        assert_eq!(names(&map), all, "{settings:?}");
    }
}

/// Every function's code begins by keeping the caller's frame pointer, unless it is compiled as it would have been.
fn share_with_frame_pointer(host: host::Host, policy: &str) -> (usize, usize) {
    let host = host.variable("JITLISTEN", "jitdump").variable("JITDUMPDIR", ".");
    let host = host.variable("JITLISTEN_FRAME_POINTERS", policy);
    host.run(Preload::Nothing).well();
    let dumps: Vec<_> =
        jitdump_reader::find(&host.scratch(".")).iter().map(|dump| jitdump_reader::read(dump)).collect();
    let functions: Vec<_> = dumps.iter().flat_map(|dump| &dump.functions).collect();
    let kept = functions.iter().filter(|function| machine_code::keeps_frame_pointer(&function.code)).count();
    (kept, functions.len())
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
    for (ours, stock) in hosts().into_iter().zip(hosts()) {
        let (Some(ours), Some(stock)) = (ours, stock) else { continue };
        let (kept, all) = share_with_frame_pointer(ours, "1");
        assert!(all >= 3 && kept == all, "{kept} of {all}");
        let (kept, all) = share_with_frame_pointer(stock, "untouched");
        assert!(kept < all, "without us {kept} of {all} have one: this proves nothing");
    }
}

/// Debian's PostgreSQL keeps frame pointers: with those of compiled code, `perf record -g` sees who calls it. Without
/// them the caller was left out in two samples of five.
#[test]
fn perf_walks_through_what_postgresql_compiles() {
    let (Some(()), Some(postgres)) = (perf::is_here(), Postgres::new()) else { return };
    let query = "select sum(case when (x * 7 + 3) % 11 < 5 then (x * 31 + 7) % 1009 else (x # 77) % 503 end) from \
        numbers a, generate_series(1, 40) b where (a.x + b) % 3 <> 1 and (a.x * 5 + b) % 7 > 1";
    let host = postgres.statements(&format!("set jit_above_cost = 0\n{query}\n"), &[]);
    let host = host.variable("LD_PRELOAD", postgres.library()).variable("JITLISTEN", "perfmap,image");
    let recording = perf::record(&host, Preload::Nothing);
    let is = |frame: &Frame, part: &str| frame.symbol.as_deref().is_some_and(|symbol| symbol.starts_with(part));
    let compiled: Vec<&[Frame]> = recording
        .samples
        .iter()
        .filter(|sample| sample.frames.first().is_some_and(|leaf| is(leaf, "evalexpr_") || is(leaf, "deform_")))
        .map(|sample| sample.frames.as_slice())
        .collect();
    let whole = |frames: &&&[Frame]| {
        // What runs a plan calls the plan's nodes, never an expression.
        frames.len() >= 3 && !is(&frames[1], "standard_ExecutorRun") && frames.iter().any(|frame| is(frame, "main"))
    };
    let whole = compiled.iter().filter(whole).count();
    assert!(compiled.len() >= 50 && whole * 100 >= compiled.len() * 90, "{whole} of {}", compiled.len());
    assert!(compiled.iter().all(|frames| image::is_image(&frames[0].object)), "not all of it has an image");
}

/// Waits until the perf map has a name that begins so.
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
    let (Some(()), Some(postgres)) = (gdb::is_here(), Postgres::new()) else { return };
    let statements = "set jit_above_cost = 0\nselect sum(a.x % 7) from numbers a, generate_series(1, 100000) b where \
        a.x % 3 <> b % 5\n";
    let host = postgres.statements(statements, &[]).variable("JITLISTEN", "perfmap,gdb");
    let host = host.variable("LD_PRELOAD", postgres.library());
    let running = host.start(Preload::Nothing);
    wait_for_name(&running, "evalexpr");
    // Nearly always in compiled code, or called by it.
    let mut session = gdb::attach(&running);
    for _ in 0..10 {
        if session.backtrace.frames.iter().any(|frame| frame.starts_with("evalexpr_")) {
            break;
        }
        session = gdb::attach(&running);
    }
    let named = session.backtrace.frames.iter().any(|frame| frame.starts_with("evalexpr_"));
    drop(perf_map::take(running.pid()));
    assert!(named, "{}", session.output);
}

#[test]
fn every_object_of_llvmpipe_is_heard() {
    let Some(host) = foreign::llvmpipe(3) else { return };
    let host = debug_log(host);
    let ended = host::same_output(&host).well();
    assert!(String::from_utf8_lossy(&ended.stdout).starts_with("llvmpipe "), "another renderer");
    let map = ended.perf_map();
    for name in ["fs_variant_whole", "draw_llvm_vs_variant"] {
        assert!(names(&map).iter().any(|found| found.starts_with(name)), "{name}:\n{}", map.names());
    }
    let log = host.log();
    if gdb::is_here().is_some() {
        assert_eq!(heard(&log), foreign::objects_counted_by_gdb(&host), "{log}");
    }
}

/// Mesa keeps no frame pointers: by the unwind tables of images. The fragment shader is in the first object that is
/// compiled.
#[test]
fn perf_walks_from_a_shader_to_the_start_of_its_thread() {
    let (Some(()), Some(host)) = (perf::is_here(), foreign::llvmpipe(400)) else { return };
    let host = host.variable("JITLISTEN", "perfmap,image");
    let recording = perf::record_by_tables(&host, Preload::Library);
    let in_image = |sample: &&Sample| sample.frames.first().is_some_and(|leaf| image::is_image(&leaf.object));
    let shaders: Vec<&Sample> = recording.samples.iter().filter(in_image).collect();
    let is_whole = |sample: &&&Sample| {
        let symbols = || sample.frames.iter().filter_map(|frame| frame.symbol.as_deref());
        symbols().next().is_some_and(|leaf| leaf.starts_with("fs_variant_"))
            && symbols().any(|symbol| ["start_thread", "_start"].contains(&symbol))
    };
    let whole = shaders.iter().filter(is_whole).count();
    let first = shaders.iter().filter(|sample| sample.frames[0].object.ends_with("/object-0.so")).count();
    assert!(first >= 50, "{first} samples in the first object, of {}\n{}", shaders.len(), host.log());
    // Also what is compiled later runs from images: perf takes no name from the map, which has all of them.
    let from_map =
        |sample: &&Sample| sample.frames.iter().any(|frame| scenario::is_jit(frame) && frame.symbol.is_some());
    assert_eq!(recording.samples.iter().find(from_map), None);
    let in_images: BTreeSet<String> = image::files(&host).iter().flat_map(|image| image::names(image)).collect();
    let in_map: BTreeSet<String> = recording.perf_map().entries.into_iter().map(|entry| entry.name).collect();
    assert!(in_map.len() >= 3 && in_map.is_subset(&in_images), "{in_map:?}\n{in_images:?}");
    assert!(whole * 100 >= shaders.len() * 95, "{whole} of {}", shaders.len());
}

/// Mesa destroys its engines and keeps the code: LLVM has taken it out of its list by then.
#[test]
fn gdb_names_shaders_whose_engine_is_destroyed() {
    let (Some(()), Some(host)) = (gdb::is_here(), foreign::llvmpipe(1_000_000)) else { return };
    // No threads: what is drawn is drawn by the main one.
    let host = host.variable("LP_NUM_THREADS", "0").variable("JITLISTEN", "perfmap,gdb");
    let running = host.start(Preload::Library);
    wait_for_name(&running, "fs_variant_whole");
    let session = gdb::attach_at("fs_variant_whole", &running);
    let frames = &session.backtrace.frames;
    let ends = |at: Option<&String>, name: &str| at.is_some_and(|frame| frame.starts_with(name));
    assert!(ends(frames.first(), "fs_variant_whole ") && ends(frames.last(), "main "), "{}", session.output);
}

/// A channel that is switched off observes nothing; the others name what it missed.
#[test]
fn what_is_left_out_is_not_listened_to() {
    if foreign::llvmpipe(1).is_none() {
        return;
    }
    let objects = |llvm: &str| {
        let Some(host) = foreign::llvmpipe(1) else { return 0 };
        let host = debug_log(host).variable("JITLISTEN_LLVM", llvm);
        host.run(Preload::Library).well();
        heard(&host.log())
    };
    let all = objects("all");
    assert!(all >= 3);
    assert_eq!([objects("off"), objects("runtimedyld"), objects("list")], [0, all, all]);
}
