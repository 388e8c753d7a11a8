//! Exhausted resources: only the affected sink stops, its stop is logged once and counted, and the program prints the
//! same as without the library.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use jitlisten_tests::host::{self, Host, Outcome, Preload};
use jitlisten_tests::log::{self, LogEvent};
use jitlisten_tests::mount::Mount;
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::{image, jitdump_reader, paths, safety_host};

fn assert_one_stop_each(host: &Host, sinks: &[&str]) {
    let log = host.log();
    let stopped: BTreeSet<&str> = log::stopped_sinks(&log).into_iter().map(|(sink, _)| sink).collect();
    assert_eq!(stopped, sinks.iter().copied().collect(), "{log}");
    assert_eq!(log::stopped_sinks(&log).len(), sinks.len(), "{log}");
    for sink in ["perfmap", "jitdump", "image"] {
        assert_eq!(safety_host::counter(host, sink), u64::from(sinks.contains(&sink)), "{sink}");
    }
    assert_eq!(safety_host::counter(host, "finalized"), safety_host::counter(host, "loaded"));
}

#[test]
fn no_descriptors() {
    let Some(host) = safety_host::scenario(&["limited", "files"]) else { return };
    let _ = host::assert_same_output(&host).expect_success();
    assert_one_stop_each(&host, &["perfmap", "jitdump", "image"]);
}

/// The limit on file sizes also applies to the log. By default, `SIGXFSZ` ends the process.
#[test]
fn files_may_not_grow() {
    let Some(host) = safety_host::scenario(&["limited", "size"]) else { return };
    let _ = host::assert_same_output(&host).expect_success();
    // The log lines of the sinks could not be written either.
    for sink in ["perfmap", "jitdump"] {
        assert_eq!(safety_host::counter(&host, sink), 1, "{sink}");
    }
}

/// Page requests fail in child processes: either a single request, or all requests from a certain one on. Rust would
/// abort the process by default.
#[test]
fn no_memory() {
    let Some(host) = safety_host::scenario(&["starves", "60"]) else { return };
    let host = host.variable("JITLISTEN_LOG", "");
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "first: right\n0 children went wrong\n");
    let requests: u64 = outcome.stderr.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(requests > 0, "the library gets its memory elsewhere: {}", outcome.stderr);
}

/// `RLIMIT_AS` equals the address space in use or is slightly larger. LLVM itself ends a process that is out of memory,
/// so the host raises the limit for its own calls, and only the library's requests are refused.
#[test]
fn an_address_space_that_may_not_grow() {
    let Some(host) = safety_host::scenario(&["narrows"]) else { return };
    let stock = host.run(Preload::Nothing).expect_success();
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(String::from_utf8_lossy(&stock.stdout), String::from_utf8_lossy(&outcome.stdout));
    assert_eq!(String::from_utf8_lossy(&outcome.stdout).matches(": status 0\n").count(), 8);
    let parse_refused = |line: &str| line.strip_prefix("refused ")?.parse::<u32>().ok();
    let refused_counts: Vec<u32> = outcome.stderr.lines().filter_map(parse_refused).collect();
    assert!(
        refused_counts[0] > 0 && refused_counts[7] == 0,
        "the kernel refuses nothing, or everything: {refused_counts:?}"
    );
    let mut stops_by_sink = BTreeMap::new();
    let children: Vec<Vec<&str>> = outcome
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("child "))
        .map(|words| words.split(' ').collect())
        .collect();
    assert_eq!(children.len(), 8, "{}", outcome.stderr);
    for fields in children {
        let _ = jitlisten_tests::perf_map::take(fields[0].parse().expect("a number"));
        for sink_and_count in fields[1..].chunks(2) {
            let prefix = format!("jitlisten[{}] ", fields[0]);
            let is_stop = |line: &&str| {
                let Some(LogEvent::SinkStopped { sink, .. }) = LogEvent::from_line(line) else { return false };
                sink == sink_and_count[0]
            };
            let stop_count = host.log().lines().filter(|line| line.starts_with(&prefix)).filter(is_stop).count();
            assert!(stop_count <= 1 && sink_and_count[1] == stop_count.to_string(), "{fields:?}: {}", host.log());
            *stops_by_sink.entry(sink_and_count[0]).or_insert(0) += stop_count;
        }
    }
    assert!(
        stops_by_sink["jitdump"] > 0 && stops_by_sink["image"] > 0 && stops_by_sink["perfmap"] == 0,
        "{stops_by_sink:?}"
    );
    assert!(
        log::stopped_sinks(&host.log()).iter().all(|(_, error)| error.contains("Cannot allocate memory")),
        "{}",
        host.log()
    );
}

