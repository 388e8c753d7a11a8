//! Files of one process among those of others: its children, processes of the same number in another PID namespace,
//! dead ones, and itself as another user.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use jitlisten_tests::host::{Ended, Host, Preload};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{jitdump_reader, perf, perf_map};

/// `hosts/calls.c`, built once for this binary.
fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let make = || {
        let compiler = tool::require("cc", Absence::FailsInCi)?;
        // Every test of this binary uses it; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("calls-program"));
        let program = scratch.join("calls");
        let include = format!("-I{}", paths::root().join("include").display());
        tool::compile(
            &compiler,
            &["-O1", "-g", "-Wall", "-Wextra", "-Werror", &include],
            &paths::host("calls.c"),
            &program,
        );
        // Other users run it, too.
        let directory = scratch.join(".");
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("ours");
        Some(program)
    };
    PROGRAM.get_or_init(make).clone()
}

fn calls(words: &[&str]) -> Option<Host> {
    let host = Host::new(program()?, &format!("calls-{}", words[0]));
    Some(words.iter().fold(host, |host, word| host.argument(word)))
}

/// The number behind this word on a line of the output.
fn said(ended: &Ended, word: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    text.lines().filter_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).collect()
}

fn is_root() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    if !root {
        tool::skip("setuid", "only root may become another user", Absence::IsAllowed);
    }
    root
}

/// 10,000 objects are alive: the fork takes what a fork takes, and the child leaves nothing.
#[test]
fn a_fork_writes_nothing_and_takes_no_time() {
    for sinks in ["perfmap,unwind", "perfmap,jitdump,unwind,gdb"] {
        let Some(host) = calls(&["forks", "10000"]) else { return };
        let host = host.variable("JITLISTEN", sinks);
        let began = SystemTime::now();
        let ended = host.run(Preload::Library).well();
        assert_eq!(
            perf_map::PerfMap::parse(ended.map.as_deref().expect("a map")).expect("whole").entries.len(),
            10_000
        );
        for child in said(&ended, "child") {
            // One of a process that had this number before is not ours.
            let map = fs::metadata(perf_map::path(child.parse().expect("a number"))).and_then(|about| about.modified());
            assert!(!map.is_ok_and(|written| written >= began - Duration::from_secs(1)), "{child} has a map");
        }
        let dumps = jitdump_reader::find(&host.scratch("."));
        assert_eq!(dumps.len(), usize::from(sinks.contains("jitdump")), "{dumps:?}");
        let took: f64 = said(&ended, "milliseconds")[0].parse().expect("a number");
        assert!(took <= 10.0, "{sinks}: {took} ms in the child before fork returned");
    }
}

#[test]
fn a_child_has_a_map_from_its_first_object_on_or_when_it_asks() {
    for (what, names) in [("exits", None), ("compiles", Some("inherited\nof_child\n")), ("asks", Some("inherited\n"))] {
        let Some(host) = calls(&["child", what]) else { return };
        let ended = host.run(Preload::Library).well();
        let map = perf_map::take(said(&ended, "child")[0].parse().expect("a number"));
        let found = map.map(|bytes| perf_map::PerfMap::parse(&bytes).expect("whole").names());
        assert_eq!(found.as_deref(), names, "{what}");
        assert_eq!(ended.perf_map().names(), "inherited\n", "{what}");
    }
}

/// What the documents say of a child that compiles nothing: perf, which has seen the fork, names it by its parent's
/// map.
#[test]
fn perf_names_what_a_child_has_inherited() {
    let (Some(()), Some(host)) = (perf::is_here(), calls(&["child", "runs"])) else { return };
    let recording = perf::record(&host, Preload::Library);
    let child: u32 =
        String::from_utf8_lossy(&recording.stdout).trim().trim_start_matches("child ").parse().expect("a number");
    assert!(!perf_map::path(child).exists());
    let leaves =
        recording.samples.iter().filter(|sample| sample.pid == child).filter_map(|sample| sample.frames.first());
    let (named, others): (Vec<_>, Vec<_>) = leaves
        .filter(|frame| frame.object.contains("/perf-"))
        .partition(|frame| frame.symbol.as_deref() == Some("inherited"));
    assert!(named.len() > 100 && others.is_empty(), "{} named, not {others:?}", named.len());
}

