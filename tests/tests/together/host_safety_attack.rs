//! Attacks on the library through planted files, function names and environment variables. The attacker must also not
//! be able to read our files.
//!
//! The paths of a process contain its pid and can be guessed. A shell therefore plants a file where the library is
//! about to write, and then becomes the host through `exec`, which keeps the pid.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use jitlisten_tests::host::{self, Host, Outcome, Preload};
use jitlisten_tests::log;
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{image, integration, jitdump_reader, paths, perf_map, safety_host};

/// User id that owns no files.
const UNUSED_UID: u32 = 65534;

const VICTIM_TEXT: &str = "precious\n";

/// Plants a hard link. The victim moves to `/tmp` if that is a separate file system, because hard links cannot cross
/// file systems.
const HARD_LINK: &str = "ln \"$VICTIM\" \"$place\" 2>/dev/null || {
    mv \"$VICTIM\" \"$place.victim\"; ln \"$place.victim\" \"$place\"; ln -s \"$place.victim\" \"$VICTIM\"; }";

/// Shell commands that plant a file at `$place`, with their descriptions.
const PLANT_COMMANDS: [(&str, &str); 7] = [
    ("a symbolic link", "ln -s \"$VICTIM\" \"$place\""),
    ("a link to nothing", "ln -s \"$VICTIM.new\" \"$place\""),
    ("a hard link", HARD_LINK),
    ("a pipe with a reader", "mkfifo \"$place\"; cat <\"$place\" >\"$VICTIM.got\" 2>/dev/null & exec 9<>\"$place\""),
    ("a pipe that other_user reads", "mkfifo \"$place\""),
    ("a directory", "mkdir \"$place\""),
    ("a file of another user", "cp \"$VICTIM\" \"$place\"; chown 65534 \"$place\"; chmod 666 \"$place\""),
];

/// Builds a host that compiles two functions after its shell has run `plant`. Also returns the path of the victim.
fn plant_host(place: &str, plant: &str, closing: &str) -> Option<(Host, PathBuf)> {
    let script = format!("place={place}; {plant}{closing}");
    let host = safety_host::scenario_after_commands(&script, &["first", "second"])?;
    let victim = host.scratch("victim");
    fs::write(&victim, VICTIM_TEXT).expect("written");
    Some((host.variable("VICTIM", &victim), victim))
}

fn assert_untouched(victim: &Path, case: &str) {
    assert_eq!(fs::read_to_string(victim).expect("still there"), VICTIM_TEXT, "{case}");
    if let Ok(moved_victim) = fs::read_link(victim) {
        fs::remove_file(moved_victim).expect("it was there");
    }
    assert!(!victim.with_extension("new").exists(), "{case}: a link to nothing was followed");
    let leaked_bytes = fs::read(victim.with_extension("got")).unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&leaked_bytes), "", "{case}: another process has read it");
}

/// Asserts the host's output, and removes the file or directory at the path of the perf map.
fn run_with_plant(host: &Host, case: &str) -> Outcome {
    let mut running = host.start(Preload::Library);
    running.wait_for_line("second: right");
    let map = perf_map::path(running.pid());
    let outcome = running.wait_and_keep_map();
    assert!(outcome.status.success(), "{case}: {} {}", outcome.status, outcome.stderr);
    assert_eq!(outcome.stdout, b"first: right\nsecond: right\n", "{case}");
    assert_eq!(outcome.stderr, "", "{case}");
    let _ = if map.is_dir() { fs::remove_dir(map) } else { fs::remove_file(map) };
    outcome
}

#[test]
fn at_the_place_of_the_perf_map() {
    if !tool::require_root("another user's files") {
        return;
    }
    for (case, plant) in PLANT_COMMANDS {
        let Some((host, victim)) = plant_host("/tmp/perf-$$.map", plant, "") else { return };
        let _ = run_with_plant(&host, case);
        assert_untouched(&victim, case);
        let log = host.log();
        assert!(matches!(log::stopped_sinks(&log)[..], [("perfmap", _)]), "{case}: {log}");
        assert_eq!(safety_host::counter(&host, "perfmap"), 1, "{case}");
        assert_eq!(jitdump_reader::find(&host.scratch(".")).len(), 1, "{case}: the jitdump has nothing to do with it");
    }
}