#[test]
fn a_program_that_closes_what_it_does_not_know() {
    let Some(host) = safety_host::scenario(&["daemon"]) else { return };
    let (program_files, log) = (host.scratch("mine"), format!("debug:{}", host.scratch("log").display()));
    let host = host.argument(&program_files).variable("JITLISTEN_LOG", log);
    let outcome = host::assert_same_output(&host).expect_success();
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    assert!(text.contains("mine: 997 of 997, 0 bytes"), "{text}");
    let map = outcome.perf_map();
    let dumps = jitdump_reader::find(&host.scratch("."));
    let [dump] = &dumps[..] else { panic!("{dumps:?}") };
    let dump = jitdump_reader::read(dump);
    for name in ["first", "second", "third"] {
        assert_eq!((map.named(name).count(), dump.named(name).count()), (1, 1), "{name}: {}", host.log());
    }
    assert!(
        log::events(&host.log()).any(|event| event == LogEvent::Finalized { id: "2" }),
        "the log, too: {}",
        host.log()
    );
    assert_eq!(log::stopped_sinks(&host.log()), []);
}

/// Another file replaces the jitdump while the program closes its descriptor.
#[test]
fn a_jitdump_that_is_exchanged_when_it_is_closed() {
    let Some(host) = safety_host::scenario(&["daemon"]) else { return };
    let (program_files, scratch_dir) = (host.scratch("mine"), host.scratch(".").display().to_string());
    let exchange_script = format!(
        "for dump in '{scratch_dir}'/jitdump-*/*.dump; do mv \"$dump\" \"$dump.old\"; echo precious >\"$dump\"; done"
    );
    let host = host.argument(&program_files).variable("SAFETY_RUNS", exchange_script);
    let outcome = host.run(Preload::Library).expect_success();
    assert_one_stop_each(&host, &["jitdump"]);
    assert!(log::stopped_sinks(&host.log())[0].1.contains("is not ours: another file"), "{}", host.log());
    let dumps = jitdump_reader::find(&host.scratch("."));
    assert_eq!(fs::read_to_string(&dumps[0]).expect("text"), "precious\n");
    assert!(outcome.perf_map().named("third").next().is_some(), "the perf map has nothing to do with it");
}

#[test]
fn the_next_descriptor_has_the_number_it_would_have() {
    let Some(host) = safety_host::scenario(&["numbers"]) else { return };
    let _ = host::assert_same_output(&host).expect_success();
}

/// Forbidden system calls return `EPERM`, as under a container's seccomp profile.
#[test]
fn system_calls_that_are_forbidden() {
    let Some(host) = safety_host::scenario(&["filtered"]) else { return };
    let outcome = host::assert_same_output(&host).expect_success();
    for name in ["first", "second"] {
        assert!(outcome.perf_map().named(name).next().is_some(), "{name}: {}", host.log());
    }
    // Without `flock`, other processes could not tell that the images are in use, so the image sink stops.
    assert_one_stop_each(&host, &["image"]);
}

#[test]
fn a_library_that_is_closed() {
    let Some(host) = safety_host::scenario(&["opens"]) else { return };
    let outcome = host.argument(paths::library()).run(Preload::Nothing).expect_success();
    assert_eq!(
        String::from_utf8_lossy(&outcome.stdout),
        "first: right\nopen: 0\nsecond: right\nclose: 0\nthird: right\n"
    );
    for name in ["first", "second", "third"] {
        assert!(outcome.perf_map().named(name).next().is_some(), "{name}");
    }
}

