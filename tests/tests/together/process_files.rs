//! Files of a process that must not be mistaken for those of another: of its children, of processes with the same pid
//! in another PID namespace, of dead processes, and of the process itself before it changed its user.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::log::{self, LogEvent};
use jitlisten_tests::paths::{self, Scratch};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{jitdump_reader, perf, perf_map};

/// Compiles `hosts/calls.c` once for this binary.
fn program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let compile = || {
        let compiler = tool::require("cc", Absence::FailsInCi)?;
        // All tests of this binary share the program, so its directory outlives them; `ci/test.sh` removes it.
        let scratch = std::mem::ManuallyDrop::new(Scratch::new("calls-program"));
        let program = scratch.join("calls");
        let include = format!("-I{}", paths::root().join("include").display());
        tool::compile(
            &compiler,
            &["-O1", "-g", "-Wall", "-Wextra", "-Werror", &include],
            &paths::host("calls.c"),
            &program,
        );
        // Other users run the program, too, so its directory must be accessible to them.
        let directory = scratch.join(".");
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("ours");
        Some(program)
    };
    PROGRAM.get_or_init(compile).clone()
}

fn calls_host(args: &[&str]) -> Option<Host> {
    let host = Host::new(program()?, &format!("calls-{}", args[0]));
    Some(host.arguments(args))
}

/// Output lines that begin with `word`, without `word`.
fn output_values(outcome: &Outcome, word: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    text.lines().filter_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).collect()
}

/// With 10,000 live objects, a fork takes no longer than otherwise, and the child writes nothing.
#[test]
fn a_fork_writes_nothing_and_takes_no_time() {
    for sinks in ["perfmap,unwind", "perfmap,jitdump,unwind,gdb"] {
        let Some(host) = calls_host(&["forks", "10000"]) else { return };
        let host = host.variable("JITLISTEN", sinks);
        let start_time = SystemTime::now();
        let outcome = host.run(Preload::Library).expect_success();
        assert_eq!(
            perf_map::PerfMap::parse(outcome.map.as_deref().expect("a map")).expect("whole").entries.len(),
            10_000
        );
        for child in output_values(&outcome, "child") {
            // Ignore a map of an earlier process with the same pid.
            let map =
                fs::metadata(perf_map::path(child.parse().expect("a number"))).and_then(|metadata| metadata.modified());
            assert!(!map.is_ok_and(|written| written >= start_time - Duration::from_secs(1)), "{child} has a map");
        }
        let dumps = jitdump_reader::find(&host.scratch("."));
        assert_eq!(dumps.len(), usize::from(sinks.contains("jitdump")), "{dumps:?}");
        let fork_ms: f64 = output_values(&outcome, "milliseconds")[0].parse().expect("a number");
        assert!(fork_ms <= 10.0, "{sinks}: {fork_ms} ms in the child before fork returned");
    }
}

#[test]
fn a_child_has_a_map_after_its_first_object_or_on_request() {
    for (mode, names) in [("exits", None), ("compiles", Some("inherited\nof_child\n")), ("asks", Some("inherited\n"))] {
        let Some(host) = calls_host(&["child", mode]) else { return };
        let outcome = host.run(Preload::Library).expect_success();
        let map = perf_map::take(output_values(&outcome, "child")[0].parse().expect("a number"));
        let map_names = map.map(|bytes| perf_map::PerfMap::parse(&bytes).expect("whole").names());
        assert_eq!(map_names.as_deref(), names, "{mode}");
        assert_eq!(outcome.perf_map().names(), "inherited\n", "{mode}");
    }
}