#[test]
fn at_the_place_of_the_log() {
    if !tool::require_root("another user's files") {
        return;
    }
    for (case, plant) in PLANT_COMMANDS {
        let Some((host, victim)) = plant_host("\"$LOG\"", plant, "; export JITLISTEN_LOG=debug:$place") else { return };
        let log = host.scratch("planted");
        let host = host.variable("LOG", &log).variable("JITLISTEN_LOG", "");
        let outcome = run_with_plant(&host, case);
        assert_untouched(&victim, case);
        let metadata = fs::symlink_metadata(&log).expect("what was planted is there");
        assert!(
            !metadata.is_file() || metadata.nlink() > 1 || fs::read_to_string(&log).expect("text") == VICTIM_TEXT,
            "{case}"
        );
        assert!(outcome.status.success());
    }
}

/// The name of the image directory contains the pid and the start time of the process.
#[test]
fn at_the_place_of_the_images() {
    if !tool::require_root("another user's files") {
        return;
    }
    for (case, plant) in PLANT_COMMANDS {
        let place = "$JITLISTEN_DIR/image-$$-$(cut -d' ' -f22 /proc/$$/stat)";
        let Some((host, victim)) = plant_host(place, plant, "") else { return };
        let _ = run_with_plant(&host, case);
        assert_untouched(&victim, case);
        let images = files_below(&host.scratch("."), "so");
        assert_eq!(images.len(), 2, "{case}: another name does it: {}", host.log());
        assert!(images.iter().all(|image| image.to_string_lossy().contains("-1/object-")), "{case}: {images:?}");
    }
}

/// Plants files at `/var/tmp/jitlisten-UID`, in a private `/var/tmp`.
#[test]
fn at_the_usual_place_of_the_images() {
    if !tool::require_root("another user's files") || tool::require("unshare", Absence::FailsInCi).is_none() {
        return;
    }
    let open_directory = ("a directory open to others", "mkdir \"$place\"; chmod 777 \"$place\"");
    let foreign_directory = ("a directory of another user", "mkdir -m 700 \"$place\"; chown 65534 \"$place\"");
    for (case, plant) in PLANT_COMMANDS
        .into_iter()
        .filter(|plant| !["a directory", "a hard link"].contains(&plant.0))
        .chain([open_directory, foreign_directory])
    {
        let Some((host, victim)) = plant_host("/var/tmp/jitlisten-0", plant, "; export JITLISTEN_DIR=") else { return };
        let home_dir = host.scratch("home");
        let host = host.variable("HOME", &home_dir).variable("JITDUMPDIR", "");
        let Some(host) = host.in_mount_namespace("mount -t tmpfs none /var/tmp") else { return };
        let _ = run_with_plant(&host, case);
        assert_untouched(&victim, case);
        assert_eq!(files_below(&home_dir, "so").len(), 2, "{case}: they go to another place: {}", host.log());
        assert_eq!(log::stopped_sinks(&host.log()), [], "{case}");
    }
}

/// Files below a directory with this extension.
fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.is_symlink() {
            files.extend(files_below(&path, extension));
        } else if path.extension() == Some(OsStr::new(extension)) {
            files.push(path);
        }
    }
    files
}

/// Files and directories below `directory`, with their modes.
fn files_and_modes(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, metadata) = (entry.path(), entry.metadata().expect("there"));
        entries.push((path.clone(), metadata.permissions().mode() & 0o7777));
        if metadata.is_dir() {
            entries.extend(files_and_modes(&path));
        }
    }
    entries
}

/// Builds a host that runs as an unprivileged user, because root may access every file regardless of its mode.
fn host_of_other_user(umask: &str) -> Option<Host> {
    let setpriv = tool::require("setpriv", Absence::FailsInCi)?;
    let host = Host::accessible_to_all(setpriv, "other_user").variable("JITLISTEN", "all");
    let our_dir = host.scratch("ours");
    fs::create_dir(&our_dir).expect("made");
    chown(&our_dir, Some(UNUSED_UID), Some(UNUSED_UID)).expect("given away");
    let host = host.variable("JITLISTEN_LOG", format!("debug:{}", our_dir.join("log").display()));
    let setpriv_args = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"];
    let host = setpriv_args.iter().fold(host.variable("JITLISTEN_DIR", &our_dir), |host, arg| host.argument(arg));
    let (program, library) = (host.scratch("program"), host.scratch("libjitlisten.so"));
    // A separate process copies the program. If we copied it ourselves, a child of another test could inherit our
    // descriptor and keep the program's file busy.
    let copy_run = tool::run(Command::new("cp").arg(safety_host::program()?).arg(&program));
    assert!(copy_run.status.success());
    fs::copy(paths::library(), &library).expect("copied");
    // The library creates the log, so the shell sets the umask before the library is preloaded.
    let script = format!("umask {umask}; export LD_PRELOAD=\"$LIBRARY\"; exec \"$@\"");
    let host = host.variable("LIBRARY", library).argument(script).argument("sh").argument(program);
    Some(host.argument("first").argument("second"))
}

