//! Fuzz target that reads an arbitrary recording, image, source or perf map, and renders all outputs.
//!
//! The first byte selects the file that the remaining bytes replace: 0 the recording, 1 the image of a valid recording,
//! 2 its source, 3 its perf map. If it is 4, the remaining bytes are a recording to merge with the valid one. The valid
//! recording is small, to allow many executions per second.
#![no_main]

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use jitlisten_report::{
    Lookup, Options, Recording, Report, Selection, Style, diff_to_text, to_callgrind, to_collapsed, to_firefox,
    to_flamegraph, to_html, to_json, to_speedscope, to_text,
};
use libfuzzer_sys::fuzz_target;
use unicode_width::UnicodeWidthStr as _;

const IMAGE: &str = "object-22.so";

/// PID in the valid recording.
const PID: u32 = 19001;

struct Fixture {
    root: PathBuf,
    recording: Vec<u8>,
    /// Image, source and perf map, with their valid contents.
    files: [(PathBuf, Vec<u8>); 3],
}

/// Index of the file that currently has fuzzed content.
static REPLACED: Mutex<Option<usize>> = Mutex::new(None);

/// Copies the image and the source of a test recording to a directory of this process.
fn scene() -> &'static Fixture {
    static SCENE: OnceLock<Fixture> = OnceLock::new();
    SCENE.get_or_init(|| {
        let testdata = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../report/testdata/sides");
        let root = std::env::temp_dir().join(format!("jitlisten-fuzz-report-{}", std::process::id()));
        let images = testdata.join("root/tmp/fixture/images");
        let directory = fs::read_dir(&images).unwrap().next().unwrap().unwrap().file_name();
        let target = root.join("tmp/fixture/images").join(&directory);
        fs::create_dir_all(&target).unwrap();
        let source = root.join("tmp/fixture/sides.py");
        let files = [
            (target.join(IMAGE), fs::read(images.join(&directory).join(IMAGE)).unwrap()),
            (source, fs::read(testdata.join("root/tmp/fixture/sides.py")).unwrap()),
            (root.join(format!("tmp/perf-{PID}.map")), Vec::new()),
        ];
        files.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
        Fixture { recording: include_bytes!("../seeds/report/small").to_vec(), root, files }
    })
}

/// Restores the previously replaced file, and replaces another one if requested. Writes nothing for most inputs,
/// because they replace no file.
fn set_files(fixture: &Fixture, replacement: Option<(usize, &[u8])>) {
    let mut replaced = REPLACED.lock().unwrap();
    if let Some((path, original)) = replaced.take().map(|index| &fixture.files[index]) {
        fs::write(path, original).unwrap();
    }
    if let Some((index, bytes)) = replacement {
        fs::write(&fixture.files[index].0, bytes).unwrap();
        *replaced = Some(index);
    }
}

fn read(fixture: &Fixture, bytes: &[u8]) -> Option<Recording> {
    Recording::read_with(&mut Cursor::new(bytes), &Selection::default(), std::slice::from_ref(&fixture.root)).ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((selector, bytes)) = data.split_first() else { return };
    let scene = scene();
    let kind = selector % 5;
    set_files(scene, matches!(kind, 1..=3).then(|| (usize::from(kind) - 1, bytes)));
    let recording = match kind {
        0 => read(scene, bytes),
        4 => read(scene, bytes).and_then(|second| {
            let fixture_recording = read(scene, &scene.recording).expect("the good one is read");
            Recording::merged(vec![fixture_recording, second]).ok()
        }),
        _ => read(scene, &scene.recording),
    };
    let Some(recording) = recording else { return };
    let lookup = Lookup { roots: vec![scene.root.clone()], native_lines: selector & 0x80 != 0, kernel: false };
    let report = Report::new(recording, None, &Options { lookup, by_thread: true, ..Options::default() });

    let profile = &report.profile;
    let lines = profile.files.iter().flat_map(|file| file.lines.values());
    let line_samples: u64 = lines.map(|line| line.shares.self_count.samples).sum();
    assert_eq!(line_samples + profile.without_line.samples + profile.outside_all().samples, profile.all.samples);
    let function_samples: u64 = profile.functions.iter().map(|row| row.shares.self_count.samples).sum();
    assert_eq!(function_samples, profile.all.samples);
    let is_consistent =
        |line: &jitlisten_report::Line| line.shares.self_count <= line.shares.total && line.shares.total <= profile.all;
    assert!(profile.files.iter().flat_map(|file| file.lines.values()).all(is_consistent));
    let style = Style { all: true, threads: true, processes: true, hosts: true, width: Some(80), ..Style::default() };
    let text = to_text(&report, style);
    assert!(!text.contains('\x1b') && text.lines().all(|line| line.width() <= 80));
    let page = to_html(&report);
    assert_eq!(page.matches("</script>").count(), 2);
    let _ = (to_json(&report), to_collapsed(&report), to_speedscope(&report));
    let _ = (to_firefox(&report), to_callgrind(&report));
    let _ = to_flamegraph(&report, &mut Vec::new());
    let _ = diff_to_text(&report, &report, Some(80), true);
});
