//! Forks, `exec` and process exits: each process writes its own files and no others, and code compiled before an exit
//! can be named after it.

use std::collections::BTreeSet;
use std::fs;

use jitlisten_tests::host::{self, Host, Outcome, Preload};
use jitlisten_tests::jitdump_reader::{self, Jitdump};
use jitlisten_tests::log;
use jitlisten_tests::perf_map::{self, PerfMap};
use jitlisten_tests::{image, integration, safety_host};

/// Processes of a kind, with their pids and names, from output lines such as `child 4711 of_child_3`.
fn processes<'a>(outcome: &'a Outcome, kind: &'a str) -> impl Iterator<Item = (u32, &'a str)> {
    let fields = outcome.stderr.lines().filter_map(move |line| line.strip_prefix(kind)?.strip_prefix(' '));
    fields
        .map(|fields| fields.split_once(' ').unwrap_or((fields, "")))
        .map(|(pid, name)| (pid.parse().expect(name), name))
}

fn take_perf_map(pid: u32) -> PerfMap {
    let bytes = perf_map::take(pid).unwrap_or_else(|| panic!("no perf map of {pid}"));
    PerfMap::parse(&bytes).unwrap_or_else(|fault| panic!("perf map of {pid}: {fault}"))
}

fn read_jitdump(host: &Host, pid: u32) -> Jitdump {
    let dumps = jitdump_reader::find(&host.scratch("."));
    let name = format!("jit-{pid}.dump");
    let matches: Vec<_> = dumps.iter().filter(|path| path.ends_with(&name)).collect();
    let [path] = matches[..] else { panic!("{name}: {dumps:?}") };
    jitdump_reader::read(path)
}

fn check_multiprocessing(method: &str) {
    let Some(host) = integration::numba("numba-0.68.1", "many_processes.py") else { return };
    let host = host.argument(method).variable("JITLISTEN", "all");
    let stock = host.run(Preload::Nothing).expect_success();
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(outcome.stdout, stock.stdout);
    let (parent, children) = (outcome.perf_map(), processes(&outcome, "child").collect::<Vec<_>>());
    assert_eq!(children.len(), 4);
    let dump = read_jitdump(&host, outcome.pid);
    for name in ["common", "of_parent"] {
        assert!(parent.named(name).next().is_some() && dump.named(name).next().is_some(), "{name}: {}", parent.names());
    }
    for (pid, name) in children {
        let (map, dump) = (take_perf_map(pid), read_jitdump(&host, pid));
        for name in [name, "common"] {
            assert!(map.named(name).next().is_some() && dump.named(name).next().is_some(), "{name}: {}", map.names());
        }
        assert!(map.named("of_parent").next().is_none() && dump.named("of_parent").next().is_none(), "{}", map.names());
        assert!(parent.named(name).next().is_none(), "{}", parent.names());
    }
    assert_eq!(log::stopped_sinks(&host.log()), []);
}

#[test]
fn multiprocessing_by_fork() {
    check_multiprocessing("fork");
}

#[test]
fn multiprocessing_by_forkserver() {
    check_multiprocessing("forkserver");
}

/// Two threads compile and free code continuously. A fork must wait for our locks, and the child must find them
/// unlocked.
#[test]
fn forks_while_other_threads_compile() {
    let Some(host) = safety_host::scenario(&["fork-storm", "60"]) else { return };
    let host = host.variable("JITLISTEN", "perfmap,jitdump,unwind");
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(outcome.stdout, b"first: right\nlast: right\n");
    let children: Vec<u32> = processes(&outcome, "child").map(|(pid, _)| pid).collect();
    assert_eq!(children.len(), 60);
    for pid in children {
        // After the fork, the child switches the sink off and on, which makes it write all live functions again.
        assert_eq!(take_perf_map(pid).named("first").count(), 1, "{pid}");
    }
    let map = PerfMap::parse(&outcome.map.expect("a map")).expect("the parent's map is whole");
    assert!(map.named("first").next().is_some() && map.named("last").next().is_some());
}

