//! What others may plant or say, and what of ours they may read.
//!
//! The paths of a process can be guessed, its number is in them. So a shell plants something where the library is about
//! to write, and becomes the host by `exec`: the number stays.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use jitlisten_tests::host::{self, Ended, Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{image, integration, jitdump_reader, paths, perf_map, safety_host};

/// Who owns nothing.
const UNUSED_PID: u32 = 65534;

const PRECIOUS: &str = "precious\n";

/// Where `/tmp` is a file system of its own, the victim moves there: both names of a file are in one.
const HARD_LINK: &str = "ln \"$VICTIM\" \"$place\" 2>/dev/null || {
    mv \"$VICTIM\" \"$place.victim\"; ln \"$place.victim\" \"$place\"; ln -s \"$place.victim\" \"$VICTIM\"; }";

/// Ways to plant a victim at `$place`.
const PLANTS: [(&str, &str); 7] = [
    ("a symbolic link", "ln -s \"$VICTIM\" \"$place\""),
    ("a link to nothing", "ln -s \"$VICTIM.new\" \"$place\""),
    ("a hard link", HARD_LINK),
    ("a pipe with a reader", "mkfifo \"$place\"; cat <\"$place\" >\"$VICTIM.got\" 2>/dev/null & exec 9<>\"$place\""),
    ("a pipe that other_user reads", "mkfifo \"$place\""),
    ("a directory", "mkdir \"$place\""),
    ("a file of another user", "cp \"$VICTIM\" \"$place\"; chown 65534 \"$place\"; chmod 666 \"$place\""),
];

fn is_root() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|about| about.uid() == 0);
    if !root {
        tool::skip("another user's files", "not root", Absence::IsAllowed);
    }
    root
}

/// A host that compiles two functions when something was planted at `place`, in the words of a shell.
fn planted(place: &str, plant: &str, closing: &str) -> Option<(Host, PathBuf)> {
    let script = format!("place={place}; {plant}{closing}");
    let host = safety_host::scenario_after(&script, &["first", "second"])?;
    let victim = host.scratch("victim");
    fs::write(&victim, PRECIOUS).expect("written");
    Some((host.variable("VICTIM", &victim), victim))
}

fn is_untouched(victim: &Path, what: &str) {
    assert_eq!(fs::read_to_string(victim).expect("still there"), PRECIOUS, "{what}");
    if let Ok(moved) = fs::read_link(victim) {
        fs::remove_file(moved).expect("it was there");
    }
    assert!(!victim.with_extension("new").exists(), "{what}: a link to nothing was followed");
    let got = fs::read(victim.with_extension("got")).unwrap_or_default();
    assert_eq!(String::from_utf8_lossy(&got), "", "{what}: another process has read it");
}

/// The host's output is right, and whatever lies at the place of the map is taken away.
fn run_planted(host: &Host, what: &str) -> Ended {
    let mut running = host.start(Preload::Library);
    running.wait_for_line("second: right");
    let map = perf_map::path(running.pid());
    let ended = running.end_without_map();
    assert!(ended.status.success(), "{what}: {} {}", ended.status, ended.stderr);
    assert_eq!(ended.stdout, b"first: right\nsecond: right\n", "{what}");
    assert_eq!(ended.stderr, "", "{what}");
    let _ = if map.is_dir() { fs::remove_dir(map) } else { fs::remove_file(map) };
    ended
}

#[test]
fn at_the_place_of_the_perf_map() {
    if !is_root() {
        return;
    }
    for (what, plant) in PLANTS {
        let Some((host, victim)) = planted("/tmp/perf-$$.map", plant, "") else { return };
        let _ = run_planted(&host, what);
        is_untouched(&victim, what);
        let stops = safety_host::stops(&host);
        assert!(stops.len() == 1 && stops[0].contains("the perfmap sink stops"), "{what}: {}", host.log());
        assert_eq!(safety_host::counted(&host, "perfmap"), 1, "{what}");
        assert_eq!(jitdump_reader::find(&host.scratch(".")).len(), 1, "{what}: the jitdump has nothing to do with it");
    }
}

#[test]
fn at_the_place_of_the_log() {
    if !is_root() {
        return;
    }
    for (what, plant) in PLANTS {
        let Some((host, victim)) = planted("\"$LOG\"", plant, "; export JITLISTEN_LOG=debug:$place") else { return };
        let log = host.scratch("planted");
        let host = host.variable("LOG", &log).variable("JITLISTEN_LOG", "");
        let ended = run_planted(&host, what);
        is_untouched(&victim, what);
        let about = fs::symlink_metadata(&log).expect("what was planted is there");
        assert!(!about.is_file() || about.nlink() > 1 || fs::read_to_string(&log).expect("text") == PRECIOUS, "{what}");
        assert!(ended.status.success());
    }
}

