//! Tests with random damage in recordings, images and sources. No output may panic, and sums must be right.
//!
//! Each of the three tests runs for two seconds, or `JITLISTEN_MUTATIONS` seconds. The fuzz target `report` is more
//! thorough.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{assert_sums, scratch_directory, testdata};
use jitlisten_report::{
    Lookup, Options, Recording, Report, Selection, Style, to_callgrind, to_collapsed, to_firefox, to_flamegraph,
    to_html, to_json, to_speedscope, to_text,
};

/// Marsaglia's xorshift generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    /// Overwrites some bytes with values that are critical for parsers. Sometimes also truncates the bytes or moves a
    /// part.
    fn damage(&mut self, bytes: &mut Vec<u8>) {
        const NUMBERS: [u64; 8] = [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, u64::MAX, 1 << 63];
        for _ in 0..=self.below(8) {
            let offset = self.below(bytes.len());
            let size = [1, 2, 4, 8][self.below(4)].min(bytes.len() - offset);
            let number = if self.below(2) == 0 { NUMBERS[self.below(8)] } else { self.0 };
            bytes[offset..offset + size].copy_from_slice(&number.to_le_bytes()[..size]);
        }
        if self.below(8) == 0 {
            bytes.truncate(self.below(bytes.len()) + 1);
        }
        if self.below(8) == 0 {
            let (from, to) = (self.below(bytes.len()), self.below(bytes.len()));
            let size = self.below(256).min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + size, to);
        }
    }
}

fn check_all_outputs(report: &Report) {
    assert_sums(report);
    let text = to_text(
        report,
        Style { all: true, threads: true, processes: true, hosts: true, width: Some(80), ..Style::default() },
    );
    assert!(!text.contains('\x1b') && text.lines().all(|line| line.chars().count() <= 80));
    assert_eq!(to_html(report).matches("</script>").count(), 2);
    let _ = (to_json(report), to_collapsed(report), to_speedscope(report), to_firefox(report), to_callgrind(report));
    let _ = to_flamegraph(report, &mut Vec::new());
}

fn run(name: &str, seed: u64, mut mutate: impl FnMut(&mut Random, &Options, &Path)) {
    let seconds = std::env::var("JITLISTEN_MUTATIONS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(2);
    let root = scratch_directory(name);
    let images = testdata().join("root/tmp/fixture/images");
    let directory = fs::read_dir(&images).unwrap().next().unwrap().unwrap().path();
    let target = root.join("tmp/fixture/images").join(directory.file_name().unwrap());
    fs::create_dir_all(&target).unwrap();
    for image in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&image, target.join(image.file_name().unwrap())).unwrap();
    }
    fs::copy(testdata().join("root/tmp/fixture/sides.py"), root.join("tmp/fixture/sides.py")).unwrap();
    let lookup = Lookup { roots: vec![root.clone()], ..Lookup::default() };
    let options = Options { lookup, by_thread: true, ..Options::default() };
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random(seed);
    let mut count = 0;
    while Instant::now() < end {
        mutate(&mut random, &options, &target);
        count += 1;
    }
    assert!(count > 0);
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "{name}: {count} mutations");
}

fn read_fixture() -> Vec<u8> {
    fs::read(testdata().join("perf.data")).unwrap()
}

#[test]
fn damaged_recordings() {
    let good = read_fixture();
    run("mutations-recording", 1, |random, options, _| {
        let mut bytes = good.clone();
        // A part of the records is enough, and faster to read.
        bytes.truncate(2000 + random.below(bytes.len() - 2000));
        random.damage(&mut bytes);
        if let Ok(recording) = Recording::read(&mut Cursor::new(&bytes), &Selection::default()) {
            check_all_outputs(&Report::new(recording, None, options));
        }
    });
}

#[test]
fn damaged_images() {
    let recording = read_fixture();
    let images: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(testdata().join("root/tmp/fixture/images"))
        .unwrap()
        .flat_map(|directory| fs::read_dir(directory.unwrap().path()).unwrap())
        .map(|entry| entry.unwrap().path())
        .map(|path| (PathBuf::from(path.file_name().unwrap()), fs::read(&path).unwrap()))
        .collect();
    run("mutations-images", 2, |random, options, directory| {
        let (name, original) = &images[random.below(images.len())];
        let mut bytes = original.clone();
        random.damage(&mut bytes);
        fs::write(directory.join(name), &bytes).unwrap();
        let recording = Recording::read(&mut Cursor::new(&recording), &Selection::default()).unwrap();
        check_all_outputs(&Report::new(recording, None, options));
        fs::write(directory.join(name), original).unwrap();
    });
}

#[test]
fn damaged_sources() {
    let recording = read_fixture();
    let source = fs::read(testdata().join("root/tmp/fixture/sides.py")).unwrap();
    run("mutations-sources", 3, |random, options, directory| {
        let mut bytes = source.clone();
        random.damage(&mut bytes);
        fs::write(directory.join("../../sides.py"), &bytes).unwrap();
        let recording = Recording::read(&mut Cursor::new(&recording), &Selection::default()).unwrap();
        check_all_outputs(&Report::new(recording, None, options));
    });
}