/// According to the documentation, perf has recorded the fork, and therefore names the code of a child that compiles
/// nothing by its parent's map.
#[test]
fn perf_names_what_a_child_has_inherited() {
    let (Some(()), Some(host)) = (perf::is_available(), calls_host(&["child", "runs"])) else { return };
    let recording = perf::record(&host, Preload::Library);
    let child: u32 =
        String::from_utf8_lossy(&recording.stdout).trim().trim_start_matches("child ").parse().expect("a number");
    assert!(!perf_map::path(child).exists());
    let leaves =
        recording.samples.iter().filter(|sample| sample.pid == child).filter_map(|sample| sample.frames.first());
    let (inherited, other_frames): (Vec<_>, Vec<_>) = leaves
        .filter(|frame| frame.object.contains("/perf-"))
        .partition(|frame| frame.symbol.as_deref() == Some("inherited"));
    assert!(inherited.len() > 100 && other_frames.is_empty(), "{} named, not {other_frames:?}", inherited.len());
}

/// Two containers share `/tmp`. Both processes have pid 1, and therefore the same map file.
#[test]
fn processes_of_one_number_in_two_pid_namespaces() {
    let (Some(unshare), Some(program)) = (tool::require("unshare", Absence::FailsInCi), program()) else { return };
    let unshare_args = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let unshare_run = tool::run(Command::new(&unshare).args(unshare_args).arg("true"));
    if !unshare_run.status.success() {
        return tool::skip("unshare --pid", String::from_utf8_lossy(&unshare_run.stderr).trim(), Absence::IsAllowed);
    }
    let host = |name: &str| {
        let host =
            unshare_args.iter().fold(Host::new(&unshare, &format!("namespace-{name}")), |host, arg| host.argument(arg));
        host.argument(&program).argument("neighbour").argument(name)
    };
    let _ = perf_map::take(1);
    let map = perf_map::path(1);
    let names = || -> Vec<String> {
        let map = perf_map::strip_owner_line(&fs::read(&map).expect("a map")).to_vec();
        let text = String::from_utf8(map).expect("UTF-8");
        let names: Vec<&str> = text.lines().map(|line| line.splitn(3, ' ').nth(2).expect("three words")).collect();
        names.into_iter().filter(|name| !name.starts_with("freed")).map(str::to_owned).collect()
    };
    let (first_host, second_host) = (host("one"), host("other"));
    let mut first = first_host.start(Preload::Library);
    first.wait_for_line("ready");
    let mut second = second_host.start(Preload::Library);
    second.wait_for_line("ready");
    assert_eq!(names(), ["one_first", "one_old", "other_first", "other_old"], "the first one lives");
    let log = second_host.log();
    assert!(log::events(&log).any(|event| matches!(event, LogEvent::PerfMapShared { .. })), "{log}");
    for running in [&mut first, &mut second] {
        running.send_newline();
        running.wait_for_line("done");
    }
    assert_eq!(names(), ["one_first", "other_first", "one_new", "other_new"]);
    first.send_newline();
    let _ = first.wait_and_keep_map().expect_success();
    // The second process is still alive, so its lines must be kept, regardless of later processes.
    let third_host = host("third");
    let mut running = third_host.start(Preload::Library);
    running.wait_for_line("ready");
    assert!(names().contains(&"other_new".to_owned()), "{:?}", names());
    running.send_newline();
    running.wait_for_line("done");
    running.send_newline();
    let _ = running.wait_and_keep_map().expect_success();
    second.send_newline();
    let _ = second.wait_and_keep_map().expect_success();
    let last_host = host("last");
    let mut running = last_host.start(Preload::Library);
    running.wait_for_line("ready");
    assert_eq!(names(), ["last_first", "last_old"], "other_user else lives");
    drop(running);
    let _ = perf_map::take(1);
}

