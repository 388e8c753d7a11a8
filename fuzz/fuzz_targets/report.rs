//! A recording, an image and a source that may hold anything, all the way to every output.
//!
//! The input: a byte that says what is spoilt, then its bytes. 0: the recording. 1: the image of a good recording. 2: its source.
#![no_main]

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::OnceLock;

use jitlisten_report::{
    Lookup, Options, Recording, Report, Selection, Style, diff_to_text, to_callgrind, to_collapsed, to_firefox,
    to_flamegraph, to_html, to_json, to_speedscope, to_text,
};
use libfuzzer_sys::fuzz_target;

const IMAGE: &str = "object-22.so";

struct Scene {
    root: PathBuf,
    recording: Vec<u8>,
    source: PathBuf,
    image: PathBuf,
    good: [Vec<u8>; 2],
}

/// A copy of the tests' recording in a directory of this process.
fn scene() -> &'static Scene {
    static SCENE: OnceLock<Scene> = OnceLock::new();
    SCENE.get_or_init(|| {
        let testdata = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../report/testdata/sides");
        let root = std::env::temp_dir().join(format!("jitlisten-fuzz-report-{}", std::process::id()));
        let images = testdata.join("root/tmp/fixture/images");
        let directory = fs::read_dir(&images).unwrap().next().unwrap().unwrap().file_name();
        let target = root.join("tmp/fixture/images").join(&directory);
        fs::create_dir_all(&target).unwrap();
        let good = [fs::read(images.join(&directory).join(IMAGE)).unwrap(), fs::read(testdata.join("root/tmp/fixture/sides.py")).unwrap()];
        Scene {
            recording: fs::read(testdata.join("perf.data")).unwrap(),
            source: root.join("tmp/fixture/sides.py"),
            image: target.join(IMAGE),
            good,
            root,
        }
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((what, bytes)) = data.split_first() else { return };
    let scene = scene();
    let recording = if what % 3 == 0 { bytes } else { &scene.recording };
    fs::write(&scene.image, if what % 3 == 1 { bytes } else { &scene.good[0] }).unwrap();
    fs::write(&scene.source, if what % 3 == 2 { bytes } else { &scene.good[1] }).unwrap();
    let Ok(recording) = Recording::read_with(&mut Cursor::new(recording), &Selection::default(), std::slice::from_ref(&scene.root)) else { return };
    let lookup = Lookup { roots: vec![scene.root.clone()], native_lines: false, kernel: false };
    let report = Report::new(recording, None, &Options { lookup, by_thread: true, ..Options::default() });

    let profile = &report.profile;
    let lines: u64 = profile.files.iter().flat_map(|file| file.lines.values()).map(|line| line.shares.own.samples).sum();
    assert_eq!(lines + profile.without_line.samples + profile.outside_all().samples, profile.all.samples);
    let text = to_text(&report, Style { all: true, threads: true, processes: true, hosts: true, width: Some(80), colour: false });
    assert!(!text.contains('\x1b') && text.lines().all(|line| line.chars().count() <= 80));
    let page = to_html(&report);
    assert_eq!(page.matches("</script>").count(), 2);
    let _ = (to_json(&report), to_collapsed(&report), to_speedscope(&report), to_firefox(&report), to_callgrind(&report));
    let _ = to_flamegraph(&report, &mut Vec::new());
    let _ = diff_to_text(&report, &report, Some(80), true);
});
