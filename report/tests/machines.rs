//! Tests of recordings from several machines, or from another machine. Different processes may have the same pid, and
//! different files the same path.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Writer, assert_sums, scratch_directory, testdata};
use jitlisten_report::{Lookup, Options, RecordingFile, Report, Style, to_text};

/// Address outside of all mappings, named only by a perf map.
const ADDRESS: u64 = 0x7f00_0000_1010;
const LIBRARY: u64 = 0x5000_0000;

fn this_machine() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim_end().to_owned()
}

/// Creates a directory as `record --bundle` does, with a recording, and a perf map below `root`.
fn record(directory: &Path, host: &str, pid: u32, name: Option<&str>) -> RecordingFile {
    let mut writer = Writer { host: Some(host.to_owned()), ..Writer::default() };
    writer.comm(pid, pid, "python", true, 1).sample((pid, pid), 10, 5, &[ADDRESS]);
    let root = directory.join("root");
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::write(directory.join("perf.data"), writer.file()).unwrap();
    if let Some(name) = name {
        fs::write(root.join(format!("tmp/perf-{pid}.map")), map(name)).unwrap();
    }
    RecordingFile { path: directory.join("perf.data"), root: name.map(|_| root) }
}

fn map(name: &str) -> String {
    format!("7f0000001000 100 {name}\n")
}

