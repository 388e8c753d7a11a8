//! Tests of self, total, lost and the other rows, on recordings whose numbers are all known.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::{Writer, assert_sums, read, report};
use jitlisten_report::{
    Change, Error, Options, Recording, Report, Selection, Style, diff, diff_to_json, diff_to_text, to_collapsed,
    to_firefox, to_html, to_json, to_speedscope, to_text,
};
use serde_json::Value;

/// Image with `fibonacci` of the fixture: 0x1000 to 0x1061, with a line table for `sides.py`.
const IMAGE: &str = "/tmp/fixture/images/image-19001-347235/object-22.so";
const BASE: u64 = 0x7000_0000_0000;
/// Two addresses in `fibonacci`.
const FIRST: u64 = BASE + 0x1000;
const CALL: u64 = BASE + 0x1030;

fn writer() -> Writer {
    let mut writer = Writer::default();
    writer.comm(10, 10, "python", true, 1).mmap(10, (BASE, BASE + 0x2000), 0, IMAGE, 2);
    writer.mmap(10, (0x5000_0000, 0x5001_0000), 0, "/usr/lib/libnone.so", 2);
    writer
}

fn lines(report: &Report) -> Vec<(u32, u64, u64)> {
    let file = report.profile.files.iter().find(|file| file.path.ends_with("/sides.py")).expect("the source");
    file.lines.iter().map(|(line, row)| (*line, row.shares.self_count.samples, row.shares.total.samples)).collect()
}

#[test]
fn a_recursive_line_counts_once_per_sample() {
    let mut writer = writer();
    for time in 10..20 {
        writer.sample((10, 10), time, 1000, &[FIRST, CALL, CALL, CALL, 0x5000_1000]);
    }
    let report = report(&writer.file());
    assert_sums(&report);
    let rows = lines(&report);
    assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), 10);
    assert!(rows.len() == 2 && rows.iter().all(|row| row.2 == 10), "each line is on each stack: {rows:?}");
    let fibonacci = report.profile.functions.iter().find(|row| row.name == "__main__.fibonacci").unwrap();
    assert_eq!((fibonacci.shares.self_count.samples, fibonacci.shares.total.samples), (10, 10));
    assert!(
        fibonacci
            .callers
            .iter()
            .any(|(caller, ..)| report.profile.functions[*caller as usize].name == "__main__.fibonacci")
    );
}

#[test]
fn what_is_outside_lost_or_without_a_line_has_a_row() {
    let mut writer = writer();
    writer.sample((10, 10), 10, 5, &[FIRST]);
    writer.sample((10, 11), 11, 5, &[0x5000_0100, CALL]);
    writer.sample((10, 11), 12, 5, &[0x1234]);
    writer.lost(7).record(13, 0, &3_u64.to_le_bytes());
    let report = report(&writer.file());
    assert_sums(&report);
    let profile = &report.profile;
    assert_eq!((profile.all.samples, profile.compiled.samples, profile.lost), (3, 1, 10));
    let outside: Vec<(&str, u64)> =
        profile.outside.iter().map(|(name, count)| (name.as_str(), count.samples)).collect();
    assert_eq!(outside, [("[unknown]", 1), ("libnone.so", 1)]);
    assert_eq!(profile.threads.len(), 2);
    // The total of a line includes its callees.
    assert_eq!(lines(&report).iter().map(|row| row.2).sum::<u64>(), 2);
    let text = to_text(&report, Style { threads: true, all: true, ..Style::default() });
    for row in ["compiled code", "libraries              [unknown]", "10  samples lost", "thread 11"] {
        assert!(text.contains(row), "{row} in\n{text}");
    }
    let json = to_json(&report);
    assert_eq!(
        (&json["samples"], &json["compiled"], &json["without_line"], &json["lost"]),
        (&3.into(), &1.into(), &0.into(), &10.into())
    );
}

#[test]
fn a_narrow_table_cuts_no_figure() {
    let mut writer = writer();
    for (index, samples) in (0..5).zip([40, 30, 20, 10, 5]) {
        let start = 0x6000_0000 + index * 0x1_0000;
        writer.mmap(10, (start, start + 0x1_0000), 0, &format!("/usr/lib/liblongish{index}.so"), 3);
        (0..samples).for_each(|time| {
            writer.sample((10, 10), 10 + time, 1_000_000, &[start + 0x100]);
        });
    }
    let text = to_text(&report(&writer.file()), Style { width: Some(80), ..Style::default() });
    assert!(text.contains("below no line of yours: liblongish0 38 %, liblongish1 29 %\n"), "{text}");
    let table = text.split("  activity").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    for item in ["liblongish0 40 ms", "liblongish1 30 ms", "liblongish2 20 ms", "liblongish3 10 ms"] {
        assert!(table.contains(item), "{item} in\n{text}");
    }
    assert!(table.trim_end().ends_with('…') && table.lines().all(|line| line.chars().count() <= 80), "{text}");
}

