//! What the library does when there is not enough: each sink stops alone, says so once, is counted, and the program
//! prints what it prints without us.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use jitlisten_tests::host::{self, Ended, Host, Preload};
use jitlisten_tests::mount::Mount;
use jitlisten_tests::perf_map::PerfMap;
use jitlisten_tests::{image, jitdump_reader, paths, safety_host};

fn assert_one_stop_each(host: &Host, sinks: &[&str]) {
    let stops = safety_host::stops(host);
    for sink in sinks {
        let of_sink = stops.iter().filter(|line| line.contains(&format!("the {sink} sink"))).count();
        assert_eq!(of_sink, 1, "{sink}:\n{}", host.log());
    }
    assert_eq!(stops.len(), sinks.len(), "{}", host.log());
    for sink in ["perfmap", "jitdump", "image"] {
        assert_eq!(safety_host::counted(host, sink), u64::from(sinks.contains(&sink)), "{sink}");
    }
    assert_eq!(safety_host::counted(host, "finalized"), safety_host::counted(host, "loaded"));
}

#[test]
fn no_descriptors() {
    let Some(host) = safety_host::scenario(&["limited", "files"]) else { return };
    let _ = host::same_output(&host).well();
    assert_one_stop_each(&host, &["perfmap", "jitdump", "image"]);
}

/// The default action of `SIGXFSZ` ends the process; the log is a file, too.
#[test]
fn files_may_not_grow() {
    let Some(host) = safety_host::scenario(&["limited", "size"]) else { return };
    let _ = host::same_output(&host).well();
    // The lines of the first two could not be written either.
    for sink in ["perfmap", "jitdump"] {
        assert_eq!(safety_host::counted(&host, sink), 1, "{sink}");
    }
}

/// Requests for pages fail, each in turn, one alone and all from there on. Rust itself would end the process.
#[test]
fn no_memory() {
    let Some(host) = safety_host::scenario(&["starves", "60"]) else { return };
    let host = host.variable("JITLISTEN_LOG", "");
    let ended = host.run(Preload::Library).well();
    assert_eq!(String::from_utf8_lossy(&ended.stdout), "first: right\n0 children went wrong\n");
    let requests: u64 = ended.stderr.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(requests > 0, "the library gets its memory elsewhere: {}", ended.stderr);
}

/// The same by the kernel: with `RLIMIT_AS` at what the process has, and a little above. LLVM itself would end a
/// process that gets no memory, so the host raises the limit for its own calls; what the library asks for meets it.
#[test]
fn an_address_space_that_may_not_grow() {
    let Some(host) = safety_host::scenario(&["narrows"]) else { return };
    let stock = host.run(Preload::Nothing).well();
    let ended = host.run(Preload::Library).well();
    assert_eq!(String::from_utf8_lossy(&stock.stdout), String::from_utf8_lossy(&ended.stdout));
    assert_eq!(String::from_utf8_lossy(&ended.stdout).matches(": status 0\n").count(), 8);
    let refused = |line: &str| line.strip_prefix("refused ")?.parse::<u32>().ok();
    let refused: Vec<u32> = ended.stderr.lines().filter_map(refused).collect();
    assert!(refused[0] > 0 && refused[7] == 0, "the kernel refuses nothing, or everything: {refused:?}");
    let mut stopped = BTreeMap::new();
    let children: Vec<Vec<&str>> = ended
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("child "))
        .map(|words| words.split(' ').collect())
        .collect();
    assert_eq!(children.len(), 8, "{}", ended.stderr);
    for words in children {
        let _ = jitlisten_tests::perf_map::take(words[0].parse().expect("a number"));
        for counted in words[1..].chunks(2) {
            let reported = format!("jitlisten[{}] error: the {} sink stops", words[0], counted[0]);
            let reported = host.log().lines().filter(|line| line.starts_with(&reported)).count();
            assert!(reported <= 1 && counted[1] == reported.to_string(), "{words:?}: {}", host.log());
            *stopped.entry(counted[0]).or_insert(0) += reported;
        }
    }
    assert!(stopped["jitdump"] > 0 && stopped["image"] > 0 && stopped["perfmap"] == 0, "{stopped:?}");
    assert!(safety_host::stops(&host).iter().all(|line| line.contains("Cannot allocate memory")), "{}", host.log());
}

#[test]
fn a_program_that_closes_what_it_does_not_know() {
    let Some(host) = safety_host::scenario(&["daemon"]) else { return };
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
    assert_eq!(safety_host::stops(&host), Vec::<String>::new());
}