fn names(report: &Report) -> Vec<&str> {
    assert_sums(report);
    let mut names: Vec<&str> = report.profile.functions.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Perf map in `/tmp`, removed on drop. No process has this pid.
struct TemporaryMap(PathBuf);

impl TemporaryMap {
    fn new(pid: u32, name: &str) -> TemporaryMap {
        let path = PathBuf::from(format!("/tmp/perf-{pid}.map"));
        fs::write(&path, map(name)).unwrap();
        TemporaryMap(path)
    }
}

impl Drop for TemporaryMap {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn processes_with_the_same_pid_on_two_machines_have_their_own_maps() {
    let directory = scratch_directory("machines-bundles");
    let files = [
        record(&directory.join("a"), "one", 10, Some("of_one()")),
        record(&directory.join("b"), "two", 10, Some("of_two()")),
    ];
    let report = Report::open_all(&files, &Options::default()).unwrap();
    assert_eq!(names(&report), ["of_one", "of_two"]);
    assert_eq!(report.recording.origins.len(), 2);
}

/// Code without a file and a name is the same everywhere, but one of the processes has a name for it.
#[test]
fn an_address_that_only_one_map_names_is_not_shared() {
    let directory = scratch_directory("machines-one-map");
    let plain = record(&directory.join("a"), "one", 10, None);
    let mapped = record(&directory.join("b"), "one", 11, Some("of_b()"));
    for files in [[plain.clone(), mapped.clone()], [mapped, plain]] {
        assert_eq!(names(&Report::open_all(&files, &Options::default()).unwrap()), ["[unknown]", "of_b"]);
    }
}

#[test]
fn a_damaged_recording_among_others_is_left_out() {
    let directory = scratch_directory("machines-damaged");
    let whole = record(&directory.join("a"), "one", 10, Some("of_one()"));
    let damaged = record(&directory.join("b"), "one", 11, Some("of_two()"));
    fs::OpenOptions::new().write(true).open(&damaged.path).unwrap().set_len(50).unwrap();
    for files in [[whole.clone(), damaged.clone()], [damaged.clone(), whole]] {
        let report = Report::open_all(&files, &Options::default()).unwrap();
        assert_eq!(names(&report), ["of_one"]);
        assert!(report.notes.iter().any(|note| note.contains("samples are missing")), "{:?}", report.notes);
    }
    assert!(Report::open_all(&[damaged.clone(), damaged], &Options::default()).is_err());
}

#[test]
fn a_requested_root_is_not_attributed_to_one_of_them() {
    let directory = scratch_directory("machines-asked");
    let files = [record(&directory.join("a"), "one", 10, None), record(&directory.join("b"), "two", 10, None)];
    let root = directory.join("both");
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::write(root.join("tmp/perf-10.map"), map("of_one_of_them()")).unwrap();
    let options = Options { lookup: Lookup { roots: vec![root], ..Lookup::default() }, ..Options::default() };
    let report = Report::open_all(&files, &options).unwrap();
    assert_eq!(names(&report), ["[unknown]"]);
    assert!(report.notes.iter().any(|note| note.contains("several processes of this number")), "{:?}", report.notes);
    assert_eq!(names(&Report::open_all(&files[..1], &options).unwrap()), ["of_one_of_them"], "alone it is clear");
}

#[test]
fn maps_of_this_machine_are_not_used_for_another() {
    const PID: u32 = 2_000_000_001;
    let directory = scratch_directory("machines-local");
    let _map = TemporaryMap::new(PID, "of_this_one()");
    let local = record(&directory.join("here"), &this_machine(), PID, None);
    let remote = record(&directory.join("there"), "elsewhere", PID, None);
    let open = |files: &[RecordingFile], options: &Options| Report::open_all(files, options).unwrap();
    assert_eq!(names(&open(std::slice::from_ref(&local), &Options::default())), ["of_this_one"]);
    let report = open(std::slice::from_ref(&remote), &Options::default());
    assert_eq!(names(&report), ["[unknown]"]);
    assert!(report.notes.iter().any(|note| note.contains("--root /")), "{:?}", report.notes);
    let rooted = Options { lookup: Lookup { roots: vec!["/".into()], ..Lookup::default() }, ..Options::default() };
    assert_eq!(names(&open(std::slice::from_ref(&remote), &rooted)), ["of_this_one"]);
    for files in [[local.clone(), remote.clone()], [remote, local]] {
        assert_eq!(names(&open(&files, &Options::default())), ["[unknown]", "of_this_one"]);
    }
}

/// Two libraries have the same path and no build id. Each is in the directory of its recording.
#[test]
fn files_with_the_same_path_come_from_their_own_recording() {
    let directory = scratch_directory("machines-files");
    let images = fs::read_dir(testdata().join("root/tmp/fixture/images")).unwrap().next().unwrap().unwrap().path();
    let bundle = |name: &str, image: &str| {
        let bundle_directory = directory.join(name);
        let mut writer = Writer { host: Some(name.to_owned()), ..Writer::default() };
        writer.comm(10, 10, "python", true, 1).mmap(10, (LIBRARY, LIBRARY + 0x2000), 0, "/opt/x/libx.so", 2);
        writer.sample((10, 10), 10, 5, &[LIBRARY + 0x1010]);
        fs::create_dir_all(bundle_directory.join("root/opt/x")).unwrap();
        fs::write(bundle_directory.join("perf.data"), writer.file()).unwrap();
        fs::copy(images.join(image), bundle_directory.join("root/opt/x/libx.so")).unwrap();
        RecordingFile { path: bundle_directory.join("perf.data"), root: Some(bundle_directory.join("root")) }
    };
    let files = [bundle("one", "object-22.so"), bundle("two", "object-18.so")];
    let names_of = |file: &RecordingFile| {
        let report = Report::open_all(std::slice::from_ref(file), &Options::default()).unwrap();
        names(&report).iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    let mut expected_names = [names_of(&files[0]), names_of(&files[1])].concat();
    expected_names.sort();
    let report = Report::open_all(&files, &Options::default()).unwrap();
    assert_eq!(names(&report), expected_names);
    assert_eq!(expected_names.len(), 2, "different functions: {expected_names:?}");
}

/// The recording contains the paths of its images. The images are found next to the recording after both were moved.
#[test]
fn images_are_found_next_to_a_moved_recording() {
    let directory = scratch_directory("machines-images");
    let image = fs::read_dir(testdata().join("root/tmp/fixture/images"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path()
        .join("object-22.so");
    let name = "image-10-1-object-1.so";
    let recorded = |path: &str| {
        let mut writer = Writer { host: Some("one".to_owned()), ..Writer::default() };
        writer.comm(10, 10, "python", true, 1).mmap(10, (LIBRARY, LIBRARY + 0x2000), 0, path, 2);
        writer.sample((10, 10), 10, 5, &[LIBRARY + 0x1010]).file()
    };
    let names_in = |file: &str, content: &[u8]| {
        fs::write(directory.join(file), content).unwrap();
        let report = Report::open(&directory.join(file), &Options::default()).unwrap();
        names(&report).iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()
    };
    let expected_names = names_in("in_place.data", &recorded(image.to_str().unwrap()));
    let moved_recording = recorded(&format!("/made/there/f.data.images/{name}"));
    for (file, images) in [("f.data", "f.data.images"), ("g.data", "g.data.images"), ("h.data", "f.data.images")] {
        assert_ne!(names_in(file, &moved_recording), expected_names, "{file} without its images");
        fs::create_dir_all(directory.join(images)).unwrap();
        fs::copy(&image, directory.join(images).join(name)).unwrap();
        assert_eq!(names_in(file, &moved_recording), expected_names, "{file}");
        fs::remove_dir_all(directory.join(images)).unwrap();
    }
}

const EM_AARCH64: u8 = 183;
const MACHINE_OFFSET: usize = 18;

/// Returns an image of x86_64 with a loop of aarch64.
fn image_with_loop() -> Vec<u8> {
    /// Machine code: `nop; ldr d1, [x8], #8; subs x9, x9, #1; fadd d0, d0, d1; b.ne; ret`.
    const CODE: [u32; 6] = [0xd503201f, 0xfc408501, 0xf1000529, 0x1e612800, 0x54ffffa1, 0xd65f03c0];
    let images = fs::read_dir(testdata().join("root/tmp/fixture/images")).unwrap().next().unwrap().unwrap().path();
    let mut image = fs::read(images.join("object-22.so")).unwrap();
    for (offset, byte) in CODE.iter().flat_map(|word| word.to_le_bytes()).enumerate() {
        image[0x1000 + offset] = byte;
    }
    image
}

/// The loop has one sample in each process, which is neither 1 % nor enough.
#[test]
fn the_loops_of_many_processes_are_added_up() {
    const PROCESSES: u32 = 120;
    let directory = scratch_directory("machines-many");
    let mut image = image_with_loop();
    image[MACHINE_OFFSET] = EM_AARCH64;
    let record = |pid: u32| {
        let (path, recording) = (directory.join(format!("image-{pid}.so")), directory.join(format!("{pid}.data")));
        fs::write(&path, &image).unwrap();
        let mut writer = Writer { host: Some("one".to_owned()), ..Writer::default() };
        writer.comm(pid, pid, "python", true, 1);
        // Each process has the code at another address.
        let base = LIBRARY + u64::from(pid) * 0x10_0000;
        writer.mmap(pid, (base, base + 0x2000), 0, path.to_str().unwrap(), 2);
        writer.sample((pid, pid), 3, 5, &[base + 0x100c]);
        fs::write(&recording, writer.file()).unwrap();
        RecordingFile { path: recording, root: None }
    };
    let files: Vec<RecordingFile> = (1..=PROCESSES).map(record).collect();
    let report = Report::open_all(&files, &Options::default()).unwrap();
    let [hot_loop] = report.loops() else { panic!("one loop, not {}", report.loops().len()) };
    assert_eq!(hot_loop.self_count.samples, u64::from(PROCESSES));
    let recording = &report.recording;
    assert_eq!((recording.stacks.len(), recording.locations.len(), recording.files.len()), (1, 1, 1), "of one program");
    assert_eq!(hot_loop.advice.iter().map(|advice| advice.rule).collect::<Vec<_>>(), ["fp-order"]);
}

/// Records one sample in the image of a process, and writes both.
fn record_image(directory: &Path, pid: u32, image: &[u8]) -> RecordingFile {
    let (path, recording) = (directory.join(format!("image-{pid}.so")), directory.join(format!("{pid}.data")));
    fs::write(&path, image).unwrap();
    let mut writer = Writer { host: Some("one".to_owned()), ..Writer::default() };
    writer.comm(pid, pid, "python", true, 1);
    writer.mmap(pid, (LIBRARY, LIBRARY + 0x2000), 0, path.to_str().unwrap(), 2);
    writer.sample((pid, pid), 3, 5, &[LIBRARY + 0x1010]);
    fs::write(&recording, writer.file()).unwrap();
    RecordingFile { path: recording, root: None }
}

/// Only code with the same line table is the same: the source may have changed between two runs.
#[test]
fn processes_share_only_code_with_the_same_lines() {
    let directory = scratch_directory("machines-lines");
    let image = image_with_loop();
    // Directory 0 of the line table has the source.
    let (source, other) = (b"\x01\0sides.py\0", b"\x01\0other.py\0");
    let mut renamed = image.clone();
    for at in 0..image.len() - source.len() {
        if image[at..].starts_with(source) {
            renamed[at..at + other.len()].copy_from_slice(other);
        }
    }
    let files = [(1, &image), (2, &image), (3, &renamed)].map(|(pid, image)| record_image(&directory, pid, image));
    let report = Report::open_all(&files, &Options::default()).unwrap();
    let lines = |name: &str| {
        let file = report.profile.files.iter().find(|file| file.path.ends_with(name)).expect(name);
        file.lines.values().map(|line| line.shares.self_count.samples).sum::<u64>()
    };
    assert_eq!((lines("/sides.py"), lines("/other.py"), report.recording.files.len()), (2, 1, 2));
}

/// Functions without lines may differ although they have the same name and size.
#[test]
fn processes_share_no_code_without_lines() {
    const NAME: &[u8] = b".debug_";
    let directory = scratch_directory("machines-no-lines");
    let image = image_with_loop();
    let mut stripped = image.clone();
    for at in 0..image.len() - NAME.len() {
        if image[at..].starts_with(NAME) {
            stripped[at..at + NAME.len()].copy_from_slice(b".other_");
        }
    }
    let locations = |image: &[u8]| {
        let files = [1, 2].map(|pid| record_image(&directory, pid, image));
        let report = Report::open_all(&files, &Options::default()).unwrap();
        assert_eq!(names(&report).len(), 1);
        report.recording.locations.len()
    };
    assert_eq!((locations(&image), locations(&stripped)), (1, 2));
}

/// The instruction set is that of the image, not that of the reading machine. Here, the same code is marked as aarch64.
#[test]
fn loops_are_decoded_for_the_machine_of_the_image() {
    let directory = scratch_directory("machines-aarch64");
    let mut image = image_with_loop();
    let report_with = |image: &[u8]| {
        let path = directory.join("object-22.so");
        fs::write(&path, image).unwrap();
        let mut writer = Writer { host: Some("one".to_owned()), ..Writer::default() };
        writer.comm(10, 10, "python", true, 1);
        writer.mmap(10, (LIBRARY, LIBRARY + 0x2000), 0, path.to_str().unwrap(), 2);
        for time in 3..23 {
            writer.sample((10, 10), time, 5, &[LIBRARY + 0x100c]);
        }
        fs::write(directory.join("perf.data"), writer.file()).unwrap();
        Report::open(&directory.join("perf.data"), &Options::default()).unwrap()
    };
    assert!(report_with(&image).loops().is_empty(), "of x86_64 these bytes are no loop");
    image[MACHINE_OFFSET] = EM_AARCH64;
    let report = report_with(&image);
    let [hot_loop] = report.loops() else { panic!("one loop") };
    let text: Vec<&str> = hot_loop.instructions.iter().map(|instruction| instruction.text.as_str()).collect();
    assert_eq!(text, ["ldr d1, [x8], #0x8", "subs x9, x9, #0x1", "fadd d0, d0, d1", "b.ne 0x1004"]);
    assert_eq!((hot_loop.first, hot_loop.last, hot_loop.self_count.samples), (26, 26, 20));
    assert_eq!(hot_loop.advice.iter().map(|advice| advice.rule).collect::<Vec<_>>(), ["fp-order"]);
    // The advice is not truncated at any width.
    for width in 60..180 {
        let text = to_text(&report, Style { width: Some(width), ..Style::default() });
        let rows =
            text.lines().skip_while(|line| !line.contains("⚑ loop")).map(|line| line.rsplit('|').next().unwrap());
        let rendered = rows.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ");
        assert!(rendered.contains(&hot_loop.advice[0].text()), "{width}: {rendered}");
    }
}