/// `libjitlisten` forwards some functions of libc, such as `syscall`.
#[test]
fn a_forwarded_call_belongs_to_the_library_that_made_it() {
    let mut writer = writer();
    for (start, library) in [(0x6000_0000, "libjitlisten.so"), (0x6100_0000, "libc.so.6"), (0x6200_0000, "libz.so.1")] {
        writer.mmap(10, (start, start + 0x1_0000), 0, &format!("/usr/lib/{library}"), 3);
    }
    writer.sample((10, 10), 10, 5, &[0x6100_0100, 0x6000_0100, 0x6200_0100]);
    writer.sample((10, 10), 11, 5, &[0x6100_0100, 0x6000_0100]).sample((10, 10), 12, 5, &[0x6000_0100]);
    let report = report(&writer.file());
    let libraries = report.profile.summary.libraries.iter().map(|(name, count)| (name.as_str(), count.samples));
    assert_eq!(libraries.collect::<Vec<_>>(), [("libc", 1), ("libjitlisten", 1), ("libz", 1)]);
}

/// The main thread and a worker spend their time in one library.
#[test]
fn a_library_for_parallel_loops_has_one_word() {
    let root = common::scratch_directory("words");
    std::fs::create_dir_all(root.join("tmp")).unwrap();
    let python = 0x7f00_0000_1000_u64;
    std::fs::write(root.join("tmp/perf-10.map"), format!("{python:x} 100 py::main:/home/me/program.py\n")).unwrap();
    let mut writer = writer();
    writer.mmap(10, (0x6000_0000, 0x6001_0000), 0, "/usr/lib/libgomp.so.1", 3);
    writer.sample((10, 10), 10, 5, &[FIRST, python + 0x10]);
    writer.sample((10, 10), 11, 5, &[0x6000_0100, CALL, python + 0x10]).sample((10, 11), 12, 5, &[0x6000_0100]);
    // Other C functions that compiled code called count as compiled code.
    writer.mmap(10, (0x6100_0000, 0x6101_0000), 0, "/usr/lib/libm.so.6", 3);
    writer.sample((10, 10), 13, 5, &[0x6100_0100, CALL, python + 0x10]);
    let mut options = common::fixture_options();
    options.lookup.roots.push(root);
    let report = Report::new(read(&writer.file()).unwrap(), None, &options);
    let answer = &to_json(&report)["answer"];
    let samples = |word: &str| answer["shares"][word]["samples"].as_u64();
    let shares = [samples("compiled"), samples("libgomp"), samples("libraries")];
    assert_eq!(shares, [Some(2), Some(2), None], "{answer}");
    let summary = &report.profile.summary;
    let libraries: Vec<_> = summary.libraries.iter().map(|(name, count)| (name.as_str(), count.samples)).collect();
    assert_eq!((summary.compiled.samples, libraries), (2, vec![("libgomp", 2)]));
    let text = to_text(&report, Style::default());
    let (_, table) = text.split_once("| C functions that compiled code called\n").unwrap();
    assert_eq!(table.lines().next(), Some("           25.0 %         1 | libm"), "{text}");
}

#[test]
fn shares_are_weighted_by_period() {
    let mut writer = writer();
    writer.sample((10, 10), 10, 3000, &[FIRST]).sample((10, 10), 11, 1000, &[0x5000_0100]);
    let report = report(&writer.file());
    assert_sums(&report);
    assert!((report.profile.compiled.percent_of(report.profile.all) - 75.0).abs() < 1e-9);
    let json = to_json(&report);
    let percents = [&json["files"][0]["lines"][0]["self_percent"], &json["outside"][0]["percent"]];
    assert_eq!(percents.map(Value::as_f64), [Some(75.0), Some(25.0)]);
    assert!(["threads", "processes", "hosts"].iter().all(|group| json[*group][0]["percent"] == 100.0), "{json}");
}

/// As recorded with `perf record --no-period`, from a clock that is sampled 199 times a second.
#[test]
fn clock_samples_without_a_period_have_that_of_their_rate() {
    let mut writer = Writer { without_period: true, ..writer() };
    writer.sample((10, 10), 10, 0, &[FIRST]).sample((10, 10), 11, 0, &[CALL]);
    assert_eq!(report(&writer.file()).profile.all.weight, 2 * 5_025_125);
}

