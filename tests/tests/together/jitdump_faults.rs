//! Jitdump directories that cannot be written to. The jitdump stops, the stop is logged once and counted, the file
//! keeps a valid prefix, and the program is not affected.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use jitlisten_tests::host::{Host, Outcome, Preload};
use jitlisten_tests::jitdump_reader::{self, Jitdump};
use jitlisten_tests::log;
use jitlisten_tests::mount::Mount;
use jitlisten_tests::{integration, paths, tool};

const FUNCTION_COUNT: u32 = 24;

fn host() -> Option<Host> {
    let host = integration::numba("numba-0.68.1", "many_functions.py")?;
    Some(host.argument(FUNCTION_COUNT.to_string()).variable("JITLISTEN", "jitdump,perfmap"))
}

/// Asserts that the output equals that of the stock process, that the perf map continues, and that the log has one line
/// about the jitdump.
fn assert_stopped_once(host: &Host, outcome: &Outcome, reason: &str) {
    let stock = host.run(Preload::Nothing).expect_success();
    assert_eq!((&outcome.stdout, &outcome.stderr), (&stock.stdout, &stock.stderr));
    log::assert_one_stop(&host.log(), "jitdump", reason);
    let last_function = format!("function_{}", FUNCTION_COUNT - 1);
    assert!(outcome.perf_map().named(&last_function).next().is_some(), "the perf map has nothing to do with it");
}

/// Reads a jitdump that must be valid and incomplete.
fn read_valid_prefix(directory: &Path) -> Jitdump {
    let paths = jitdump_reader::find(directory);
    let [path] = &paths[..] else { panic!("{paths:?}") };
    let dump = jitdump_reader::read(path);
    assert!(!dump.is_closed);
    assert!(dump.named("function_0").next().is_some());
    assert!(dump.named(&format!("function_{}", FUNCTION_COUNT - 1)).next().is_none());
    dump
}

#[test]
fn a_full_disk() {
    let Some(host) = host() else { return };
    let Some(disk) = Mount::tmpfs("size=16k") else { return };
    let host = host.variable("JITLISTEN_DIR", disk.path());
    let outcome = host.run(Preload::Library).expect_success();
    let _ = read_valid_prefix(disk.path());
    fs::remove_dir_all(jitdump_reader::find(disk.path())[0].parent().expect("a directory")).expect("removed");
    assert_stopped_once(&host, &outcome, "No space left on device");
}

#[test]
fn a_disk_that_is_full_from_the_start() {
    let Some(host) = host() else { return };
    let Some(disk) = Mount::tmpfs("size=4k") else { return };
    fs::write(disk.path().join("full"), [0; 4096]).expect("4 KiB");
    let host = host.variable("JITLISTEN_DIR", disk.path());
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(fs::read_dir(disk.path()).expect("read").count(), 1, "nothing is left behind");
    assert_stopped_once(&host, &outcome, "No space left on device");
}

#[test]
fn a_place_where_nothing_may_be_executed() {
    let Some(host) = host() else { return };
    let Some(disk) = Mount::tmpfs("noexec") else { return };
    let host = host.variable("JITLISTEN_DIR", disk.path());
    let outcome = host.run(Preload::Library).expect_success();
    assert_eq!(fs::read_dir(disk.path()).expect("read").count(), 0, "nothing is left behind");
    assert_stopped_once(&host, &outcome, "map as executable");
}

#[test]
fn a_place_that_is_mounted_read_only() {
    let Some(host) = host() else { return };
    let Some(disk) = Mount::tmpfs("ro") else { return };
    let host = host.variable("JITLISTEN_DIR", disk.path());
    let outcome = host.run(Preload::Library).expect_success();
    assert_stopped_once(&host, &outcome, "Read-only file system");
}

#[test]
fn a_directory_that_cannot_be_created() {
    let Some(host) = host() else { return };
    let file = host.scratch("file");
    fs::write(&file, "in the way").expect("written");
    let host = host.variable("JITLISTEN_DIR", "").variable("JITDUMPDIR", file.join("below"));
    let outcome = host.run(Preload::Library).expect_success();
    assert_stopped_once(&host, &outcome, "Not a directory");
}

#[test]
fn no_place_at_all() {
    let Some(host) = host() else { return };
    let host = ["JITLISTEN_DIR", "JITDUMPDIR", "HOME"].iter().fold(host, |host, name| host.variable(name, ""));
    let outcome = host.run(Preload::Library).expect_success();
    assert_stopped_once(&host, &outcome, "no directory to write to");
}

#[test]
fn a_file_size_limit() {
    let Some(shell) = tool::find("bash") else { return };
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let host = Host::new(shell, "limited").argument("-c").argument("ulimit -f 12; exec \"$@\"").argument("bash");
    let host = host.argument(python).argument(paths::host("many_functions.py")).argument(FUNCTION_COUNT.to_string());
    let host = host.variable("JITLISTEN", "jitdump,perfmap");
    let outcome = host.run(Preload::Library).expect_success();
    let _ = read_valid_prefix(&host.scratch("."));
    assert_stopped_once(&host, &outcome, "File too large");
}

#[test]
fn a_directory_that_is_removed() {
    let Some(host) = host() else { return };
    let host = host.argument("waiting");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("waiting");
    let paths = jitdump_reader::find(&host.scratch("."));
    let directory = paths[0].parent().expect("a directory");
    assert_eq!(fs::metadata(directory).expect("there").permissions().mode() & 0o777, 0o700);
    fs::remove_dir_all(directory).expect("removed");
    running.send_newline();
    let outcome = running.wait().expect_success();
    log::assert_one_stop(&host.log(), "jitdump", "write");
    assert!(String::from_utf8_lossy(&outcome.stdout).lines().count() == 2);
}

/// Every finalized function is written to the file immediately, not to a buffer that would be lost with the process.
#[test]
fn a_process_that_is_killed() {
    let Some(host) = integration::numba("numba-0.68.1", "compiles_for_ever.py") else { return };
    let host = host.variable("JITLISTEN", "jitdump");
    let mut running = host.start(Preload::Library);
    running.wait_for_line("compiled 5");
    tool::signal(running.pid(), "KILL");
    let outcome = running.wait();
    assert_eq!(outcome.status.signal(), Some(9));
    let paths = jitdump_reader::find(&host.scratch("."));
    let [path] = &paths[..] else { panic!("{paths:?}") };
    let dump = jitdump_reader::read(path);
    assert!(!dump.is_closed);
    let compiled_count =
        String::from_utf8_lossy(&outcome.stdout).lines().filter(|line| line.starts_with("compiled")).count();
    assert!(compiled_count > 5);
    for index in 0..compiled_count {
        assert!(dump.named(&format!("function_{index}")).next().is_some(), "function_{index} of {compiled_count}");
    }
}
