//! jax, PostgreSQL and llvmpipe as they are shipped: they register no listener or a late one, and are heard all the same.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use jitlisten_tests::foreign::{self, Postgres};
use jitlisten_tests::host::{self, Ended, Preload};
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::perf_script::Frame;
use jitlisten_tests::{gdb, perf, perf_map};

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

#[test]
fn perf_walks_from_a_fusion_of_jax_into_xla() {
    let (Some(()), Some(host)) = (perf::is_here(), foreign::jax(&["loop", "4"])) else { return };
    let recording = perf::record(&host.patience(300), Preload::Library);
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
}

const QUERY: &str = "select sum(x::numeric * 3), count(*) from numbers where x % 3 <> 1 and x * 2.5 > 10";

/// Both outputs, with the library and without.
fn both(postgres: &Postgres, settings: &[&str]) -> (Ended, Ended) {
    let statements = format!(
        "set jit_above_cost = 0\n{QUERY}\nexplain (analyze, timing off, summary off) {QUERY}\nset jit_inline_above_cost = 0\n\
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
        let (stock, ours) = both(&postgres, settings);
        let text = |ended: &Ended| String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!((text(&stock), &stock.stderr), (text(&ours), &ours.stderr), "{settings:?}");
        let map = ours.perf_map();
        // The first query is not explained, and compiles what the second one does; in the third, LLVM merges functions.
        let explained = foreign::explained_functions(&ours.stdout);
        let [second, third] = explained[..] else { panic!("{explained:?}") };
        let of_query = |query: &str| {
            let prefixes = ["evalexpr_", "deform_"].map(|kind| format!("{kind}{query}_"));
            names(&map).iter().filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()))).count()
        };
        let found = ["0", "1", "2"].map(of_query);
        assert_eq!(found[..2], [second, second], "{settings:?}:\n{}", map.names());
        assert!((1..=third).contains(&found[2]), "{settings:?}:\n{}", map.names());
    }
}

#[test]
fn gdb_names_what_postgresql_has_registered_nowhere() {
    let (Some(()), Some(postgres)) = (gdb::is_here(), Postgres::new()) else { return };
    let statements = "set jit_above_cost = 0\nselect sum(a.x % 7) from numbers a, generate_series(1, 100000) b where a.x % 3 <> b % 5\n";
    let host = postgres.statements(statements, &[]).variable("JITLISTEN", "perfmap,gdb");
    let host = host.variable("LD_PRELOAD", postgres.library());
    let running = host.start(Preload::Nothing);
    let map = format!("/tmp/perf-{}.map", running.pid());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&map).unwrap_or_default().contains("evalexpr") {
        assert!(Instant::now() < deadline, "nothing is compiled");
        thread::sleep(Duration::from_millis(50));
    }
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

/// What is switched off is not heard; the others say what it would have been.
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
