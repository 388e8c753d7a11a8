//! What the library does when there is not enough: each sink stops alone, says so once, is counted, and the program prints
//! what it prints without us.

use std::fs;

use jitlisten_tests::host::{self, Ended, Host, Preload};
use jitlisten_tests::mount::Mount;
use jitlisten_tests::{guest, jitdump_reader, place};

fn assert_one_stop_each(host: &Host, sinks: &[&str]) {
    let stops = guest::stops(host);
    for sink in sinks {
        let of_sink = stops.iter().filter(|line| line.contains(&format!("the {sink} sink"))).count();
        assert_eq!(of_sink, 1, "{sink}:\n{}", host.log());
    }
    assert_eq!(stops.len(), sinks.len(), "{}", host.log());
    for sink in ["perfmap", "jitdump", "image"] {
        assert_eq!(guest::counted(host, sink), u64::from(sinks.contains(&sink)), "{sink}");
    }
    assert_eq!(guest::counted(host, "finalized"), guest::counted(host, "loaded"));
}

#[test]
fn no_descriptors() {
    let Some(host) = guest::story(&["limited", "files"]) else { return };
    let _ = host::same_output(&host).well();
    assert_one_stop_each(&host, &["perfmap", "jitdump", "image"]);
}

/// The default action of `SIGXFSZ` ends the process; the log is a file, too.
#[test]
fn files_may_not_grow() {
    let Some(host) = guest::story(&["limited", "size"]) else { return };
    let _ = host::same_output(&host).well();
    // The lines of the first two could not be written either.
    for sink in ["perfmap", "jitdump"] {
        assert_eq!(guest::counted(&host, sink), 1, "{sink}");
    }
}

/// Allocations of the library fail, each in turn, one alone and all from there on. Rust's own answer is to end the process.
#[test]
fn no_memory() {
    let Some(host) = guest::story(&["starves", "11"]) else { return };
    let host = host.variable("JITLISTEN_LOG", "");
    let ended = host.run(Preload::Library).well();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "first: right\n0 children went wrong\n");
    let allocations: u64 = ended.stderr.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(allocations > 100, "the library allocates elsewhere: {}", ended.stderr);
    for pid in ended.stderr.lines().filter_map(|line| line.strip_prefix("child ")?.parse().ok()) {
        let _ = jitlisten_tests::perf_map::take(pid);
    }
}

#[test]
fn a_program_that_closes_what_it_does_not_know() {
    let Some(host) = guest::story(&["daemon"]) else { return };
    let (mine, log) = (host.scratch("mine"), format!("debug:{}", host.scratch("log").display()));
    let host = host.argument(&mine).variable("JITLISTEN_LOG", log);
    let ended = host::same_output(&host).well();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(text.contains("mine: 997 of 997, 0 bytes"), "{text}");
    let map = ended.perf_map();
    let dumps = jitdump_reader::find(&host.scratch("."));
    let [dump] = &dumps[..] else { panic!("{dumps:?}") };
    let dump = jitdump_reader::read(dump);
    for name in ["first", "second", "third"] {
        assert_eq!((map.named(name).count(), dump.named(name).count()), (1, 1), "{name}: {}", host.log());
    }
    assert!(host.log().contains("finalized ObjectId(2)"), "the log, too: {}", host.log());
    assert_eq!(guest::stops(&host), Vec::<String>::new());
}

#[test]
fn the_next_descriptor_has_the_number_it_would_have() {
    let Some(host) = guest::story(&["numbers"]) else { return };
    let _ = host::same_output(&host).well();
}

/// As a container's profile does it: what is forbidden answers `EPERM`.
#[test]
fn system_calls_that_are_forbidden() {
    let Some(host) = guest::story(&["filtered"]) else { return };
    let ended = host::same_output(&host).well();
    for name in ["first", "second"] {
        assert!(ended.perf_map().named(name).next().is_some(), "{name}: {}", host.log());
    }
    // Without flock nobody could know that the images are in use.
    assert_one_stop_each(&host, &["image"]);
}

