//! A name lives as long as the code; a file lives longer.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use jitlisten_tests::host::Preload;
use jitlisten_tests::image::{self, with_images};
use jitlisten_tests::integration;
use jitlisten_tests::tool::{self, Absence};

/// What `hosts/changing.py` sees of its pages.
fn changing(preload: Preload) -> Option<String> {
    if tool::find("lli-14").is_none() {
        tool::skip("libLLVM-14.so.1", "not installed; run ci/setup.sh", Absence::FailsInCi);
        return None;
    }
    let host = with_images(integration::numba("numba-0.68.1", "changing.py")?.argument("libLLVM-14.so.1"));
    Some(String::from_utf8(host.run(preload).well().stdout).expect("text"))
}

/// Pages that LLVM changes keep their bytes and lose their name, and cost nothing when they are gone.
#[test]
fn changed_pages_have_no_stale_name() {
    let Some(seen) = changing(Preload::Library) else { return };
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
    assert_eq!(seen, expected);
    let stock = changing(Preload::Nothing).unwrap_or_default();
    assert_eq!(stock, expected.replace("image,", "nothing,"), "every result is that of the stock process");
}

#[test]
fn a_child_shares_its_parents_images_and_makes_its_own() {
    let Some(host) = integration::numba("numba-0.68.1", "forked.py").map(with_images) else { return };
    let ended = host.run(Preload::Library).well();
    // The child goes on when its parent is gone.
    let deadline = Instant::now() + Duration::from_secs(60);
    let stdout = loop {
        let stdout = fs::read_to_string(host.scratch("stdout")).expect("the host has printed");
        if stdout.lines().any(|line| line.starts_with("lock ")) {
            break stdout;
        }
        assert!(Instant::now() < deadline, "the child says nothing of the lock: {stdout}");
        thread::sleep(Duration::from_millis(20));
    };
    let file = |who: &str| stdout.lines().find_map(|line| line.strip_prefix(who)?.strip_prefix(' ')).expect(who);
    assert_eq!(file("child common"), file("parent common"));
    let directory = |who: &str| Path::new(file(who)).parent().expect("a directory").to_owned();
    assert_eq!(directory("parent of_parent"), directory("parent common"));
    assert!(directory("parent common").to_string_lossy().contains(&format!("/image-{}-", ended.pid)));
    assert_ne!(directory("child of_child"), directory("parent common"));
    for (who, function) in
        [("parent common", "common"), ("parent of_parent", "of_parent"), ("child of_child", "of_child")]
    {
        assert!(image::names(file(who).as_ref()).contains(function), "{function} is in {}", file(who));
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
    let before = image::files(&host);
    let directory = before.first().and_then(|image| image.parent()).expect("there are images").to_owned();
    fs::remove_dir_all(&directory).expect("removed");
    running.nod();
    let ended = running.end().well();
    assert_eq!(String::from_utf8_lossy(&ended.stdout).lines().count(), 2);
    let after = image::files(&host);
    assert!(!after.is_empty() && after.iter().all(|image| image.starts_with(&directory)), "{after:?}");
}

/// What a run of `hosts/many.py` says of mappings.
fn mappings(count: u32, preload: Preload) -> Option<(u64, usize)> {
    let host = with_images(integration::numba("numba-0.68.1", "many.py")?.argument(count.to_string()));
    let host = host.patience(600);
    let stdout = String::from_utf8(host.run(preload).well().stdout).expect("text");
    assert!(stdout.contains(&format!("right: {count}\n")), "{stdout}");
    assert!(!host.log().contains("stops"), "{}", host.log());
    let images = image::files(&host).len();
    Some((stdout.rsplit(' ').next()?.trim().parse().expect("a number"), images))
}

#[test]
fn ten_thousand_objects() {
    let (Some((stock, none)), Some((ours, all))) =
        (mappings(10_000, Preload::Nothing), mappings(10_000, Preload::Library))
    else {
        return;
    };
    assert_eq!((none, all), (0, 10_000));
    assert!(ours <= stock + stock / 10, "{ours} mappings instead of {stock}");
}