/// The directory of the images has the number and the start time of the process in its name.
#[test]
fn at_the_place_of_the_images() {
    if !is_root() {
        return;
    }
    for (what, plant) in PLANTS {
        let place = "$JITLISTEN_DIR/image-$$-$(cut -d' ' -f22 /proc/$$/stat)";
        let Some((host, victim)) = planted(place, plant, "") else { return };
        let _ = run_planted(&host, what);
        is_untouched(&victim, what);
        let images = files_below(&host.scratch("."), "so");
        assert_eq!(images.len(), 2, "{what}: another name does it: {}", host.log());
        assert!(images.iter().all(|image| image.to_string_lossy().contains("-1/object-")), "{what}: {images:?}");
    }
}

/// `/var/tmp/jitlisten-UID`, in a `/var/tmp` of the test's own.
#[test]
fn at_the_usual_place_of_the_images() {
    if !is_root() || tool::require("unshare", Absence::FailsInCi).is_none() {
        return;
    }
    let more = ("a directory open to others", "mkdir \"$place\"; chmod 777 \"$place\"");
    let others = ("a directory of another user", "mkdir -m 700 \"$place\"; chown 65534 \"$place\"");
    for (what, plant) in
        PLANTS.into_iter().filter(|plant| !["a directory", "a hard link"].contains(&plant.0)).chain([more, others])
    {
        let Some((host, victim)) = planted("/var/tmp/jitlisten-0", plant, "; export JITLISTEN_DIR=") else { return };
        let home = host.scratch("home");
        let host = host.variable("HOME", &home).variable("JITDUMPDIR", "");
        let Some(host) = host.in_mount_namespace("mount -t tmpfs none /var/tmp") else { return };
        let _ = run_planted(&host, what);
        is_untouched(&victim, what);
        assert_eq!(files_below(&home, "so").len(), 2, "{what}: they go to another place: {}", host.log());
        assert_eq!(safety_host::stops(&host), Vec::<String>::new(), "{what}");
    }
}

/// All files below a directory with this extension.
fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.is_symlink() {
            found.extend(files_below(&path, extension));
        } else if path.extension() == Some(OsStr::new(extension)) {
            found.push(path);
        }
    }
    found
}

/// Every file and directory below `directory` that the library has made.
fn ours_below(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, about) = (entry.path(), entry.metadata().expect("there"));
        found.push((path.clone(), about.permissions().mode() & 0o7777));
        if about.is_dir() {
            found.extend(ours_below(&path));
        }
    }
    found
}

/// An unprivileged user, because root may do everything whatever the mode.
fn as_another_user(umask: &str) -> Option<Host> {
    let setpriv = tool::require("setpriv", Absence::FailsInCi)?;
    let host = Host::open_to_others(setpriv, "other_user").variable("JITLISTEN", "all");
    let ours = host.scratch("ours");
    fs::create_dir(&ours).expect("made");
    chown(&ours, Some(UNUSED_PID), Some(UNUSED_PID)).expect("given away");
    let host = host.variable("JITLISTEN_LOG", format!("debug:{}", ours.join("log").display()));
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c"];
    let host = words.iter().fold(host.variable("JITLISTEN_DIR", &ours), |host, word| host.argument(word));
    let (program, library) = (host.scratch("program"), host.scratch("libjitlisten.so"));
    // By another process: a descriptor of ours that another test's child inherits would make the program busy.
    let copied = tool::run(Command::new("cp").arg(safety_host::program()?).arg(&program));
    assert!(copied.status.success());
    fs::copy(paths::library(), &library).expect("copied");
    // The shell must not make the log before it has set the umask.
    let script = format!("umask {umask}; export LD_PRELOAD=\"$LIBRARY\"; exec \"$@\"");
    let host = host.variable("LIBRARY", library).argument(script).argument("sh").argument(program);
    Some(host.argument("first").argument("second"))
}

#[test]
fn no_other_user_may_read_our_files_whatever_the_umask() {
    if !is_root() {
        return;
    }
    for umask in ["000", "022", "777"] {
        let Some(host) = as_another_user(umask) else { return };
        let ours = host.scratch("ours");
        let mut running = host.start(Preload::Nothing);
        let map = perf_map::path(running.pid());
        running.wait_for_line("second: right");
        let mode = fs::metadata(&map).map(|about| about.permissions().mode() & 0o7777);
        assert_eq!(mode.ok(), Some(0o600), "umask {umask}: the perf map");
        let ended = running.end().well();
        assert_eq!(ended.perf_map().entries.len(), 2, "umask {umask}");
        let found = ours_below(&ours);
        // Log; jitdump, its marker and directory; two images, their marker and directory.
        assert_eq!(found.len(), 8, "umask {umask}: {found:?}");
        for (path, mode) in found {
            let wanted = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, wanted, "umask {umask}: {}", path.display());
        }
    }
}