#[test]
fn a_mapping_is_valid_from_its_time_on_in_its_process() {
    let mut writer = Writer::default();
    // The samples precede the mappings in the file. Only the timestamps count.
    writer.sample((10, 10), 5, 1, &[FIRST]).sample((10, 10), 50, 1, &[FIRST]).sample((10, 10), 90, 1, &[FIRST]);
    writer.sample((11, 11), 70, 1, &[FIRST]).sample((11, 11), 85, 1, &[FIRST]).sample((12, 12), 70, 1, &[FIRST]);
    writer.mmap(10, (BASE, BASE + 0x2000), 0, IMAGE, 20).mmap(10, (BASE, BASE + 0x2000), 0, "/usr/lib/later.so", 80);
    writer.fork(11, 10, 60).comm(11, 11, "other", true, 82);
    let report = report(&writer.file());
    assert_sums(&report);
    assert_eq!(report.profile.compiled.samples, 2, "one of the parent, one of the child before exec");
    let outside: Vec<(&str, u64)> =
        report.profile.outside.iter().map(|(name, count)| (name.as_str(), count.samples)).collect();
    assert_eq!(outside, [("[unknown]", 3), ("later.so", 1)]);
    assert_eq!(report.processes().len(), 3);
}

/// A program that reads the time in a loop runs the vDSO, which no compiler reports.
#[test]
fn code_of_the_kernel_in_the_process_needs_no_compiler() {
    let note = |mapping: &str| {
        let mut writer = Writer::default();
        writer.comm(10, 10, "python", true, 1).mmap(10, (0x5000_0000, 0x5000_2000), 0, mapping, 2);
        writer.mmap(10, (0x6000_0000, 0x6000_2000), 0, "/lib/libllvmlite.so", 2);
        writer.sample((10, 10), 10, 1, &[0x5000_0100]).sample((10, 10), 11, 1, &[0x6000_0100]);
        let report = report(&writer.file());
        let name = if mapping.starts_with("[v") { mapping } else { "[unknown]" };
        assert!(to_collapsed(&report).contains(&format!("python;{name} 1\n")), "{}", to_collapsed(&report));
        report.notes.into_iter().find(|note| note.contains("no compiler reported"))
    };
    let reported = "50 % of the samples are in code that belongs to no file and that no compiler reported, nor did \
                    libllvmlite.so report any: see `jitlisten doctor -- COMMAND`";
    for (mapping, expected) in
        [("[vdso]", None), ("[vsyscall]", None), ("[heap]", Some(reported)), ("[anon:jit]", Some(reported))]
    {
        assert_eq!(note(mapping).as_deref(), expected, "{mapping}");
    }
}

/// Only Numba has a cache.
#[test]
fn a_second_run_is_mentioned_only_for_numba() {
    for (library, expected) in [("libllvmlite.so", true), ("libLLVM.so.19.1", false)] {
        let mut writer = Writer::default();
        writer.comm(10, 10, "host", true, 1).mmap(10, (0x6000_0000, 0x6000_2000), 0, &format!("/lib/{library}"), 2);
        writer.sample((10, 10), 10, 1_000_000, &[0x6000_0100]);
        let text = to_text(&report(&writer.file()), Style::default());
        assert!(text.contains("  compiling "), "{text}");
        assert_eq!(text.contains("a second run differs where code is cached"), expected, "{text}");
    }
}

#[test]
fn the_pipe_format_reads_the_same() {
    let mut writer = writer();
    writer.sample((10, 10), 10, 5, &[FIRST]).sample((10, 10), 11, 5, &[CALL]).lost(1);
    let (file, pipe) = (report(&writer.file()), report(&writer.pipe()));
    assert_eq!(lines(&file), lines(&pipe));
    assert_eq!((file.profile.lost, pipe.profile.lost), (1, 1));
}

#[test]
fn one_of_several_events_is_read() {
    let mut writer = Writer { events: vec![(1, 0, 501), (0, 0, 502)], ..Writer::default() };
    writer.mmap(10, (BASE, BASE + 0x2000), 0, IMAGE, 2);
    writer.sample_of(502, (10, 10), 10, 5, &[FIRST]).sample_of(501, (10, 10), 11, 5, &[CALL]).sample_of(
        502,
        (10, 10),
        12,
        5,
        &[CALL],
    );
    let bytes = writer.file();
    let first = report(&bytes);
    assert_eq!((first.event(), first.profile.all.samples), ("cpu-clock", 1));
    assert!(first.notes.iter().any(|note| note.contains("cycles (2)")), "{:?}", first.notes);
    let read_event = |event: &str| {
        let selection = Selection { event: Some(event.to_owned()), ..Selection::default() };
        Recording::read(&mut std::io::Cursor::new(&bytes), &selection)
    };
    assert_eq!(read_event("cycles").unwrap().samples.len(), 2);
    let Err(Error::UnknownEvent { present, .. }) = read_event("instructions") else { panic!("an unknown event") };
    assert_eq!(present, ["cpu-clock", "cycles"]);
}

#[test]
fn a_process_or_a_thread_can_be_chosen() {
    let mut writer = writer();
    writer.sample((10, 10), 10, 5, &[FIRST]).sample((10, 11), 11, 5, &[CALL]).sample((20, 20), 11, 5, &[CALL]);
    let count_samples = |selection: Selection| {
        Recording::read(&mut std::io::Cursor::new(writer.file()), &selection).unwrap().samples.len()
    };
    assert_eq!(count_samples(Selection { process: Some(10), ..Selection::default() }), 2);
    assert_eq!(count_samples(Selection { thread: Some(11), ..Selection::default() }), 1);
}

