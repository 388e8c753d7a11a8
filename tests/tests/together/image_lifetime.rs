//! Lifetimes of names and image files: a name lives as long as its code, and an image file lives longer.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use jitlisten_tests::host::Preload;
use jitlisten_tests::image::{self, with_images};
use jitlisten_tests::integration;
use jitlisten_tests::log;
use jitlisten_tests::tool::{self, Absence};

/// Output of `hosts/changing.py`, which prints the file behind each of its code pages.
fn run_changing(preload: Preload) -> Option<String> {
    if tool::find("lli-14").is_none() {
        tool::skip("libLLVM-14.so.1", "not installed; run ci/setup.sh", Absence::FailsInCi);
        return None;
    }
    let host = with_images(integration::numba("numba-0.68.1", "changing.py")?.argument("libLLVM-14.so.1"));
    Some(String::from_utf8(host.run(preload).expect_success().stdout).expect("text"))
}

/// When LLVM changes pages of an image, they keep their bytes but lose their name. Once freed, they use no mappings or
/// files.
#[test]
fn changed_pages_have_no_stale_name() {
    let Some(output) = run_changing(Preload::Library) else { return };
    let expected = "final: image, 42
writable: nothing, not called
executable again: nothing, 42
other code: nothing, 7
another object: image, 43
final once more: image, 42
writable and executable: nothing, 42
images left: 0
more mappings: 0
";
    assert_eq!(output, expected);
    let stock = run_changing(Preload::Nothing).unwrap_or_default();
    assert_eq!(stock, expected.replace("image,", "nothing,"), "every result is that of the stock process");
}

#[test]
fn a_child_shares_its_parents_images_and_makes_its_own() {
    let Some(host) = integration::numba("numba-0.68.1", "forked.py").map(with_images) else { return };
    let outcome = host.run(Preload::Library).expect_success();
    // The child runs on after its parent has exited.
    let deadline = Instant::now() + Duration::from_secs(60);
    let stdout = loop {
        let stdout = fs::read_to_string(host.scratch("stdout")).expect("the host has printed");
        if stdout.lines().any(|line| line.starts_with("lock ")) {
            break stdout;
        }
        assert!(Instant::now() < deadline, "the child says nothing of the lock: {stdout}");
        thread::sleep(Duration::from_millis(20));
    };
    let image_path = |process_and_function: &str| {
        stdout
            .lines()
            .find_map(|line| line.strip_prefix(process_and_function)?.strip_prefix(' '))
            .expect(process_and_function)
    };
    assert_eq!(image_path("child common"), image_path("parent common"));
    let image_dir = |process_and_function: &str| {
        Path::new(image_path(process_and_function)).parent().expect("a directory").to_owned()
    };
    assert_eq!(image_dir("parent of_parent"), image_dir("parent common"));
    assert!(image_dir("parent common").to_string_lossy().contains(&format!("/image-{}-", outcome.pid)));
    assert_ne!(image_dir("child of_child"), image_dir("parent common"));
    for (process_and_function, function) in
        [("parent common", "common"), ("parent of_parent", "of_parent"), ("child of_child", "of_child")]
    {
        assert!(
            image::function_names(image_path(process_and_function).as_ref()).contains(function),
            "{function} is in {}",
            image_path(process_and_function)
        );
    }
    assert_eq!(image::files(&host).len(), 3, "and nothing was written twice");
    assert!(
        stdout.ends_with("lock held\n"),
        "other_user may remove the files of a dead parent whose child lives: {stdout}"
    );
}

#[test]
fn a_directory_that_is_removed_is_made_again() {
    let Some(host) = integration::numba("numba-0.68.1", "many_functions.py") else { return };
    let host = with_images(host.argument("24").argument("waiting"));
    let mut running = host.start(Preload::Library);
    running.wait_for_line("waiting");
    let old_images = image::files(&host);
    let directory = old_images.first().and_then(|image| image.parent()).expect("there are images").to_owned();
    fs::remove_dir_all(&directory).expect("removed");
    running.send_newline();
    let outcome = running.wait().expect_success();
    assert_eq!(String::from_utf8_lossy(&outcome.stdout).lines().count(), 2);
    let new_images = image::files(&host);
    assert!(!new_images.is_empty() && new_images.iter().all(|image| image.starts_with(&directory)), "{new_images:?}");
}

/// Number of mappings printed by `hosts/many.py`, and number of image files.
fn count_mappings(count: u32, preload: Preload) -> Option<(u64, usize)> {
    let host = with_images(integration::numba("numba-0.68.1", "many.py")?.argument(count.to_string()));
    let host = host.timeout_seconds(600);
    let stdout = String::from_utf8(host.run(preload).expect_success().stdout).expect("text");
    assert!(stdout.contains(&format!("right: {count}\n")), "{stdout}");
    assert_eq!(log::stopped_sinks(&host.log()), []);
    let image_count = image::files(&host).len();
    Some((stdout.rsplit(' ').next()?.trim().parse().expect("a number"), image_count))
}

#[test]
fn ten_thousand_objects() {
    let (Some((stock, stock_images)), Some((preloaded, images))) =
        (count_mappings(10_000, Preload::Nothing), count_mappings(10_000, Preload::Library))
    else {
        return;
    };
    assert_eq!((stock_images, images), (0, 10_000));
    assert!(preloaded <= stock + stock / 10, "{preloaded} mappings instead of {stock}");
}