/// Names that forge lines of the map, move the cursor, are no text, or do not end.
#[test]
fn names_of_functions() {
    let Some(program) = safety_host::program() else { return };
    for style in ["readable", "linkage"] {
        let host = Host::new(&program, "names").argument("names").variable("JITLISTEN", "all");
        let log = format!("debug:{}", host.scratch("log").display());
        let host = host.variable("JITLISTEN_NAMES", style).variable("JITLISTEN_LOG", log);
        let ended = host::same_output(&host).well();
        let map = ended.perf_map();
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

/// What an environment may say, to no avail: the program prints the same, and nothing is written where it should not
/// be.
#[test]
fn values_of_variables() {
    let long = "x".repeat(100_000);
    let commas = ",".repeat(100_000);
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
        long.as_bytes(),
        commas.as_bytes(),
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
            // What is relative is relative to a directory of the test's own, and the shell must not have it before.
            let host = Host::new("/bin/sh", "hostile").variable("JITLISTEN", "all");
            let script = "cd \"$0\" && export LD_PRELOAD=\"$LIBRARY\" && exec \"$@\"";
            // As deep as the deepest value goes up.
            let (cwd, host) = (host.scratch("1/2/3/4/5/6"), host.variable("LIBRARY", paths::library()));
            fs::create_dir_all(&cwd).expect("made");
            let host = host.argument("-c").argument(script).argument(cwd).argument(&program).argument("first");
            let home = host.scratch("home");
            let host = host.variable("HOME", home);
            let host = host.variable(name, OsStr::from_bytes(value));
            let ended = host.run(Preload::Nothing).well();
            let shown = String::from_utf8_lossy(&value[..value.len().min(40)]).escape_debug().to_string();
            assert_eq!((&ended.stdout[..], ended.stderr.as_str()), (&b"first: right\n"[..], ""), "{name}={shown}");
            for line in host.log().lines() {
                assert!(line.starts_with("jitlisten[") && !line.contains('\u{1b}'), "{name}={shown}: {line:.200}");
            }
        }
    }
}

/// A set-user-ID program that is linked with the library and opens it. Its user says where the log should go.
#[test]
fn a_set_user_id_program() {
    let (true, Some(setpriv)) = (is_root(), tool::require("setpriv", Absence::FailsInCi)) else { return };
    let host = Host::open_to_others(setpriv, "privileged").variable("JITLISTEN", "all");
    let program = host.scratch("program");
    let library = host.scratch("libjitlisten.so");
    fs::copy(paths::library(), &library).expect("copied");
    let directory = library.parent().expect("a directory").to_owned();
    let library = library.to_str().expect("UTF-8");
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    // A copy of the dynamic loader's search path is not trusted there, an absolute one of the program is.
    if safety_host::build("safety.c", &["-Wl,--no-as-needed", library, &rpath], &program).is_none() {
        return;
    }
    let ours = host.scratch("ours");
    fs::create_dir(&ours).expect("made");
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o777)).expect("open to all");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("set-user-ID");
    let host = host.variable("JITLISTEN_DIR", &ours).variable("JITLISTEN_LOG", ours.join("log"));
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let host = words.iter().fold(host, |host, word| host.argument(word)).argument(&program).argument("privileged");
    let ended = host.run(Preload::Nothing).well();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    if said.contains("AT_SECURE: 0") {
        tool::skip("a set-user-ID program", "this file system does not honour it", Absence::IsAllowed);
        return;
    }
    assert_eq!(said, "AT_SECURE: 1\nopen: 4, enable: 4\nfirst: right\n");
    assert_eq!(ended.map, None);
    assert_eq!(ours_below(&ours), vec![]);
}

/// Ways to get a library into programs that are set-user-ID, too: `ld.so(8)` takes full paths from
/// `/etc/ld.so.preload`, and names of libraries in the system's directories that are set-user-ID themselves from
/// `LD_PRELOAD`.
const PRELOADS: [(&str, &str); 2] = [
    ("/etc", "printf '%s\\n' \"$LIBRARY\" >/etc/ld.so.preload"),
    ("/usr/lib/$(uname -m)-linux-gnu", "cp \"$LIBRARY\" $place/; chmod 4755 $place/libjitlisten.so"),
];