/// `clone(2)` and `_Fork(3)` run no `pthread_atfork` handlers.
#[test]
fn a_fork_without_handlers() {
    let Some(host) = safety_host::scenario(&["raw-fork"]) else { return };
    let outcome = host.run(Preload::Library).expect_success();
    let (child, _) = processes(&outcome, "child").next().expect("a child");
    let maps = [(outcome.perf_map(), "of_parent", "of_child"), (take_perf_map(child), "of_child", "of_parent")];
    let dumps = [outcome.pid, child].map(|pid| read_jitdump(&host, pid));
    for ((map, own, other), dump) in maps.iter().zip(dumps) {
        assert_eq!((map.named("first").count(), map.named(own).count(), map.named(other).count()), (1, 1, 0));
        assert_eq!((dump.named("first").count(), dump.named(own).count(), dump.named(other).count()), (1, 1, 0));
    }
}

/// A child that compiles nothing creates no files; `process_files.rs` tests how perf names its code.
#[test]
fn a_child_that_compiles_nothing() {
    let Some(host) = safety_host::scenario(&["idle-fork"]) else { return };
    let outcome = host.run(Preload::Library).expect_success();
    let (child, _) = processes(&outcome, "child").next().expect("a child");
    assert_eq!(
        (outcome.perf_map().named("first").count(), read_jitdump(&host, outcome.pid).named("first").count()),
        (1, 1)
    );
    assert!(!perf_map::path(child).exists() && jitdump_reader::find(&host.scratch(".")).len() == 1);
}

/// Programs started by `posix_spawn`, `vfork`, `fork` and `system` print their descriptors.
#[test]
fn other_programs_inherit_no_descriptor() {
    let Some(host) = safety_host::scenario(&["runs-others"]) else { return };
    let log = format!("debug:{}", host.scratch("log").display());
    let host = host.variable("JITLISTEN_LOG", log);
    let outcome = host::assert_same_output(&host).expect_success();
    let descriptor_lists =
        String::from_utf8_lossy(&outcome.stdout).lines().filter(|line| line.starts_with("0 1 ")).count();
    assert_eq!(descriptor_lists, 4);
    // The forked child compiled `second`.
    let (map, dump) = (outcome.perf_map(), read_jitdump(&host, outcome.pid));
    for (name, count) in [("first", 1), ("second", 0), ("third", 1)] {
        assert_eq!((map.named(name).count(), dump.named(name).count()), (count, count), "{name}");
    }
}

/// `exec` keeps the pid, so the perf map of the previous program must be replaced.
#[test]
fn a_process_that_becomes_another_program() {
    let Some(host) = safety_host::scenario(&["execs"]) else { return };
    let outcome = host::assert_same_output(&host).expect_success();
    assert_eq!(outcome.stdout, b"first: right\nsecond: right\n");
    assert_eq!(outcome.perf_map().names(), "second\n");
    let dumps = jitdump_reader::find(&host.scratch("."));
    let functions = dumps.iter().flat_map(|dump| jitdump_reader::read(dump).functions);
    let names: BTreeSet<String> = functions.map(|function| function.name).collect();
    assert_eq!((dumps.len(), names.into_iter().collect::<Vec<_>>()), (2, vec!["first".into(), "second".into()]));
    assert_eq!(image::files(&host).len(), 2);
    assert_eq!(log::stopped_sinks(&host.log()), []);
}

#[test]
fn ends() {
    for scenario_end in ["exit", "_exit", "kill", "fault", "abort"] {
        let Some(host) = safety_host::scenario(&["ends", scenario_end]) else { return };
        let outcome = host::assert_same_output(&host);
        assert_eq!(outcome.stdout, b"first: right\nsecond: right\n");
        let (map, dump) = (outcome.perf_map(), read_jitdump(&host, outcome.pid));
        let images: usize = fs::read_dir(host.scratch("."))
            .expect("read")
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("image-"))
            .map(|entry| fs::read_dir(entry.path()).expect("read").count() - 1)
            .sum();
        assert_eq!(images, 2, "{scenario_end}");
        for name in ["first", "second"] {
            assert_eq!((map.named(name).count(), dump.named(name).count()), (1, 1), "{scenario_end}: {name}");
        }
    }
}