#[test]
fn truncated_recordings_are_read_up_to_the_cut() {
    let mut writer = writer();
    for time in 10..14 {
        writer.sample((10, 10), time, 5, &[FIRST, CALL]);
    }
    let complete = writer.file();
    let mut counts = Vec::new();
    for length in 0..complete.len() {
        match read(&complete[..length]) {
            Ok(recording) => {
                assert!(!recording.notes.is_empty(), "cut at {length} and nothing said");
                counts.push(recording.samples.len());
            }
            Err(error) => assert!(length < 400, "cut at {length}: {error}"),
        }
    }
    assert!(counts.is_sorted() && counts.last() == Some(&3), "{counts:?}");
    // A recorder that was killed has not written the size.
    let mut killed = complete.clone();
    killed[48..56].fill(0);
    let recording = read(&killed).unwrap();
    assert_eq!(recording.samples.len(), 4);
    assert!(recording.notes.iter().any(|note| note.contains("did not finish")));
    // Zeros follow the last whole record, because the file was extended before it was filled.
    let mut zeros = writer.clone();
    zeros.records.extend([0; 64]);
    let recording = read(&zeros.file()).unwrap();
    assert_eq!(recording.samples.len(), 4);
    assert!(recording.notes.iter().any(|note| note.contains("damaged")), "{:?}", recording.notes);
}

#[test]
fn other_files_are_rejected_with_a_message() {
    assert!(matches!(read(b"\x7fELF and so on, more than eight bytes"), Err(Error::NotARecording { .. })));
    assert!(matches!(read(b""), Err(Error::NotARecording { .. })));
    assert!(matches!(read(b"2ELIFREP and so on, more than eight bytes"), Err(Error::OtherByteOrder)));
    let other = Writer { architecture: Some("riscv64"), ..writer() };
    assert!(matches!(read(&other.file()), Err(Error::OtherArchitecture(name)) if name == "riscv64"));
    let ours = Writer { architecture: Some("aarch64"), ..writer() };
    assert!(read(&ours.file()).is_ok());
}

/// Names of machine, event, thread and files come from the recording, so none is trusted.
#[test]
fn names_in_a_recording_cannot_control_a_terminal() {
    const EVIL: &str = "\x1b]0;owned\x07\x1b[2J\u{202e}<img src=x>";
    let mut writer = Writer { host: Some(EVIL.to_owned()), events: vec![(1, 0, 7)], ..Writer::default() };
    // HEADER_EVENT_DESC as a record, with one event, its attribute, one id, and the name.
    let mut described = [12_u64.to_le_bytes(), (1 | 128_u64 << 32).to_le_bytes()].concat();
    described.extend(&writer.pipe()[24..24 + 128]);
    described.extend([1_u32.to_le_bytes(), (EVIL.len() as u32).to_le_bytes()].concat());
    described.extend(EVIL.as_bytes());
    described.extend(7_u64.to_le_bytes());
    writer.record(80, 0, &described);
    writer.comm(10, 10, EVIL, true, 1).mmap(10, (0x5000_0000, 0x5001_0000), 0, EVIL, 2);
    writer.sample((10, 10), 10, 5, &[0x5000_0100]);
    let (file, pipe) = (report(&writer.file()), report(&writer.pipe()));
    assert!(file.title().contains("owned") && pipe.event().contains("owned"), "{} {}", file.title(), pipe.event());
    let style = Style { all: true, threads: true, processes: true, hosts: true, ..Style::default() };
    for text in [to_text(&file, style), to_text(&pipe, style), diff_to_text(&file, &pipe, None, true)] {
        assert!(!text.contains(['\x1b', '\x07', '\u{202e}']) && text.contains("owned"), "{text:?}");
    }
    let selection = Selection { event: Some("cycles".to_owned()), ..Selection::default() };
    let refused = Recording::read(&mut std::io::Cursor::new(writer.pipe()), &selection).unwrap_err().to_string();
    assert!(!refused.contains('\x1b') && refused.contains("owned"), "{refused:?}");
    assert_eq!(to_html(&pipe).matches("<img").count(), 0);
}

/// A recording of many processors has one id per event and processor.
#[test]
fn an_event_has_many_ids() {
    let mut writer = Writer { events: (0..3).map(|event| (1, event, 500 + event)).collect(), ..Writer::default() };
    for id in [501, 502, 502, 500, 501, 501, 999] {
        writer.sample_of(id, (10, 10), 10, 5, &[FIRST]);
    }
    let report = report(&writer.file());
    let counts: Vec<u64> = report.recording.events.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [2, 3, 2], "one of no event is of the first");
}