/// The program, with the library preloaded that way into it alone (what starts it would write a log, too), and the
/// directory that it may write to.
fn preloaded(place: &str, put: &str, program: &Path) -> Option<(Host, PathBuf)> {
    let host = Host::open_to_others(tool::require("setpriv", Absence::FailsInCi)?, "preloaded");
    let library = host.scratch("libjitlisten.so");
    fs::copy(paths::library(), &library).expect("copied");
    let named = if place == "/etc" { library.display().to_string() } else { "libjitlisten.so".to_owned() };
    let ours = host.scratch("ours");
    fs::create_dir(&ours).expect("made");
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o777)).expect("open to all");
    let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "env", "JITLISTEN=all"].map(str::to_owned);
    let variables = [
        format!("LD_PRELOAD={named}"),
        format!("JITLISTEN_DIR={}", ours.display()),
        format!("JITLISTEN_LOG=debug:{}", ours.join("log").display()),
    ];
    let host = words.into_iter().chain(variables).fold(host, |host, word| host.argument(word));
    // A copy of the directory that is gone with the namespace.
    let script = format!(
        "place={place}; mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work
        mount -t overlay -o lowerdir=$place,upperdir=/mnt/upper,workdir=/mnt/work none $place; {put}"
    );
    let host = host.argument(program).argument("preloaded").variable("LIBRARY", library);
    Some((host.in_mount_namespace(&script)?, ours))
}

/// The loader takes `LD_PRELOAD` away from the environment of a set-user-ID program, but the program may open the
/// session itself. The same program without the bit shows that the library is there and would work.
#[test]
fn a_set_user_id_program_that_it_is_preloaded_into() {
    let built = paths::Scratch::open_to_others("preloaded-program");
    let program = built.join("program");
    if !is_root() || safety_host::build("safety.c", &[], &program).is_none() {
        return;
    }
    for ((place, put), mode) in PRELOADS.into_iter().flat_map(|preload| [(preload, 0o755), (preload, 0o4755)]) {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("set-user-ID or not");
        let Some((host, ours)) = preloaded(place, put, &program) else { return };
        let ended = host.run(Preload::Nothing);
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let what = format!("{place}, mode {mode:o}: {said}{}", ended.stderr);
        if ended.stderr.contains("mount: ") || (mode == 0o4755 && said.contains("AT_SECURE: 0")) {
            // Containers may not mount, and scratch directories may be mounted `nosuid`.
            tool::skip("a set-user-ID program", &what, Absence::IsAllowed);
            return;
        }
        assert!(ended.status.success() && ended.stderr.is_empty(), "{what}");
        if mode == 0o755 {
            assert!(said.starts_with("AT_SECURE: 0, library: there\n"), "{what}");
            assert!(said.contains("entry points: changed, changed\nopen: 0\n"), "{what}");
            assert_eq!(ended.perf_map().entries.len(), 2, "{what}");
            assert!(ours_below(&ours).len() > 2, "{what}");
        } else {
            let nothing = "entry points: empty, empty\n";
            let wanted = ["AT_SECURE: 1, library: there\nfirst: right\n", "open: 4\nsecond: right\n", ""];
            assert_eq!(said, wanted.join(nothing), "{what}");
            assert_eq!((ended.map, ours_below(&ours)), (None, vec![]), "{what}");
        }
    }
}

/// Whoever owns the directory above ours may put another in its place; what was planted stays empty.
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
    let ours = fs::read_dir(&base).expect("read").flatten().map(|entry| entry.path()).next().expect("a directory");
    fs::rename(&ours, ours.with_extension("moved")).expect("moved");
    symlink(&victim, &ours).expect("planted");
    running.nod();
    let _ = running.end().well();
    assert_eq!(fs::read_dir(&victim).expect("read").count(), 0);
    let stops = safety_host::stops(&host);
    assert!(stops.len() == 1 && stops[0].contains("another directory"), "{}", host.log());
}

/// What tools of another user find.
#[test]
fn a_map_is_its_users_alone() {
    let (true, Some(setpriv)) = (is_root(), tool::require("setpriv", Absence::FailsInCi)) else { return };
    let Some(host) = safety_host::scenario(&["ends", "exit"]) else { return };
    let mut running = host.start(Preload::Library);
    running.wait_for_line("first: right");
    let map = perf_map::path(running.pid());
    let mut read = Command::new(setpriv);
    read.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]).arg(&map);
    let read = tool::run(&mut read);
    assert!(!read.status.success() && read.stdout.is_empty());
    let _ = running.end().well().perf_map();
}
