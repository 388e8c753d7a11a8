//! A recording, an image and a source that may hold anything, all the way to every output.
//!
//! The input: a byte that says what is spoilt, then its bytes. 0: the recording. 1: the image of a good recording. 2:
//! its source. 3: its perf map. 4: a recording that is added to the good one. The good one is small, so that there are
//! many executions.
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

/// The process of the good recording.
const PID: u32 = 19001;

struct Scene {
    root: PathBuf,
    recording: Vec<u8>,
    /// Image, source and perf map, with what is in them when they are not spoilt.
    files: [(PathBuf, Vec<u8>); 3],
}

/// Which of the files is spoilt.
static SPOILT: Mutex<Option<usize>> = Mutex::new(None);

/// Image and source of the tests' recording in a directory of this process.
fn scene() -> &'static Scene {
    static SCENE: OnceLock<Scene> = OnceLock::new();
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
        Scene { recording: include_bytes!("../seeds/report/small").to_vec(), root, files }
    })
}

/// Puts the files as the input wants them. Most inputs spoil none, and then nothing is written.
fn place(scene: &Scene, spoil: Option<(usize, &[u8])>) {
    let mut spoilt = SPOILT.lock().unwrap();
    if let Some((path, good)) = spoilt.take().map(|at| &scene.files[at]) {
        fs::write(path, good).unwrap();
    }
    if let Some((at, bytes)) = spoil {
        fs::write(&scene.files[at].0, bytes).unwrap();
        *spoilt = Some(at);
    }
}

fn read(scene: &Scene, bytes: &[u8]) -> Option<Recording> {
    Recording::read_with(&mut Cursor::new(bytes), &Selection::default(), std::slice::from_ref(&scene.root)).ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((what, bytes)) = data.split_first() else { return };
    let scene = scene();
    let kind = what % 5;
    place(scene, matches!(kind, 1..=3).then(|| (usize::from(kind) - 1, bytes)));
    let recording = match kind {
        0 => read(scene, bytes),
        4 => read(scene, bytes).and_then(|more| {
            let good = read(scene, &scene.recording).expect("the good one is read");
            Recording::merged(vec![good, more]).ok()
        }),
        _ => read(scene, &scene.recording),
    };
    let Some(recording) = recording else { return };
    let lookup = Lookup { roots: vec![scene.root.clone()], native_lines: what & 0x80 != 0, kernel: false };
    let report = Report::new(recording, None, &Options { lookup, by_thread: true, ..Options::default() });

    let profile = &report.profile;
    let lines = profile.files.iter().flat_map(|file| file.lines.values());
    let lines: u64 = lines.map(|line| line.shares.own.samples).sum();
    assert_eq!(lines + profile.without_line.samples + profile.outside_all().samples, profile.all.samples);
    let functions: u64 = profile.functions.iter().map(|row| row.shares.own.samples).sum();
    assert_eq!(functions, profile.all.samples);
    let whole = |line: &jitlisten_report::Line| {
        line.shares.own <= line.shares.total && line.shares.total <= profile.all
    };
    assert!(profile.files.iter().flat_map(|file| file.lines.values()).all(whole));
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