#[test]
fn a_library_that_is_closed() {
    let Some(host) = guest::story(&["opens"]) else { return };
    let ended = host.argument(place::library()).run(Preload::Nothing).well();
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "first: right\nopen: 0\nsecond: right\nclose: 0\nthird: right\n"
    );
    for name in ["first", "second", "third"] {
        assert!(ended.perf_map().named(name).next().is_some(), "{name}");
    }
}

/// Runs the first, second and third function in a mount namespace in which `script` was run; `None` after a loud skip.
fn in_namespace(name: &str, script: &str) -> Option<(Host, Ended)> {
    let program = guest::program()?;
    let host = Host::new(program, name).variable("JITLISTEN", "all");
    let counted = host.scratch("statistics");
    let host = ["first", "second", "third"].iter().fold(host, |host, word| host.argument(word));
    let host = host.variable("GUEST_STATISTICS", counted).in_mount_namespace(script)?;
    let ended = host::same_output(&host).well();
    assert_eq!(ended.stdout, b"first: right\nsecond: right\nthird: right\n");
    Some((host, ended))
}

#[test]
fn no_proc() {
    let Some((host, ended)) = in_namespace("no-proc", "mount -t tmpfs none /proc") else { return };
    for name in ["first", "second", "third"] {
        assert!(ended.perf_map().named(name).next().is_some(), "{name}: {}", host.log());
    }
    assert_one_stop_each(&host, &["image"]);
}

#[test]
fn no_place_to_write() {
    // The repository itself may lie in one of them.
    let script = format!(
        "for place in /tmp /var/tmp; do mount --bind $place $place; mount -o remount,bind,ro $place; done
        mount --bind '{0}' '{0}'; mount -o remount,bind,rw '{0}'; export HOME= JITLISTEN_DIR=",
        place::root().display()
    );
    let Some((host, ended)) = in_namespace("no-place", &script) else { return };
    assert_eq!(ended.map, None);
    assert_one_stop_each(&host, &["perfmap", "jitdump", "image"]);
}

fn full(host: &Host) -> Option<Mount> {
    let disk = Mount::tmpfs(&host.scratch("disk"), "size=8k")?;
    fs::write(disk.path().join("full"), [0; 8192]).expect("8 KiB");
    Some(disk)
}

#[test]
fn a_full_disk() {
    let Some(host) = guest::story(&["first", "second"]) else { return };
    let Some(disk) = full(&host) else { return };
    let log = disk.path().join("log");
    let host =
        host.variable("JITLISTEN_DIR", disk.path()).variable("JITLISTEN_LOG", format!("debug:{}", log.display()));
    let ended = host::same_output(&host).well();
    assert!(ended.perf_map().named("second").next().is_some(), "the perf map is elsewhere");
    assert_eq!((guest::counted(&host, "jitdump"), guest::counted(&host, "perfmap")), (1, 0));
    let left: Vec<_> = fs::read_dir(disk.path()).expect("read").flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| name == "full" || name == "log"), "{left:?} is left behind");
}

/// The directory goes away between the first function and the second.
#[test]
fn a_directory_that_vanishes() {
    let Some(host) = guest::story(&["ends", "exit"]) else { return };
    let directory = host.scratch("gone");
    fs::create_dir(&directory).expect("made");
    let host = host.variable("JITLISTEN_DIR", &directory).variable("GUEST_REMOVES", &directory);
    let ended = host.run(Preload::Library).well();
    assert!(!directory.exists());
    let stock = host.run(Preload::Nothing).well();
    assert_eq!((&ended.stdout, &ended.stderr), (&stock.stdout, &stock.stderr));
    assert_eq!(ended.perf_map().entries.len(), 2);
    assert_one_stop_each(&host, &["jitdump", "image"]);
}