/// Runs three functions in a mount namespace that `script` has prepared. Returns `None` after reporting a skip.
fn run_in_namespace(name: &str, script: &str) -> Option<(Host, Outcome)> {
    let program = safety_host::program()?;
    let host = Host::new(program, name).variable("JITLISTEN", "all");
    let statistics = host.scratch("statistics");
    let host = host.arguments(["first", "second", "third"]);
    let host = host.variable("SAFETY_STATISTICS", statistics).in_mount_namespace(script)?;
    let outcome = host::assert_same_output(&host).expect_success();
    assert_eq!(outcome.stdout, b"first: right\nsecond: right\nthird: right\n");
    Some((host, outcome))
}

#[test]
fn no_proc() {
    let Some((host, outcome)) = run_in_namespace("no-proc", "mount -t tmpfs none /proc") else { return };
    for name in ["first", "second", "third"] {
        assert!(outcome.perf_map().named(name).next().is_some(), "{name}: {}", host.log());
    }
    assert_one_stop_each(&host, &["image"]);
}

#[test]
fn no_place_to_write() {
    // The repository itself may be in one of the directories that become read-only.
    let script = format!(
        "for place in /tmp /var/tmp; do mount --bind $place $place; mount -o remount,bind,ro $place; done
        mount --bind '{0}' '{0}'; mount -o remount,bind,rw '{0}'; export HOME= JITLISTEN_DIR=",
        paths::root().display()
    );
    let Some((host, outcome)) = run_in_namespace("no-place", &script) else { return };
    assert_eq!(outcome.map, None);
    assert_one_stop_each(&host, &["perfmap", "jitdump", "image"]);
}

fn mount_full_disk() -> Option<Mount> {
    let disk = Mount::tmpfs("size=8k")?;
    fs::write(disk.path().join("full"), [0; 8192]).expect("8 KiB");
    Some(disk)
}

#[test]
fn a_full_disk() {
    let Some(host) = safety_host::scenario(&["first", "second"]) else { return };
    let Some(disk) = mount_full_disk() else { return };
    let log = disk.path().join("log");
    let host =
        host.variable("JITLISTEN_DIR", disk.path()).variable("JITLISTEN_LOG", format!("debug:{}", log.display()));
    let outcome = host::assert_same_output(&host).expect_success();
    assert!(outcome.perf_map().named("second").next().is_some(), "the perf map is elsewhere");
    assert_eq!((safety_host::counter(&host, "jitdump"), safety_host::counter(&host, "perfmap")), (1, 0));
    let leftovers: Vec<_> = fs::read_dir(disk.path()).expect("read").flatten().map(|entry| entry.file_name()).collect();
    assert!(leftovers.iter().all(|name| name == "full" || name == "log"), "{leftovers:?} is left behind");
}

/// Number of functions with long names that together fill a perf map.
const FUNCTION_COUNT: usize = 48;

