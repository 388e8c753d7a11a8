//! Operations that the system refuses: the image sink stops and logs that once, without any effect on the program.

use std::fs;
use std::path::Path;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::log;
use jitlisten_tests::mount::Mount;
use jitlisten_tests::{image, integration};

const FUNCTION_COUNT: usize = 24;

fn host(mode: &str) -> Option<Host> {
    let host = integration::numba("numba-0.68.1", "refused.py")?.argument(FUNCTION_COUNT.to_string()).argument(mode);
    Some(image::with_images(host))
}

/// Asserts that every function returns the right value, that `expected` accepts the number of functions in images, and
/// that the log is one line with `reason`, or empty if there is no reason. Returns the number of functions in images.
fn check_images(host: &Host, expected: impl Fn(usize) -> bool, reason: Option<&str>) -> usize {
    let outcome = host.run(Preload::Library).expect_success();
    let stdout = String::from_utf8(outcome.stdout).expect("text");
    let value = |name: &str| {
        let line = stdout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.and_then(|value| value.parse::<usize>().ok()).unwrap_or_else(|| panic!("no {name} in {stdout}"))
    };
    let log = host.log();
    assert_eq!(value("right"), FUNCTION_COUNT, "{stdout}{log}");
    assert!(expected(value("images")), "{stdout}{log}");
    assert_eq!(value("images_written"), value("images"), "{stdout}{log}");
    assert_eq!(value("image_failures"), usize::from(reason.is_some()), "{stdout}{log}");
    assert_eq!((value("images_refused"), value("images_put_back")), (0, 0), "{stdout}{log}");
    assert_eq!(log.lines().count(), usize::from(reason.is_some()), "{log}");
    if let Some(reason) = reason {
        log::assert_one_stop(&log, "image", reason);
    }
    value("images")
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).expect("read").count() == 0
}

#[test]
fn nothing_is_refused() {
    let Some(host) = host("nothing") else { return };
    check_images(&host, |images| images == FUNCTION_COUNT, None);
}

#[test]
fn a_place_where_nothing_may_be_executed() {
    let Some(host) = host("nothing") else { return };
    let Some(disk) = Mount::tmpfs("noexec") else { return };
    check_images(&host.variable("JITLISTEN_DIR", disk.path()), |images| images == 0, Some("execute from"));
    assert!(is_empty(disk.path()), "nothing is left behind");
}

#[test]
fn a_place_that_is_mounted_read_only() {
    let Some(host) = host("nothing") else { return };
    let Some(disk) = Mount::tmpfs("ro") else { return };
    check_images(&host.variable("JITLISTEN_DIR", disk.path()), |images| images == 0, Some("create"));
}

#[test]
fn a_full_disk() {
    let Some(host) = host("nothing") else { return };
    let Some(disk) = Mount::tmpfs("size=100k") else { return };
    let host = host.variable("JITLISTEN_DIR", disk.path());
    let mapped_count =
        check_images(&host, |images| 0 < images && images < FUNCTION_COUNT, Some("No space left on device"));
    assert_eq!(image::files_in(disk.path()).len(), mapped_count, "what was mapped stays, what was cut off does not");
}

#[test]
fn most_mappings_are_in_use() {
    let Some(host) = host("mappings") else { return };
    check_images(&host, |images| images == 0, Some("vm.max_map_count"));
}

#[test]
fn no_file_may_be_mapped_executable() {
    let Some(host) = host("mapping") else { return };
    check_images(&host, |images| images == 0, Some("execute from"));
    assert_eq!(image::files(&host).len(), 0);
}

#[test]
fn from_some_moment_on_no_file_may_be_mapped_executable() {
    let Some(host) = host("mapping-later") else { return };
    check_images(&host, |images| images == FUNCTION_COUNT / 4, Some("Permission denied"));
    assert_eq!(image::files(&host).len(), FUNCTION_COUNT / 4, "the file that could not be mapped is gone");
}