#[test]
fn no_other_user_may_read_our_files_whatever_the_umask() {
    if !tool::require_root("another user's files") {
        return;
    }
    for umask in ["000", "022", "777"] {
        let Some(host) = host_of_other_user(umask) else { return };
        let our_dir = host.scratch("ours");
        let mut running = host.start(Preload::Nothing);
        let map = perf_map::path(running.pid());
        running.wait_for_line("second: right");
        let mode = fs::metadata(&map).map(|metadata| metadata.permissions().mode() & 0o7777);
        assert_eq!(mode.ok(), Some(0o600), "umask {umask}: the perf map");
        let outcome = running.wait().expect_success();
        assert_eq!(outcome.perf_map().entries.len(), 2, "umask {umask}");
        let entries = files_and_modes(&our_dir);
        // The eight entries are the log; the jitdump, its marker and directory; and two images, their marker and
        // directory.
        assert_eq!(entries.len(), 8, "umask {umask}: {entries:?}");
        for (path, mode) in entries {
            let expected_mode = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, expected_mode, "umask {umask}: {}", path.display());
        }
    }
}

/// Function names that forge lines of the perf map, move the terminal's cursor, are not text, or are extremely long.
#[test]
fn names_of_functions() {
    let Some(program) = safety_host::program() else { return };
    for style in ["readable", "linkage"] {
        let host = Host::new(&program, "names").argument("names").variable("JITLISTEN", "all");
        let log = format!("debug:{}", host.scratch("log").display());
        let host = host.variable("JITLISTEN_NAMES", style).variable("JITLISTEN_LOG", log);
        let outcome = host::assert_same_output(&host).expect_success();
        let map = outcome.perf_map();
        assert_eq!(map.entries.len(), 16, "{}", map.names());
        assert!(map.entries.iter().all(|entry| entry.name.len() <= 512));
        assert!(!map.names().contains('\u{202e}') && !map.names().contains('\u{9b}'), "{}", map.names());
        let dumps = jitdump_reader::find(&host.scratch("."));
        let [dump] = &dumps[..] else { panic!("{dumps:?}") };
        let dump = jitdump_reader::read(dump);
        assert_eq!(dump.functions.len(), 16);
        assert_eq!(files_below(&host.scratch("."), "so").len(), 16);
        assert!(
            host.log().lines().all(|line| line.starts_with("jitlisten[") && !line.contains('\u{1b}')),
            "{}",
            host.log()
        );
    }
}

/// Hostile values of environment variables have no effect: the program prints the same, and the library writes nothing
/// outside its directories.
#[test]
fn values_of_variables() {
    let long_value = "x".repeat(100_000);
    let comma_list = ",".repeat(100_000);
    let many = "perfmap,".repeat(10_000);
    let values: [&[u8]; 16] = [
        b"",
        b" ",
        b"\xff\xfe\x80",
        b"all,off,all",
        b"OFF",
        b"\n\n",
        b"perfmap\x1b[31m",
        b"../../../../../../etc",
        b"/dev/null/x",
        b"/proc/self/mem",
        b"debug:/proc/self/mem",
        b"debug:/dev/full",
        b"%s%n%s",
        long_value.as_bytes(),
        comma_list.as_bytes(),
        many.as_bytes(),
    ];
    let names = [
        "JITLISTEN",
        "JITLISTEN_DIR",
        "JITLISTEN_LOG",
        "JITLISTEN_NAMES",
        "JITLISTEN_FRAME_POINTERS",
        "JITLISTEN_QUOTA",
        "JITDUMPDIR",
        "HOME",
    ];
    let Some(program) = safety_host::program() else { return };
    for name in names {
        for value in values {
            // Relative values refer to a private directory, so the library must not be loaded before the shell has
            // changed to it.
            let host = Host::new("/bin/sh", "hostile").variable("JITLISTEN", "all");
            let script = "cd \"$0\" && export LD_PRELOAD=\"$LIBRARY\" && exec \"$@\"";
            // The private directory has as many parents as any value has `..` components, so no value leads out of the
            // scratch directory.
            let (cwd, host) = (host.scratch("1/2/3/4/5/6"), host.variable("LIBRARY", paths::library()));
            fs::create_dir_all(&cwd).expect("made");
            let host = host.argument("-c").argument(script).argument(cwd).argument(&program).argument("first");
            let home_dir = host.scratch("home");
            let host = host.variable("HOME", home_dir);
            let host = host.variable(name, OsStr::from_bytes(value));
            let outcome = host.run(Preload::Nothing).expect_success();
            let value_start = String::from_utf8_lossy(&value[..value.len().min(40)]).escape_debug().to_string();
            assert_eq!(
                (&outcome.stdout[..], outcome.stderr.as_str()),
                (&b"first: right\n"[..], ""),
                "{name}={value_start}"
            );
            for line in host.log().lines() {
                assert!(
                    line.starts_with("jitlisten[") && !line.contains('\u{1b}'),
                    "{name}={value_start}: {line:.200}"
                );
            }
        }
    }
}