/// The same, and meanwhile another file was put where the jitdump was.
#[test]
fn a_jitdump_that_is_exchanged_when_it_is_closed() {
    let Some(host) = safety_host::scenario(&["daemon"]) else { return };
    let (mine, ours) = (host.scratch("mine"), host.scratch(".").display().to_string());
    let exchange =
        format!("for dump in '{ours}'/jitdump-*/*.dump; do mv \"$dump\" \"$dump.old\"; echo precious >\"$dump\"; done");
    let host = host.argument(&mine).variable("SAFETY_RUNS", exchange);
    let ended = host.run(Preload::Library).well();
    assert_one_stop_each(&host, &["jitdump"]);
    assert!(safety_host::stops(&host)[0].contains("is not ours: another file"), "{}", host.log());
    let dumps = jitdump_reader::find(&host.scratch("."));
    assert_eq!(fs::read_to_string(&dumps[0]).expect("text"), "precious\n");
    assert!(ended.perf_map().named("third").next().is_some(), "the perf map has nothing to do with it");
}

#[test]
fn the_next_descriptor_has_the_number_it_would_have() {
    let Some(host) = safety_host::scenario(&["numbers"]) else { return };
    let _ = host::same_output(&host).well();
}

/// As a container's profile does it: what is forbidden returns `EPERM`.
#[test]
fn system_calls_that_are_forbidden() {
    let Some(host) = safety_host::scenario(&["filtered"]) else { return };
    let ended = host::same_output(&host).well();
    for name in ["first", "second"] {
        assert!(ended.perf_map().named(name).next().is_some(), "{name}: {}", host.log());
    }
    // Without flock it could not be known that the images are in use.
    assert_one_stop_each(&host, &["image"]);
}

#[test]
fn a_library_that_is_closed() {
    let Some(host) = safety_host::scenario(&["opens"]) else { return };
    let ended = host.argument(paths::library()).run(Preload::Nothing).well();
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
    let program = safety_host::program()?;
    let host = Host::new(program, name).variable("JITLISTEN", "all");
    let counted = host.scratch("statistics");
    let host = ["first", "second", "third"].iter().fold(host, |host, word| host.argument(word));
    let host = host.variable("SAFETY_STATISTICS", counted).in_mount_namespace(script)?;
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
        paths::root().display()
    );
    let Some((host, ended)) = in_namespace("no-place", &script) else { return };
    assert_eq!(ended.map, None);
    assert_one_stop_each(&host, &["perfmap", "jitdump", "image"]);
}

fn full() -> Option<Mount> {
    let disk = Mount::tmpfs("size=8k")?;
    fs::write(disk.path().join("full"), [0; 8192]).expect("8 KiB");
    Some(disk)
}

#[test]
fn a_full_disk() {
    let Some(host) = safety_host::scenario(&["first", "second"]) else { return };
    let Some(disk) = full() else { return };
    let log = disk.path().join("log");
    let host =
        host.variable("JITLISTEN_DIR", disk.path()).variable("JITLISTEN_LOG", format!("debug:{}", log.display()));
    let ended = host::same_output(&host).well();
    assert!(ended.perf_map().named("second").next().is_some(), "the perf map is elsewhere");
    assert_eq!((safety_host::counted(&host, "jitdump"), safety_host::counted(&host, "perfmap")), (1, 0));
    let left: Vec<_> = fs::read_dir(disk.path()).expect("read").flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| name == "full" || name == "log"), "{left:?} is left behind");
}

/// So many functions, with names that fill a perf map.
const MANY: usize = 48;