#[test]
fn invalid_numbers_are_harmless() {
    let mut writer = writer();
    // The chain is longer than its record, a build id has 255 bytes, and a mapping ends at the end of the address
    // space.
    let mut malformed = writer.clone();
    malformed.sample((10, 10), 10, 5, &[FIRST]);
    let length_offset = malformed.records.len() - 24;
    malformed.records[length_offset..length_offset + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let recording = read(&malformed.file()).unwrap();
    assert!(recording.samples.is_empty() && recording.notes.iter().any(|note| note.contains("damaged")));
    writer.mmap(10, (1, u64::MAX), u64::MAX, "/usr/lib/all.so", 3).sample((10, 10), 10, 5, &[u64::MAX - 5000]);
    assert_sums(&report(&writer.file()));
    for offset in 0..writer.file().len() {
        let mut file = writer.file();
        file[offset] = 0xff;
        if let Ok(recording) = read(&file) {
            assert_sums(&Report::new(recording, None, &Options::default()));
        }
    }
}

#[test]
fn a_difference_names_what_changed() {
    let (mut before, mut after) = (writer(), writer());
    for time in 0..10 {
        before.sample((10, 10), time + 10, 5, &[if time < 2 { FIRST } else { 0x5000_0100 }]);
        after.sample((10, 10), time + 10, 5, &[if time < 7 { FIRST } else { 0x5000_0100 }]);
    }
    let (before, after) = (report(&before.file()), report(&after.file()));
    let difference = diff(&before, &after);
    let first = &difference.functions[0];
    assert_eq!(first.name, "__main__.fibonacci");
    assert!((first.self_percent.0 - 20.0).abs() < 1e-9 && (first.self_percent.1 - 70.0).abs() < 1e-9);
    assert!(difference.lines[0].name.contains("sides.py:") && !difference.lines[0].source.is_empty());
    assert!(difference.changed.is_empty(), "of no source a hash is known");
    let mut moved = after;
    moved.profile.files.iter_mut().for_each(|file| file.path = file.path.replace("sides.py", "checkout/sides.py"));
    let lines_of_moved = diff(&before, &moved).lines;
    let percents = |lines: &[Change]| lines.iter().map(|line| (line.self_percent, line.total)).collect::<Vec<_>>();
    assert_eq!(percents(&lines_of_moved), percents(&difference.lines), "another checkout has the same lines");
    assert!(lines_of_moved[0].name.contains("checkout/sides.py:"));
}

#[test]
fn growth_within_the_noise_of_sampling_is_no_regression() {
    let recording = |slow: u64, fast: u64| {
        let mut writer = writer();
        for time in 0..slow + fast {
            writer.sample((10, 10), time + 10, 5, &[if time < slow { FIRST } else { 0x5000_0100 }]);
        }
        report(&writer.file())
    };
    let names = |before: &Report, after: &Report, percent| {
        diff(before, after).regressions(percent).into_iter().map(|change| change.name).collect::<Vec<_>>()
    };
    // 120 samples instead of 100 are within two standard errors, 30; the same growth of 10,000 samples is not.
    assert_eq!(names(&recording(100, 0), &recording(120, 0), 1.0), [""; 0]);
    let (before, after) = (recording(10_000, 10_000), recording(12_000, 10_000));
    let regressions = names(&before, &after, 9.0);
    assert!(regressions.contains(&"the program".to_owned()), "{regressions:?}");
    assert!(regressions.contains(&"__main__.fibonacci".to_owned()), "{regressions:?}");
    assert_eq!(names(&before, &after, 11.0), [""; 0], "2,000 of 20,000 samples are 10 %");
    assert_eq!(names(&after, &before, 0.0), [""; 0], "less time");
    let json = diff_to_json(&before, &after, Some(9.0));
    let grown = json["functions"].as_array().unwrap().iter().find(|row| row["name"] == "__main__.fibonacci").unwrap();
    assert_eq!((&grown["self"], &grown["growth"]), (&serde_json::json!([10_000, 12_000]), &10_000.0.into()));
    assert_eq!(json["regressions"].as_array().unwrap().len(), regressions.len());
    assert!(diff_to_json(&before, &after, None)["regressions"].is_null());
}

#[test]
fn equal_notes_of_merged_recordings_are_counted() {
    let with_notes = |notes: &[&str]| {
        let mut recording = read(&writer().sample((10, 10), 10, 5, &[FIRST]).file()).unwrap();
        recording.notes = notes.iter().map(|note| (*note).to_owned()).collect();
        recording
    };
    let notes = [with_notes(&["cut off", "3 of 9 lost"]), with_notes(&["cut off", "4 of 9 lost"]), with_notes(&["x"])];
    let merged = Recording::merged(notes.into()).unwrap();
    assert_eq!(merged.notes, ["cut off (2 times)", "3 of 9 lost (and 1 similar notes)", "x"]);
}

#[test]
fn a_source_that_changed_in_between_is_noted() {
    let with_hashes = |hashes: &[&str]| {
        let mut report = report(&writer().sample((10, 10), 10, 5, &[FIRST]).file());
        let path = report.profile.files[0].path.clone();
        report.symbols.source_hashes.insert(path, hashes.iter().map(|hash| (*hash).to_owned()).collect());
        report
    };
    let note = "sides.py was changed in between";
    let text = |before: &[&str], after: &[&str]| diff_to_text(&with_hashes(before), &with_hashes(after), None, false);
    assert!(text(&["1"], &["2"]).contains(note) && text(&["1"], &["1", "2"]).contains(note));
    assert!(!text(&["1", "2"], &["2", "1"]).contains(note), "{}", text(&["1", "2"], &["2", "1"]));
}

#[test]
fn several_recordings_are_merged_and_distinguished() {
    let recording = |host: &str, pid: u32, samples: u64| {
        let mut writer = Writer { host: Some(host.to_owned()), ..Writer::default() };
        writer.comm(pid, pid, "python", true, 1).mmap(pid, (BASE, BASE + 0x2000), 0, IMAGE, 2);
        for time in 0..samples {
            writer.sample((pid, pid), 10 + time, 5, &[FIRST, CALL]);
        }
        writer.lost(1);
        read(&writer.file()).unwrap()
    };
    let recordings =
        vec![recording("one", 10, 3), recording("two", 10, 4), recording("two", 11, 5), recording("two", 10, 1)];
    let merged = Recording::merged(recordings).unwrap();
    assert_eq!((merged.samples.len(), merged.parts, merged.lost, merged.threads.len()), (13, 4, 4, 3));
    let report = Report::new(merged, None, &Options { by_thread: true, ..common::fixture_options() });
    assert_sums(&report);
    assert_eq!(lines(&report).iter().map(|row| row.1).sum::<u64>(), 13);
    assert_eq!(lines(&report).iter().map(|row| row.2).max(), Some(13), "one mapped file is one file");
    assert!(
        report.title().contains("4 recordings · 3 threads in 3 processes · 13 samples of cpu-clock"),
        "{}",
        report.title()
    );
    assert!(report.title().contains("on 2 machines"), "{}", report.title());
    let hosts: Vec<_> = report.hosts().into_iter().map(|group| (group.host, group.all.samples)).collect();
    assert_eq!(hosts, [("two".to_owned(), 10), ("one".to_owned(), 3)]);
    let processes: Vec<_> =
        report.processes().into_iter().map(|group| (group.host, group.pid, group.all.samples)).collect();
    assert_eq!(processes, [("two".to_owned(), 10, 5), ("two".to_owned(), 11, 5), ("one".to_owned(), 10, 3)]);
    let style = Style { threads: true, processes: true, hosts: true, ..Style::default() };
    let text = to_text(&report, style);
    for row in [
        "       10 | two, 2 threads",
        "| python (process 10 on two), 1 thread",
        "thread 10 on one)",
        "       3 |       |   thread python 10 of process 10 on one\n",
    ] {
        assert!(text.contains(row), "{row} in\n{text}");
    }
    let firefox = to_firefox(&report);
    let pids: BTreeSet<_> = firefox["threads"].as_array().unwrap().iter().map(|row| row["pid"].to_string()).collect();
    assert_eq!(pids.len(), 3, "{pids:?}");
    let speedscope = to_speedscope(&report);
    let names: BTreeSet<_> =
        speedscope["profiles"].as_array().unwrap().iter().map(|row| row["name"].to_string()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    let json = to_json(&report);
    assert_eq!((&json["recordings"], &json["hosts"][0]["samples"]), (&4.into(), &10.into()));
    assert_eq!(json["processes"][1]["pid"], 11);
    let line = json["files"][0]["lines"].as_array().unwrap().iter().find(|line| line["self"] == 13).unwrap();
    let threads: Vec<_> = line["threads"].as_array().unwrap().iter().map(|row| (&row["host"], &row["pid"])).collect();
    assert_eq!(threads, [(&"one".into(), &10.into()), (&"two".into(), &10.into()), (&"two".into(), &11.into())]);
}

#[test]
fn lines_and_functions_whose_time_differs_between_ranks_are_listed() {
    // The facts of the process, which its COMM records have.
    const RANK_TID: u32 = u32::MAX - 1;
    const MS: u64 = 1_000_000;
    /// Image with `heavy` of the fixture.
    const CALLER_IMAGE: &str = "/tmp/fixture/images/image-19001-347235/object-2.so";
    const CALLER: u64 = BASE + 0x1_1100;
    let recording = |rank: u32, samples: u64| {
        let mut writer = Writer { host: Some("one".to_owned()), ..Writer::default() };
        let pid = rank + 10;
        writer.comm(pid, pid, "python", true, 1).mmap(pid, (BASE, BASE + 0x2000), 0, IMAGE, 2);
        writer.mmap(pid, (BASE + 0x1_0000, BASE + 0x1_2000), 0, CALLER_IMAGE, 2);
        writer.comm(pid, RANK_TID, &rank.to_string(), false, 3);
        for time in 0..samples {
            writer.sample((pid, pid), 10 + time, 5 * MS, &[FIRST, CALL, CALLER]);
        }
        read(&writer.file()).unwrap()
    };
    let report_of = |samples: &dyn Fn(u32) -> u64| {
        let merged = Recording::merged((0..30).map(|rank| recording(rank, samples(rank))).collect()).unwrap();
        Report::new(merged, None, &Options { by_thread: true, ..common::fixture_options() })
    };
    let report = report_of(&|rank| if rank == 7 { 400 } else { 100 });
    let [row] = report.imbalanced_lines().try_into().unwrap();
    // 29 ranks of 0.5 s and one of 2 s.
    assert_eq!((row.min, row.mean, row.max, row.gain()), (500 * MS, 550 * MS, 2000 * MS, 1450 * MS));
    assert_eq!((row.slowest.rank, row.slowest.label.as_str()), (Some(7), "rank 7"));
    let text = to_text(&report, Style { processes: true, ..Style::default() });
    assert!(text.contains("rank 7 (process 17), 1 thread") && text.contains("10 more processes with "), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("(process ")).count(), 20, "{text}");
    assert!(text.contains("    1.45 s     500 ms     550 ms     2.00 s | sides.py:"), "{text}");
    // The caller differs by as much, but only by this callee.
    let [function] = report.imbalanced_functions().try_into().unwrap();
    assert_eq!((function.max, function.gain(), function.slowest.rank), (2000 * MS, 1450 * MS, Some(7)));
    assert!(text.contains("    1.45 s     500 ms     550 ms     2.00 s | __main__.fibonacci  rank 7"), "{text}");
    let json = to_json(&report);
    assert_eq!(json["imbalance"]["lines"][0]["slowest"]["rank"], 7);
    assert_eq!(json["imbalance"]["functions"][0]["name"], report.profile.functions[function.subject].name);
    // A difference that sampling explains is not listed.
    assert!(report_of(&|rank| if rank == 7 { 110 } else { 100 }).imbalanced_lines().is_empty());
}

#[test]
fn recordings_of_different_events_are_not_merged() {
    let recording_of = |config: u64| {
        let mut writer = Writer { events: vec![(0, config, 7)], ..Writer::default() };
        writer.sample((10, 10), 10, 5, &[FIRST]);
        read(&writer.file()).unwrap()
    };
    assert!(Recording::merged(vec![recording_of(0), recording_of(0)]).is_ok());
    let refused = Recording::merged(vec![recording_of(0), recording_of(1)]).unwrap_err().to_string();
    assert!(refused.contains("cycles") && refused.contains("instructions"), "{refused}");
}

/// Builds a recording with one stack copy, and reads it with the fixture's images.
fn read_stack_copy(registers: &[u64; 17], stack: &[u8]) -> Recording {
    let mut writer = Writer { copies: true, ..Writer::default() };
    writer.comm(10, 10, "python", true, 1).mmap(10, (BASE, BASE + 0x2000), 0, IMAGE, 2);
    writer.copy((10, 10), 20, registers, stack);
    let path = common::scratch_directory("walked").join("perf.data");
    std::fs::write(&path, writer.file()).unwrap();
    Recording::open_with(&path, &Selection::default(), &common::fixture_options().lookup.roots).unwrap()
}

fn addresses(recording: &Recording) -> Vec<u64> {
    let stack = recording.stacks.get(recording.samples[0].stack);
    stack.iter().map(|location| recording.locations[*location as usize].address).collect()
}

const STACK: u64 = 0x7ffd_0000_0000;

#[test]
fn a_stack_copy_is_unwound_with_the_rules_of_the_image() {
    let mut registers = [0; 17];
    // Indices of BP, SP and IP.
    (registers[6], registers[7], registers[8]) = (STACK + 64, STACK, FIRST);
    // At a function's first instruction, the return address is on top of the stack.
    let mut stack = vec![0; 88];
    stack[..8].copy_from_slice(&(CALL + 1).to_le_bytes());
    // The caller's frame pointer points to the old frame pointer and the return address. Zero marks the outermost
    // frame.
    let recording = read_stack_copy(&registers, &stack);
    assert_eq!(addresses(&recording), [FIRST, CALL], "{:?}", recording.notes);
    assert!(recording.notes.is_empty(), "{:?}", recording.notes);
    stack[72..80].copy_from_slice(&(FIRST + 0x40).to_le_bytes());
    assert_eq!(addresses(&read_stack_copy(&registers, &stack))[..3], [FIRST, CALL, FIRST + 0x3f]);
    // The caller's own return address is not in the copy.
    let recording = read_stack_copy(&registers, &stack[..72]);
    assert_eq!(addresses(&recording), [FIRST, CALL]);
    assert!(recording.notes.iter().any(|note| note.contains("longer than their copies")), "{:?}", recording.notes);
    // A caller's frame must not be below its callee's frame.
    let recording = read_stack_copy(&[0, 0, 0, 0, 0, 0, 16, STACK, FIRST, 0, 0, 0, 0, 0, 0, 0, 0], &stack);
    assert_eq!(addresses(&recording), [FIRST, CALL]);
    assert!(recording.notes.iter().any(|note| note.contains("end early")), "{:?}", recording.notes);
    // A return address outside of all mappings is rejected.
    let recording = read_stack_copy(&registers, &0x1234_5678_u64.to_le_bytes());
    assert_eq!(addresses(&recording), [FIRST]);
    assert!(recording.notes.iter().any(|note| note.contains("end early")), "{:?}", recording.notes);
    // Without a copy, only the innermost frame is known.
    assert_eq!(addresses(&read_stack_copy(&registers, &[])), [FIRST]);
}

#[test]
fn walks_of_hostile_copies_end() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut writer = Writer { copies: true, ..Writer::default() };
    writer.comm(10, 10, "python", true, 1).mmap(10, (BASE, BASE + 0x2000), 0, IMAGE, 2);
    for time in 0..3000 {
        let mut random_value = || match random() % 4 {
            0 => random(),
            1 => STACK + random() % 130 * 8,
            2 => u64::MAX - random() % 64,
            _ => BASE + 0x1000 + random() % 0x800,
        };
        let mut registers = [0; 17];
        registers.iter_mut().for_each(|register| *register = random_value());
        let stack: Vec<u8> = (0..128).flat_map(|_| random_value().to_le_bytes()).collect();
        registers[8] = BASE + 0x1000 + time % 0x800;
        if time % 16 != 0 {
            registers[7] = STACK + time % 3 * 8;
        }
        writer.copy((10, 10), 20 + time, &registers, &stack[..(time % 1024) as usize]);
    }
    let path = common::scratch_directory("random-copies").join("perf.data");
    std::fs::write(&path, writer.file()).unwrap();
    let report = Report::open(&path, &common::fixture_options()).unwrap();
    assert_sums(&report);
    assert_eq!(report.profile.all.samples, 3000);
    let max_frames =
        (0..report.recording.stacks.len() as u32).map(|stack| report.recording.stacks.get(stack).len()).max();
    assert!(max_frames.is_some_and(|max_frames| (3..=1024).contains(&max_frames)), "{max_frames:?}");
}