/// A set-user-ID program, linked with the library, opens a session. The user who runs it chooses the path of the log.
#[test]
fn a_set_user_id_program() {
    let (true, Some(setpriv)) =
        (tool::require_root("another user's files"), tool::require("setpriv", Absence::FailsInCi))
    else {
        return;
    };
    let host = Host::accessible_to_all(setpriv, "privileged").variable("JITLISTEN", "all");
    let program = host.scratch("program");
    let library = host.scratch("libjitlisten.so");
    fs::copy(paths::library(), &library).expect("copied");
    let directory = library.parent().expect("a directory").to_owned();
    let library = library.to_str().expect("UTF-8");
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    // The loader ignores `LD_LIBRARY_PATH` in a set-user-ID program, and trusts the program's own absolute run path.
    if safety_host::build("safety.c", &["-Wl,--no-as-needed", library, &rpath], &program).is_none() {
        return;
    }
    let our_dir = host.scratch("ours");
    fs::create_dir(&our_dir).expect("made");
    fs::set_permissions(&our_dir, fs::Permissions::from_mode(0o777)).expect("open to all");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("set-user-ID");
    let host = host.variable("JITLISTEN_DIR", &our_dir).variable("JITLISTEN_LOG", our_dir.join("log"));
    let setpriv_args = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let host = host.arguments(setpriv_args).argument(&program).argument("privileged");
    let outcome = host.run(Preload::Nothing).expect_success();
    let output = String::from_utf8_lossy(&outcome.stdout).into_owned();
    if output.contains("AT_SECURE: 0") {
        tool::skip("a set-user-ID program", "this file system does not honour it", Absence::IsAllowed);
        return;
    }
    assert_eq!(output, "AT_SECURE: 1\nopen: 4, enable: 4\nfirst: right\n");
    assert_eq!(outcome.map, None);
    assert_eq!(files_and_modes(&our_dir), vec![]);
}

/// Ways to preload a library into set-user-ID programs, according to `ld.so(8)`. Full paths are taken from
/// `/etc/ld.so.preload`. From `LD_PRELOAD`, the loader takes only names without slashes, of set-user-ID libraries in
/// system directories.
const PRELOADS: [(&str, &str); 2] = [
    ("/etc", "printf '%s\\n' \"$LIBRARY\" >/etc/ld.so.preload"),
    ("/usr/lib/$(uname -m)-linux-gnu", "cp \"$LIBRARY\" $place/; chmod 4755 $place/libjitlisten.so"),
];

/// Builds a host that preloads the library into the program alone, because its parent processes would write a log, too.
/// Also returns the directory that the program may write to.
fn host_with_preload(place: &str, command: &str, program: &Path) -> Option<(Host, PathBuf)> {
    let host = Host::accessible_to_all(tool::require("setpriv", Absence::FailsInCi)?, "preloaded");
    let library = host.scratch("libjitlisten.so");
    fs::copy(paths::library(), &library).expect("copied");
    let library_name = if place == "/etc" { library.display().to_string() } else { "libjitlisten.so".to_owned() };
    let our_dir = host.scratch("ours");
    fs::create_dir(&our_dir).expect("made");
    fs::set_permissions(&our_dir, fs::Permissions::from_mode(0o777)).expect("open to all");
    let setpriv_args = ["--reuid=65534", "--regid=65534", "--clear-groups", "env", "JITLISTEN=all"].map(str::to_owned);
    let variables = [
        format!("LD_PRELOAD={library_name}"),
        format!("JITLISTEN_DIR={}", our_dir.display()),
        format!("JITLISTEN_LOG=debug:{}", our_dir.join("log").display()),
    ];
    let host = host.arguments(setpriv_args.into_iter().chain(variables));
    // Mount an overlay over the directory; it disappears with the mount namespace.
    let script = format!(
        "place={place}; mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work
        mount -t overlay -o lowerdir=$place,upperdir=/mnt/upper,workdir=/mnt/work none $place; {command}"
    );
    let host = host.argument(program).argument("preloaded").variable("LIBRARY", library);
    Some((host.in_mount_namespace(&script)?, our_dir))
}