/// Two containers with a common `/tmp`: both processes have the number 1, and one file.
#[test]
fn processes_of_one_number_in_two_pid_namespaces() {
    let (Some(unshare), Some(program)) = (tool::require("unshare", Absence::FailsInCi), program()) else { return };
    let words = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let tried = tool::run(Command::new(&unshare).args(words).arg("true"));
    if !tried.status.success() {
        return tool::skip("unshare --pid", String::from_utf8_lossy(&tried.stderr).trim(), Absence::IsAllowed);
    }
    let host = |name: &str| {
        let host =
            words.iter().fold(Host::new(&unshare, &format!("namespace-{name}")), |host, word| host.argument(word));
        host.argument(&program).argument("neighbour").argument(name)
    };
    let _ = perf_map::take(1);
    let map = perf_map::path(1);
    let names = || -> Vec<String> {
        let map = perf_map::without_first_line(&fs::read(&map).expect("a map")).to_vec();
        let text = String::from_utf8(map).expect("UTF-8");
        let names: Vec<&str> = text.lines().map(|line| line.splitn(3, ' ').nth(2).expect("three words")).collect();
        names.into_iter().filter(|name| !name.starts_with("freed")).map(str::to_owned).collect()
    };
    let (one, other) = (host("one"), host("other"));
    let mut first = one.start(Preload::Library);
    first.wait_for_line("ready");
    let mut second = other.start(Preload::Library);
    second.wait_for_line("ready");
    assert_eq!(names(), ["one_first", "one_old", "other_first", "other_old"], "the first one lives");
    assert!(other.log().contains("also belongs to another process"), "{}", other.log());
    for running in [&mut first, &mut second] {
        running.nod();
        running.wait_for_line("done");
    }
    assert_eq!(names(), ["one_first", "other_first", "one_new", "other_new"]);
    first.nod();
    let _ = first.end_without_map().well();
    // The second one lives: its lines stay, whoever comes.
    let third = host("third");
    let mut running = third.start(Preload::Library);
    running.wait_for_line("ready");
    assert!(names().contains(&"other_new".to_owned()), "{:?}", names());
    running.nod();
    running.wait_for_line("done");
    running.nod();
    let _ = running.end_without_map().well();
    second.nod();
    let _ = second.end_without_map().well();
    let last = host("last");
    let mut running = last.start(Preload::Library);
    running.wait_for_line("ready");
    assert_eq!(names(), ["last_first", "last_old"], "other_user else lives");
    drop(running);
    let _ = perf_map::take(1);
}

/// A clock that stands still is no reason to keep everything for ever.
#[test]
fn memory_does_not_grow_under_a_stopped_clock() {
    let faketime = PathBuf::from(format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", std::env::consts::ARCH));
    if !faketime.is_file() {
        return tool::skip("libfaketime", "not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    let Some(host) = calls(&["turns", "200000"]) else { return };
    let both = format!("{}:{}", faketime.display(), paths::library().display());
    let host = host.variable("LD_PRELOAD", both).variable("FAKETIME", "2020-01-01 00:00:00");
    let host = host.variable("FAKETIME_DONT_FAKE_MONOTONIC", "0").variable("JITLISTEN", "perfmap,unwind");
    let ended = host.run(Preload::Nothing).well();
    let resident: Vec<i64> = said(&ended, "resident").iter().map(|text| text.parse().expect("a number")).collect();
    assert!(resident[1] - resident[0] < 1024, "kilobytes after each half: {resident:?}");
}

/// A launcher that runs as root must not leave a log that the program it starts cannot write to.
#[test]
fn a_log_is_made_for_its_first_line() {
    let host = Host::new("/bin/true", "no-log");
    let _ = host.run(Preload::Library).well();
    assert!(!host.scratch("log").exists());
    let host = host.variable("JITLISTEN", "nonsense");
    let _ = host.run(Preload::Library).well();
    assert!(host.log().contains("unknown sink"), "{}", host.log());
}

#[test]
fn lines_that_the_log_does_not_take_are_counted() {
    for (log, lost) in [("/nonexistent/log", "some"), ("log", "none")] {
        let Some(host) = calls(&["lost-lines"]) else { return };
        let path = if log == "log" { host.scratch("log") } else { log.into() };
        let host = host.variable("JITLISTEN_LOG", format!("debug:{}", path.display()));
        let ended = host.run(Preload::Library).well();
        assert_eq!((said(&ended, "lost"), ended.stderr.as_str()), (vec![lost.to_owned()], ""), "{log}");
    }
}

/// The new user's files are the new user's; what was there before stays the old one's.
#[test]
fn a_process_that_becomes_another_user() {
    if !is_root() {
        return;
    }
    for who in ["itself", "worker"] {
        let Some(host) = calls(&["becomes", who, "65534"]) else { return };
        let place = host.scratch("place");
        fs::create_dir(&place).expect("a directory");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o1777)).expect("ours");
        let host = host.variable("JITLISTEN", "perfmap,image,jitdump").variable("JITLISTEN_DIR", &place);
        let ended = host.run(Preload::Library).well();
        let owner_of = |path: PathBuf| fs::metadata(path).map(|about| about.uid()).ok();
        let entries = || fs::read_dir(&place).expect("a directory").flatten().map(|entry| entry.path());
        let of_kind =
            |path: &PathBuf, kind: &str| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(kind));
        for kind in ["image-", "jitdump-"] {
            let owners: BTreeSet<Option<u32>> = entries().filter(|path| of_kind(path, kind)).map(owner_of).collect();
            assert_eq!(owners, BTreeSet::from([Some(0), Some(65534)]), "{who}, {kind}: {}", host.log());
        }
        // Each user's jitdump names what was alive when it was written.
        for (user, named) in [(0, [true, false]), (65534, [true, true])] {
            let theirs = entries().find(|path| of_kind(path, "jitdump-") && owner_of(path.clone()) == Some(user));
            let dumps = jitdump_reader::find(&theirs.expect("found above"));
            let bytes = fs::read(dumps.first().expect("a jitdump")).expect("whole");
            let has = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
            assert_eq!(["of_root", "of_user"].map(has), named, "{who}: of user {user}");
        }
        if who == "worker" {
            let child: u32 = said(&ended, "child")[0].parse().expect("a number");
            assert_eq!(owner_of(perf_map::path(child)), Some(65534));
            let map = perf_map::take(child).expect("a map");
            assert_eq!(perf_map::PerfMap::parse(&map).expect("whole").names(), "of_root\nof_user\n");
        } else {
            assert_eq!(ended.perf_map().names(), "of_root\nof_user\n");
        }
    }
}