/// Reader that counts the bytes read.
struct CountingReader<R>(R, u64);

impl<R: std::io::Read> std::io::Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(into).inspect(|count| self.1 += *count as u64)
    }
}

impl<R: std::io::Seek> std::io::Seek for CountingReader<R> {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn data_after_a_record_is_skipped_once() {
    let mut writer = writer();
    for time in 10..20_010 {
        // PERF_RECORD_AUXTRACE is followed by eight bytes of data.
        writer.sample((10, 10), time, 1, &[FIRST]).record(71, 0, &8_u64.to_le_bytes());
        writer.records.extend([0xff; 8]);
    }
    let bytes = writer.file();
    let mut file = CountingReader(std::io::Cursor::new(&bytes), 0);
    let recording = Recording::read(&mut file, &Selection::default()).unwrap();
    assert_eq!((recording.samples.len(), recording.notes.len()), (20_000, 0), "{:?}", recording.notes);
    assert!(file.1 < 4 * bytes.len() as u64, "{} bytes read of {}", file.1, bytes.len());
}

#[test]
fn a_damaged_compressed_record_is_reported_and_the_others_are_read() {
    let mut writer = writer();
    writer.sample((10, 10), 10, 1, &[FIRST]);
    // PERF_RECORD_COMPRESSED without the magic number of zstd.
    writer.record(81, 0, &[7; 64]);
    writer.sample((10, 10), 20, 1, &[FIRST]);
    let mut file = std::io::Cursor::new(writer.file());
    let recording = Recording::read(&mut file, &Selection::default()).unwrap();
    assert_eq!(recording.samples.len(), 2);
    assert!(recording.notes[0].contains("a compressed record is damaged"), "{:?}", recording.notes);
}

#[test]
fn an_address_that_was_mapped_a_thousand_times_is_found_by_time() {
    let mut writer = Writer::default();
    for time in 1..=1000 {
        let path = format!("/usr/lib/{}.so", time % 7);
        writer.mmap(10, (BASE, BASE + 0x2000), 0, &path, time * 10);
    }
    for time in (1..=1000).rev().chain(1..=1000) {
        writer.sample((10, 10), time * 10 + 5, 1, &[FIRST]);
    }
    let report = report(&writer.file());
    assert_sums(&report);
    for (name, count) in &report.profile.outside {
        let number: u64 = name.strip_suffix(".so").unwrap().parse().unwrap();
        assert_eq!(count.samples, 2 * (1..=1000).filter(|time| time % 7 == number).count() as u64, "{name}");
    }
}