/// The loader removes `LD_PRELOAD` from the environment of a set-user-ID program, but the program may open the session
/// itself. Without the set-user-ID bit, the same program shows that the library is loaded and works.
#[test]
fn a_set_user_id_program_that_it_is_preloaded_into() {
    let program_dir = paths::Scratch::accessible_to_all("preloaded-program");
    let program = program_dir.join("program");
    if !tool::require_root("another user's files") || safety_host::build("safety.c", &[], &program).is_none() {
        return;
    }
    for ((place, command), mode) in PRELOADS.into_iter().flat_map(|preload| [(preload, 0o755), (preload, 0o4755)]) {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("set-user-ID or not");
        let Some((host, our_dir)) = host_with_preload(place, command, &program) else { return };
        let outcome = host.run(Preload::Nothing);
        let output = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let case = format!("{place}, mode {mode:o}: {output}{}", outcome.stderr);
        if outcome.stderr.contains("mount: ") || (mode == 0o4755 && output.contains("AT_SECURE: 0")) {
            // Containers may forbid mounting, and scratch directories may be mounted `nosuid`.
            tool::skip("a set-user-ID program", &case, Absence::IsAllowed);
            return;
        }
        assert!(outcome.status.success() && outcome.stderr.is_empty(), "{case}");
        if mode == 0o755 {
            assert!(output.starts_with("AT_SECURE: 0, library: there\n"), "{case}");
            assert!(output.contains("entry points: changed, changed\nopen: 0\n"), "{case}");
            assert_eq!(outcome.perf_map().entries.len(), 2, "{case}");
            assert!(files_and_modes(&our_dir).len() > 2, "{case}");
        } else {
            let entry_points = "entry points: empty, empty\n";
            let expected = ["AT_SECURE: 1, library: there\nfirst: right\n", "open: 4\nsecond: right\n", ""];
            assert_eq!(output, expected.join(entry_points), "{case}");
            assert_eq!((outcome.map, files_and_modes(&our_dir)), (None, vec![]), "{case}");
        }
    }
}

/// The owner of the parent directory may replace our directory by another one, which must stay empty.
#[test]
fn a_directory_that_is_exchanged() {
    let Some(host) = integration::numba("numba-0.68.1", "many_functions.py") else { return };
    let host = image::with_images(host.argument("4").argument("waiting"));
    let base = host.scratch("base");
    let victim = host.scratch("victim");
    fs::create_dir(&base).expect("made");
    fs::create_dir(&victim).expect("made");
    let host = host.variable("JITLISTEN_DIR", &base);
    let mut running = host.start(Preload::Library);
    running.wait_for_line("waiting");
    let our_dir = fs::read_dir(&base).expect("read").flatten().map(|entry| entry.path()).next().expect("a directory");
    fs::rename(&our_dir, our_dir.with_extension("moved")).expect("moved");
    symlink(&victim, &our_dir).expect("planted");
    running.send_newline();
    let _ = running.wait().expect_success();
    assert_eq!(fs::read_dir(&victim).expect("read").count(), 0);
    let log = host.log();
    assert!(matches!(log::stopped_sinks(&log)[..], [(_, error)] if error.contains("another directory")), "{log}");
}

/// Another user's tools cannot read a perf map.
#[test]
fn a_map_is_private_to_its_user() {
    let (true, Some(setpriv)) =
        (tool::require_root("another user's files"), tool::require("setpriv", Absence::FailsInCi))
    else {
        return;
    };
    let Some(host) = safety_host::scenario(&["ends", "exit"]) else { return };
    let mut running = host.start(Preload::Library);
    running.wait_for_line("first: right");
    let map = perf_map::path(running.pid());
    let mut cat = Command::new(setpriv);
    cat.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]).arg(&map);
    let cat = tool::run(&mut cat);
    assert!(!cat.status.success() && cat.stdout.is_empty());
    let _ = running.wait().expect_success().perf_map();
}