/// Even if the clock stands still, the library's memory use must not grow.
#[test]
fn memory_does_not_grow_under_a_stopped_clock() {
    let faketime = PathBuf::from(format!("/usr/lib/{}-linux-gnu/faketime/libfaketime.so.1", std::env::consts::ARCH));
    if !faketime.is_file() {
        return tool::skip("libfaketime", "not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    let Some(host) = calls_host(&["turns", "200000"]) else { return };
    let preloads = format!("{}:{}", faketime.display(), paths::library().display());
    let host = host.variable("LD_PRELOAD", preloads).variable("FAKETIME", "2020-01-01 00:00:00");
    let host = host.variable("FAKETIME_DONT_FAKE_MONOTONIC", "0").variable("JITLISTEN", "perfmap,unwind");
    let outcome = host.run(Preload::Nothing).expect_success();
    let resident_kb: Vec<i64> =
        output_values(&outcome, "resident").iter().map(|text| text.parse().expect("a number")).collect();
    assert!(resident_kb[1] - resident_kb[0] < 1024, "kilobytes after each half: {resident_kb:?}");
}

/// A launcher that runs as root must not leave a log that the program it starts cannot write to.
#[test]
fn a_log_is_made_for_its_first_line() {
    let host = Host::new("/bin/true", "no-log");
    let _ = host.run(Preload::Library).expect_success();
    assert!(!host.scratch("log").exists());
    let host = host.variable("JITLISTEN", "nonsense");
    let _ = host.run(Preload::Library).expect_success();
    assert!(host.log().contains("unknown sink"), "{}", host.log());
}

#[test]
fn lines_that_cannot_be_logged_are_counted() {
    for (log, expected_loss) in [("/nonexistent/log", "some"), ("log", "none")] {
        let Some(host) = calls_host(&["lost-lines"]) else { return };
        let path = if log == "log" { host.scratch("log") } else { log.into() };
        let host = host.variable("JITLISTEN_LOG", format!("debug:{}", path.display()));
        let outcome = host.run(Preload::Library).expect_success();
        assert_eq!(
            (output_values(&outcome, "lost"), outcome.stderr.as_str()),
            (vec![expected_loss.to_owned()], ""),
            "{log}"
        );
    }
}

/// Files created after a change of the user belong to the new user; older files still belong to the old user.
#[test]
fn a_process_that_becomes_another_user() {
    if !tool::require_root("another user's process") {
        return;
    }
    for mode in ["itself", "worker"] {
        let Some(host) = calls_host(&["becomes", mode, "65534"]) else { return };
        let output_dir = host.scratch("place");
        fs::create_dir(&output_dir).expect("a directory");
        fs::set_permissions(&output_dir, fs::Permissions::from_mode(0o1777)).expect("ours");
        let host = host.variable("JITLISTEN", "perfmap,image,jitdump").variable("JITLISTEN_DIR", &output_dir);
        let outcome = host.run(Preload::Library).expect_success();
        let owner_of = |path: PathBuf| fs::metadata(path).map(|metadata| metadata.uid()).ok();
        let entries = || fs::read_dir(&output_dir).expect("a directory").flatten().map(|entry| entry.path());
        let has_prefix = |path: &PathBuf, prefix: &str| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
        };
        for prefix in ["image-", "jitdump-"] {
            let owners: BTreeSet<Option<u32>> =
                entries().filter(|path| has_prefix(path, prefix)).map(owner_of).collect();
            assert_eq!(owners, BTreeSet::from([Some(0), Some(65534)]), "{mode}, {prefix}: {}", host.log());
        }
        // Each user's jitdump contains the names of the functions that were live while it was written.
        for (user, expected) in [(0, [true, false]), (65534, [true, true])] {
            let jitdump_dir =
                entries().find(|path| has_prefix(path, "jitdump-") && owner_of(path.clone()) == Some(user));
            let dumps = jitdump_reader::find(&jitdump_dir.expect("found above"));
            let bytes = fs::read(dumps.first().expect("a jitdump")).expect("whole");
            let contains_name = |name: &str| bytes.windows(name.len()).any(|window| window == name.as_bytes());
            assert_eq!(["of_root", "of_user"].map(contains_name), expected, "{mode}: of user {user}");
        }
        if mode == "worker" {
            let child: u32 = output_values(&outcome, "child")[0].parse().expect("a number");
            assert_eq!(owner_of(perf_map::path(child)), Some(65534));
            let map = perf_map::take(child).expect("a map");
            assert_eq!(perf_map::PerfMap::parse(&map).expect("whole").names(), "of_root\nof_user\n");
        } else {
            assert_eq!(outcome.perf_map().names(), "of_root\nof_user\n");
        }
    }
}

/// Processes that exit leave a map for `perf report`, but not forever.
#[test]
fn maps_of_dead_processes_are_removed() {
    let Some(host) = calls_host(&["child", "exits"]) else { return };
    let mut pids = BTreeSet::new();
    for _ in 0..24 {
        let outcome = host.start(Preload::Library).wait_and_keep_map().expect_success();
        pids.insert(outcome.pid);
    }
    let count_maps = |pids: &BTreeSet<u32>| pids.iter().filter(|&&pid| perf_map::path(pid).exists()).count();
    assert_eq!(count_maps(&pids), 24, "who records many short processes wants all of them");
    // Maps of processes that were found dead are backdated by eight days, which makes them old enough to be removed. Each
    // process examines only a part of the maps if there are many.
    let old_time = SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
    let backdate_map = |pid: &u32| {
        if let Ok(file) = fs::File::options().write(true).open(perf_map::path(*pid)) {
            file.set_modified(old_time).expect("ours");
        }
    };
    for _ in 0..100 {
        pids.iter().for_each(backdate_map);
        pids.insert(host.start(Preload::Library).wait_and_keep_map().expect_success().pid);
        if count_maps(&pids) <= 2 {
            break;
        }
    }
    let kept_maps = count_maps(&pids);
    pids.iter().for_each(|&pid| drop(perf_map::take(pid)));
    // A map may be recent because another process has reused its pid.
    assert!(kept_maps <= 2, "{kept_maps} of {} are kept", pids.len());
}

/// A recording of many short-lived processes refers to the files of all of them. Old files are removed, unless they
/// belong to a `jitlisten run` that is still running.
#[test]
fn images_and_jitdumps_of_dead_processes_are_kept_for_their_recording() {
    let output_dir = Scratch::new("dead-images");
    let output_dir = output_dir.join(".");
    let own_pid = std::process::id();
    let stat = fs::read_to_string("/proc/self/stat").expect("readable");
    let start: u64 = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(20)?.parse().ok()).expect("field 22");
    let namespace = fs::metadata("/proc/self/ns/pid").expect("a namespace").ino();
    let host_of_run = |start: u64| {
        let run = format!("children+run={own_pid}-{start}-{namespace}:{}", paths::library().display());
        let host = calls_host(&["neighbour", "one"])?.variable("JITLISTEN", "image,jitdump");
        Some(host.variable("JITLISTEN_DIR", &output_dir).variable("JITLISTEN_RUN", run))
    };
    let (Some(active_run), Some(ended_run), Some(next_run)) =
        (host_of_run(start), host_of_run(start + 1), host_of_run(start + 2))
    else {
        return;
    };
    let run = |host: &Host| {
        let mut running = host.start(Preload::Library);
        for line in ["ready", "done"] {
            running.wait_for_line(line);
            running.send_newline();
        }
        let _ = running.wait_and_keep_map().expect_success();
    };
    let directories = || -> Vec<PathBuf> {
        fs::read_dir(&output_dir).expect("a directory").flatten().map(|entry| entry.path()).collect()
    };
    for _ in 0..12 {
        run(&active_run);
        run(&ended_run);
    }
    let old_dirs = directories();
    assert_eq!(old_dirs.len(), 48, "more than sixteen of each kind: {old_dirs:?}");
    let old_time = SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
    for directory in &old_dirs {
        fs::write(directory.join("dead"), "1\n").expect("ours");
        let marker = fs::File::options().write(true).open(directory.join("dead")).expect("a mark");
        marker.set_modified(old_time).expect("ours");
    }
    // Each process takes a limited time for it.
    for _ in 0..100 {
        run(&next_run);
        if old_dirs.iter().filter(|directory| directory.exists()).count() <= old_dirs.len() / 2 {
            break;
        }
    }
    let kept_dirs = old_dirs.iter().filter(|directory| directory.exists());
    let markers: Vec<String> =
        kept_dirs.map(|path| fs::read_to_string(path.join("alive")).expect("a marker")).collect();
    assert!(markers.iter().all(|text| text.contains(&format!("run={own_pid}-{start}-"))), "{markers:?}");
    assert_eq!(markers.len(), old_dirs.len() / 2);
}