fn host_with_long_names() -> Option<Host> {
    let names: Vec<String> =
        (0..FUNCTION_COUNT).map(|number| format!("function_{number}_{}", "long_".repeat(80))).collect();
    safety_host::scenario(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Asserts that a truncated perf map or jitdump contains the first functions, each once.
fn assert_first_functions<'a>(names: impl Iterator<Item = &'a str>) {
    let parse_number = |name: &str| name.split('_').nth(1)?.parse::<usize>().ok();
    let mut numbers: Vec<_> = names.map(|name| parse_number(name).unwrap_or_else(|| panic!("{name}"))).collect();
    numbers.sort_unstable();
    assert!((1..FUNCTION_COUNT).contains(&numbers.len()), "{} of {FUNCTION_COUNT} functions", numbers.len());
    assert!(numbers.iter().copied().eq(0..numbers.len()), "{numbers:?}");
}

/// Writes to the files of two sinks fail with `EDQUOT`; the perf map is on another file system.
#[test]
fn an_exhausted_quota() {
    let Some(host) = host_with_long_names() else { return };
    let Some(disk) = Mount::with_quota(192 << 10) else { return };
    let host = host.variable("JITLISTEN_DIR", disk.quota_directory());
    let stock = host.run(Preload::Nothing).expect_success();
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!((&stock.stdout, &stock.stderr), (&outcome.stdout, &outcome.stderr));
    assert_one_stop_each(&host, &["jitdump", "image"]);
    assert!(
        log::stopped_sinks(&host.log()).iter().all(|(_, error)| error.contains("Disk quota exceeded")),
        "{}",
        host.log()
    );
    assert_eq!(outcome.perf_map().entries.len(), FUNCTION_COUNT);
    let dumps = jitdump_reader::find(&disk.quota_directory());
    let [dump] = &dumps[..] else { panic!("{dumps:?}") };
    let dump = jitdump_reader::read(dump);
    assert_first_functions(dump.functions.iter().map(|function| function.name.as_str()));
    assert!((1..FUNCTION_COUNT).contains(&image::files_in(&disk.quota_directory()).len()));
}

/// Runs a host whose `/tmp` is on a disk that becomes full in the middle of the perf map.
fn check_truncated_perf_map(host: Host, disk: Option<Mount>, tmp_dir: impl Fn(&Mount) -> PathBuf, reason: &str) {
    let Some(disk) = disk else { return };
    let script = format!("mount --bind '{}' /tmp", tmp_dir(&disk).display());
    let Some(host) = host.in_mount_namespace(&script) else { return };
    let outcome = host::assert_same_output(&host).expect_success();
    assert_one_stop_each(&host, &["perfmap"]);
    let log = host.log();
    let stop = log::stopped_sinks(&log)[0].1;
    assert!(stop.contains("write /tmp/perf-") && stop.contains(reason), "{stop}");
    let map = fs::read(tmp_dir(&disk).join(format!("perf-{}.map", outcome.pid))).expect("a perf map");
    let map = PerfMap::parse(&map).expect("every line is whole");
    assert_first_functions(map.entries.iter().map(|entry| entry.name.as_str()));
    let dumps = jitdump_reader::find(&host.scratch("."));
    assert_eq!(jitdump_reader::read(&dumps[0]).functions.len(), FUNCTION_COUNT);
    assert_eq!(image::files(&host).len(), FUNCTION_COUNT);
}

#[test]
fn a_quota_that_the_perf_map_exhausts() {
    let Some(host) = host_with_long_names() else { return };
    let disk = Mount::with_quota(28 << 10);
    check_truncated_perf_map(host, disk, Mount::quota_directory, "Disk quota exceeded");
}

/// tmpfs writes the part of a line that still fits.
#[test]
fn a_disk_that_the_perf_map_fills() {
    let Some(host) = host_with_long_names() else { return };
    let disk = Mount::tmpfs("size=12k");
    check_truncated_perf_map(host, disk, |disk| disk.path().to_owned(), "no storage space");
}

/// The quota is exhausted before the first byte is written.
#[test]
fn a_quota_that_is_exhausted_from_the_start() {
    let Some(host) = host_with_long_names() else { return };
    let Some(disk) = Mount::with_quota(1) else { return };
    let host = host.variable("JITLISTEN_DIR", disk.quota_directory());
    let Some(host) = host.in_mount_namespace(&format!("mount --bind '{}' /tmp", disk.quota_directory().display()))
    else {
        return;
    };
    let _ = host::assert_same_output(&host).expect_success();
    assert_one_stop_each(&host, &["perfmap", "jitdump", "image"]);
    assert!(
        log::stopped_sinks(&host.log()).iter().all(|(_, error)| error.contains("Disk quota exceeded")),
        "{}",
        host.log()
    );
    // The disk may contain a directory on the path to the repository.
    let leftovers =
        fs::read_dir(disk.quota_directory()).expect("read").flatten().filter(|entry| !entry.path().is_dir());
    assert_eq!(leftovers.count(), 0, "nothing is left behind");
}

/// The directory is removed between the first and the second function.
#[test]
fn a_directory_that_vanishes() {
    let Some(host) = safety_host::scenario(&["ends", "exit"]) else { return };
    let directory = host.scratch("gone");
    fs::create_dir(&directory).expect("made");
    let host =
        host.variable("JITLISTEN_DIR", &directory).variable("SAFETY_RUNS", format!("rm -rf '{}'", directory.display()));
    let outcome = host.run(Preload::Library).expect_success();
    assert!(!directory.exists());
    let stock = host.run(Preload::Nothing).expect_success();
    assert_eq!((&outcome.stdout, &outcome.stderr), (&stock.stdout, &stock.stderr));
    assert_eq!(outcome.perf_map().entries.len(), 2);
    assert_one_stop_each(&host, &["jitdump", "image"]);
}