/// Processes that end leave a map for `perf report`; it does not stay for ever.
#[test]
fn maps_of_dead_processes_are_removed() {
    let Some(host) = calls(&["child", "exits"]) else { return };
    let mut left = BTreeSet::new();
    for _ in 0..24 {
        let ended = host.start(Preload::Library).end_without_map().well();
        left.insert(ended.pid);
    }
    let remaining = |left: &BTreeSet<u32>| left.iter().filter(|&&pid| perf_map::path(pid).exists()).count();
    assert_eq!(remaining(&left), 24, "who records many short processes wants all of them");
    // The last one found the others dead; that was eight days ago.
    let then = SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
    let age = |pid: &u32| {
        let file = fs::File::options().write(true).open(perf_map::path(*pid)).expect("a map");
        file.set_modified(then).expect("ours");
    };
    left.iter().for_each(age);
    let _ = host.start(Preload::Library).end_without_map().well();
    let kept = remaining(&left);
    left.iter().for_each(|&pid| drop(perf_map::take(pid)));
    // One of a process that had a number of theirs since is not old.
    assert!(kept <= 2, "{kept} of {} are kept", left.len());
}

/// A recording of many short processes refers to the files of all of them. Those that are old go, unless the `jitlisten
/// run` that they belong to is not over.
#[test]
fn images_and_jitdumps_of_dead_processes_are_kept_for_their_recording() {
    let place = Scratch::new("dead-images");
    let place = place.join(".");
    let own = std::process::id();
    let stat = fs::read_to_string("/proc/self/stat").expect("readable");
    let start: u64 = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(20)?.parse().ok()).expect("field 22");
    let namespace = fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
    let of_run = |start: u64| {
        let run = format!("children+run={own}-{start}-{namespace}:{}", paths::library().display());
        let host = calls(&["neighbour", "one"])?.variable("JITLISTEN", "image,jitdump");
        Some(host.variable("JITLISTEN_DIR", &place).variable("JITLISTEN_RUN", run))
    };
    let (Some(running), Some(over), Some(next)) = (of_run(start), of_run(start + 1), of_run(start + 2)) else { return };
    let run = |host: &Host| {
        let mut running = host.start(Preload::Library);
        for line in ["ready", "done"] {
            running.wait_for_line(line);
            running.nod();
        }
        let _ = running.end_without_map().well();
    };
    let directories =
        || -> Vec<PathBuf> { fs::read_dir(&place).expect("a directory").flatten().map(|entry| entry.path()).collect() };
    for _ in 0..12 {
        run(&running);
        run(&over);
    }
    let before = directories();
    assert_eq!(before.len(), 48, "more than sixteen of each kind: {before:?}");
    let then = SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
    for directory in &before {
        fs::write(directory.join("dead"), "1\n").expect("ours");
        let mark = fs::File::options().write(true).open(directory.join("dead")).expect("a mark");
        mark.set_modified(then).expect("ours");
    }
    run(&next);
    let kept = before.iter().filter(|directory| directory.exists());
    let texts: Vec<String> = kept.map(|path| fs::read_to_string(path.join("alive")).expect("a marker")).collect();
    assert!(texts.iter().all(|text| text.contains(&format!("run={own}-{start}-"))), "{texts:?}");
    assert_eq!(texts.len(), before.len() / 2);
}