fn many() -> Option<Host> {
    let names: Vec<String> = (0..MANY).map(|number| format!("function_{number}_{}", "long_".repeat(80))).collect();
    safety_host::scenario(&names.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What a perf map or a jitdump has that ends early: the first functions, each once.
fn is_first_ones<'a>(names: impl Iterator<Item = &'a str>) {
    let number = |name: &str| name.split('_').nth(1)?.parse::<usize>().ok();
    let mut numbers: Vec<_> = names.map(|name| number(name).unwrap_or_else(|| panic!("{name}"))).collect();
    numbers.sort_unstable();
    assert!((1..MANY).contains(&numbers.len()), "{} of {MANY} functions", numbers.len());
    assert!(numbers.iter().copied().eq(0..numbers.len()), "{numbers:?}");
}

/// `EDQUOT`, for the files of two sinks; the third one has its file elsewhere.
#[test]
fn a_quota_that_is_used_up() {
    let Some(host) = many() else { return };
    let Some(disk) = Mount::with_quota(192 << 10) else { return };
    let host = host.variable("JITLISTEN_DIR", disk.limited());
    let stock = host.run(Preload::Nothing).well();
    let ended = host.run(Preload::Library).well();
    assert_eq!((&stock.stdout, &stock.stderr), (&ended.stdout, &ended.stderr));
    assert_one_stop_each(&host, &["jitdump", "image"]);
    assert!(safety_host::stops(&host).iter().all(|line| line.contains("Disk quota exceeded")), "{}", host.log());
    assert_eq!(ended.perf_map().entries.len(), MANY);
    let dumps = jitdump_reader::find(&disk.limited());
    let [dump] = &dumps[..] else { panic!("{dumps:?}") };
    let dump = jitdump_reader::read(dump);
    is_first_ones(dump.functions.iter().map(|function| function.name.as_str()));
    assert!((1..MANY).contains(&image::files_in(&disk.limited()).len()));
}

/// `/tmp` is on a disk that ends in the middle of the perf map.
fn the_perf_map_ends(host: Host, disk: Option<Mount>, place: impl Fn(&Mount) -> PathBuf, reason: &str) {
    let Some(disk) = disk else { return };
    let script = format!("mount --bind '{}' /tmp", place(&disk).display());
    let Some(host) = host.in_mount_namespace(&script) else { return };
    let ended = host::same_output(&host).well();
    assert_one_stop_each(&host, &["perfmap"]);
    let stop = &safety_host::stops(&host)[0];
    assert!(stop.contains("write /tmp/perf-") && stop.contains(reason), "{stop}");
    let map = fs::read(place(&disk).join(format!("perf-{}.map", ended.pid))).expect("a perf map");
    let map = PerfMap::parse(&map).expect("every line is whole");
    is_first_ones(map.entries.iter().map(|entry| entry.name.as_str()));
    let dumps = jitdump_reader::find(&host.scratch("."));
    assert_eq!(jitdump_reader::read(&dumps[0]).functions.len(), MANY);
    assert_eq!(image::files(&host).len(), MANY);
}

#[test]
fn a_quota_that_the_perf_map_uses_up() {
    let Some(host) = many() else { return };
    let disk = Mount::with_quota(28 << 10);
    the_perf_map_ends(host, disk, Mount::limited, "Disk quota exceeded");
}

/// It takes the part of a line that fits.
#[test]
fn a_disk_that_the_perf_map_fills() {
    let Some(host) = many() else { return };
    let disk = Mount::tmpfs("size=12k");
    the_perf_map_ends(host, disk, |disk| disk.path().to_owned(), "no storage space");
}

/// Not one byte is left.
#[test]
fn a_quota_that_is_used_up_from_the_start() {
    let Some(host) = many() else { return };
    let Some(disk) = Mount::with_quota(1) else { return };
    let host = host.variable("JITLISTEN_DIR", disk.limited());
    let Some(host) = host.in_mount_namespace(&format!("mount --bind '{}' /tmp", disk.limited().display())) else {
        return;
    };
    let _ = host::same_output(&host).well();
    assert_one_stop_each(&host, &["perfmap", "jitdump", "image"]);
    assert!(safety_host::stops(&host).iter().all(|line| line.contains("Disk quota exceeded")), "{}", host.log());
    // A directory on it may be the way to the repository.
    let left = fs::read_dir(disk.limited()).expect("read").flatten().filter(|entry| !entry.path().is_dir());
    assert_eq!(left.count(), 0, "nothing is left behind");
}

/// The directory is removed between the first function and the second.
#[test]
fn a_directory_that_vanishes() {
    let Some(host) = safety_host::scenario(&["ends", "exit"]) else { return };
    let directory = host.scratch("gone");
    fs::create_dir(&directory).expect("made");
    let host =
        host.variable("JITLISTEN_DIR", &directory).variable("SAFETY_RUNS", format!("rm -rf '{}'", directory.display()));
    let ended = host.run(Preload::Library).well();
    assert!(!directory.exists());
    let stock = host.run(Preload::Nothing).well();
    assert_eq!((&ended.stdout, &ended.stderr), (&stock.stdout, &stock.stderr));
    assert_eq!(ended.perf_map().entries.len(), 2);
    assert_one_stop_each(&host, &["jitdump", "image"]);
}
