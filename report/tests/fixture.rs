//! Tests of a perf recording with its images and source, some of which are missing, changed or hostile.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{assert_sums, fixture_options, scratch_directory, testdata};
use jitlisten_report::{Options, Report, Style, to_html, to_json, to_text};

fn fixture() -> Report {
    Report::open(&testdata().join("perf.data"), &Options { by_thread: true, ..fixture_options() }).unwrap()
}

/// Copies the fixture, so that a test may damage the copy.
fn copy_fixture(name: &str) -> (PathBuf, Options) {
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let target = to.join(entry.file_name());
            if entry.path().is_dir() {
                copy(&entry.path(), &target)
            } else {
                fs::copy(entry.path(), &target).map(drop).unwrap()
            }
        }
    }
    let directory = scratch_directory(name);
    copy(&testdata(), &directory);
    let mut options = fixture_options();
    options.lookup.roots = vec![directory.join("root")];
    (directory, options)
}

fn images(directory: &Path) -> Vec<PathBuf> {
    let directories = fs::read_dir(directory.join("root/tmp/fixture/images")).unwrap().next().unwrap().unwrap().path();
    fs::read_dir(directories).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn sums_are_exact_and_the_known_lines_are_hot() {
    let report = fixture();
    assert_sums(&report);
    assert_eq!(report.profile.all.samples, 394);
    let heavy = report.profile.functions.iter().find(|row| row.name == "__main__.heavy").unwrap();
    assert!(heavy.compilations.len() >= 2, "two compilations and their wrappers: {:?}", heavy.compilations);
    let sides = report.profile.files.iter().find(|file| file.path == "/tmp/fixture/sides.py").unwrap();
    let call = &sides.lines[&20];
    assert!(call.shares.total > call.shares.self_count);
    let inlined = call.inlined.iter().find(|call| call.line == 12).expect("bell is inlined into line 20");
    assert_eq!(report.profile.functions[inlined.function as usize].name, "bell", "as the line table calls it");
    assert!(inlined.shares.total.samples > 0 && inlined.shares.total.samples <= call.shares.total.samples);
    let mut callers =
        report.profile.functions.iter().flat_map(|row| &row.callers).filter_map(|caller| caller.1).peekable();
    assert!(callers.peek().is_some());
    for (file, line) in callers {
        assert!(report.profile.files[file as usize].lines.contains_key(&line), "{file}:{line} calls");
    }
}

#[test]
fn text_is_plain_in_a_pipe_and_fits_a_terminal() {
    let report = fixture();
    let plain = to_text(&report, Style::default());
    assert!(!plain.contains('\x1b'));
    assert!(plain.contains("|    20 |             total += bell(values[i])\n"), "{plain}");
    assert!(plain.contains("|     0 | (code of no line)\n"), "line 0 is a row: {plain}");
    assert!(plain.contains("↳ bell sides.py:12"), "{plain}");
    // A function that was compiled only once has no row for its entry point from Python.
    assert!(
        plain.contains("|   cpython::__main__.heavy(array(float32") && plain.contains("__main__.fibonacci"),
        "{plain}"
    );
    assert!(!plain.contains("cpython::__main__.fibonacci"), "{plain}");
    let narrow = to_text(&report, Style { width: Some(80), ..Style::default() });
    assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
    assert!(to_text(&report, Style { colour: true, ..Style::default() }).contains("\x1b[1m"));
    let all = to_text(&report, Style { all: true, threads: true, ..Style::default() });
    assert!(all.len() > plain.len() && all.contains("thread python") && all.contains("cpython::__main__.fibonacci"));
}

#[test]
fn the_json_has_the_agreed_shape() {
    let json = to_json(&fixture());
    for key in ["samples", "compiled", "without_line", "lost"] {
        assert!(json[key].is_u64(), "{key}");
    }
    let mut self_samples = json["without_line"].as_u64().unwrap();
    for file in json["files"].as_array().unwrap() {
        assert!(file["path"].is_string());
        for line in file["lines"].as_array().unwrap() {
            assert!(line["line"].is_u64() && line["total"].is_u64() && line["inlined"].is_array());
            assert!(line["source"].is_string() || line["source"].is_null());
            self_samples += line["self"].as_u64().unwrap();
        }
    }
    assert_eq!(self_samples, json["compiled"].as_u64().unwrap());
    assert_eq!(json["threads"].as_array().unwrap().len(), 3);
}

#[test]
fn a_missing_image_is_noted_and_the_rest_is_reported() {
    let (directory, options) = copy_fixture("missing-image");
    let removed = images(&directory).into_iter().find(|path| path.ends_with("object-22.so")).unwrap();
    fs::remove_file(&removed).unwrap();
    let (original, report) = (fixture(), Report::open(&directory.join("perf.data"), &options).unwrap());
    assert_sums(&report);
    assert!(
        report.notes.iter().any(|note| note.contains("images of compiled code") && note.contains("object-22.so")),
        "{:?}",
        report.notes
    );
    assert_eq!(report.profile.compiled, original.profile.compiled, "it is compiled code all the same");
    assert!(report.profile.without_line > original.profile.without_line);
    assert!(report.profile.functions.iter().any(|row| row.name == "__main__.heavy"));
}

#[test]
fn another_image_of_the_same_name_is_rejected() {
    let (directory, options) = copy_fixture("other-image");
    let mut paths = images(&directory);
    paths.sort();
    // The recording contains the build ids of its files.
    fs::copy(&paths[0], &paths[3]).unwrap();
    let report = Report::open(&directory.join("perf.data"), &options).unwrap();
    assert_sums(&report);
    assert!(report.notes.iter().any(|note| note.contains("build id differs")), "{:?}", report.notes);
}

#[test]
fn a_missing_or_changed_source_is_noted_at_its_place() {
    let (directory, options) = copy_fixture("sources");
    let source = directory.join("root/tmp/fixture/sides.py");
    let recording = directory.join("perf.data");
    let later = fs::metadata(&recording).unwrap().modified().unwrap() + std::time::Duration::from_secs(60);
    fs::File::options().append(true).open(&source).unwrap().set_modified(later).unwrap();
    let text = to_text(&Report::open(&recording, &options).unwrap(), Style::default());
    assert!(text.contains("note: this file was changed after the recording"), "{text}");
    fs::remove_file(&source).unwrap();
    let report = Report::open(&recording, &options).unwrap();
    assert_sums(&report);
    let text = to_text(&report, Style::default());
    assert!(text.contains("note: this file cannot be read") && text.contains("__main__.heavy"), "{text}");
}

#[test]
fn hostile_sources_are_escaped_everywhere() {
    let (directory, options) = copy_fixture("hostile");
    let mut hostile = vec!["</script><img src=x onerror=alert(1)>&\u{2028}\u{202e}".to_owned(); 60];
    hostile[19] = "\x1b]0;owned\x07\x1b[2J".repeat(10);
    hostile[20] = "x".repeat(100_000);
    fs::write(directory.join("root/tmp/fixture/sides.py"), hostile.join("\n")).unwrap();
    let report = Report::open(&directory.join("perf.data"), &options).unwrap();
    let page = to_html(&report);
    assert!(!page.contains("<img") && page.matches("</script>").count() == 2, "two scripts, which are ours");
    assert!(page.len() < 1_000_000);
    let text = to_text(&report, Style { all: true, ..Style::default() });
    assert!(
        !text.contains('\x1b') && !text.contains('\u{202e}') && text.lines().all(|line| line.chars().count() < 2000)
    );
}

#[test]
fn damaged_images_are_read_as_far_as_they_go() {
    let (directory, options) = copy_fixture("damaged");
    let image = images(&directory).into_iter().find(|path| path.ends_with("object-22.so")).unwrap();
    let original = fs::read(&image).unwrap();
    let recording = directory.join("perf.data");
    for step in 0..60 {
        let mut bytes = original.clone();
        match step % 3 {
            0 => bytes.truncate(original.len() * step / 60),
            1 => bytes[(0x2000 + step * 97).min(original.len() - 1)] ^= 0xff,
            _ => bytes[step * 7..step * 7 + 8].fill(0xff),
        }
        fs::write(&image, bytes).unwrap();
        assert_sums(&Report::open(&recording, &options).unwrap());
    }
}

#[test]
fn an_image_at_the_end_of_the_address_space() {
    let (directory, options) = copy_fixture("addresses");
    let image = images(&directory).into_iter().find(|path| path.ends_with("object-22.so")).unwrap();
    let mut bytes = fs::read(&image).unwrap();
    let read_u64 = |offset: usize| u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap()) as usize;
    let (headers, count) = (read_u64(32), usize::from(bytes[56]));
    for header in 0..count {
        // Field `p_vaddr`.
        let offset = headers + header * 56 + 16;
        bytes[offset..offset + 8].copy_from_slice(&(u64::MAX - 0xf).to_le_bytes());
    }
    fs::write(&image, bytes).unwrap();
    let report = Report::open(&directory.join("perf.data"), &options).unwrap();
    assert_sums(&report);
    assert!(!to_html(&report).is_empty());
}

/// Opening the pipe would block forever, because it has no writer.
#[test]
fn a_pipe_is_not_opened() {
    let (directory, options) = copy_fixture("pipes");
    let image = images(&directory).into_iter().find(|path| path.ends_with("object-22.so")).unwrap();
    let source = directory.join("root/tmp/fixture/sides.py");
    for path in [&image, &source] {
        fs::remove_file(path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }
    let (sender, read) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(Report::open(&directory.join("perf.data"), &options).unwrap());
    });
    let report = read.recv_timeout(std::time::Duration::from_secs(60)).expect("a reader that waits for a pipe");
    assert_sums(&report);
    assert!(report.notes.iter().any(|note| note.contains("object-22.so: not a regular file")), "{:?}", report.notes);
    let text = to_text(&report, Style::default());
    assert!(text.contains("note: this file cannot be read"), "{text}");
}
