//! The exports, read by readers of their formats.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use common::{Writer, find, rooted, scratch, skip, testdata};
use fxprof_processed_profile::{
    CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile, ReferenceTimestamp, SamplingInterval,
    ThreadHandle, Timestamp, WeightType,
};
use jitlisten_report::{Report, to_callgrind, to_collapsed, to_firefox, to_flamegraph, to_speedscope};
use serde_json::Value;

fn fixture() -> Report {
    Report::open(&testdata().join("perf.data"), &rooted()).unwrap()
}

/// What stands behind the stacks, added up.
fn collapsed_sum(text: &str) -> u64 {
    text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn collapsed_stacks_are_all_of_the_time() {
    let report = fixture();
    let text = to_collapsed(&report);
    assert_eq!(collapsed_sum(&text), report.profile.all.weight);
    assert!(
        text.contains(";bell_[i]") && text.contains("_[j]") && text.lines().all(|line| !line.starts_with("perf-exec;")),
        "{text}"
    );
}

#[test]
fn inferno_reads_the_collapsed_stacks() {
    let text = to_collapsed(&fixture());
    let all = format!("<title>all ({} samples, 100%)</title>", with_commas(collapsed_sum(&text)));
    assert!(by_inferno(&text).contains(&all), "every line, and all that it counts: {all}");
}

fn by_inferno(text: &str) -> String {
    let mut picture = Vec::new();
    inferno::flamegraph::from_lines(&mut inferno::flamegraph::Options::default(), text.lines(), &mut picture).unwrap();
    String::from_utf8(picture).unwrap()
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|part| std::str::from_utf8(part).unwrap()).collect();
    parts.join(",")
}

/// A recording of two functions, `heavy` with one sample of this weight and `light` with three of the other, read by
/// its perf map.
fn heavy_and_light(name: &str, mut writer: Writer, weights: [u64; 2]) -> Report {
    let root = scratch(name);
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::write(root.join("tmp/perf-10.map"), "7f0000001000 100 heavy\n7f0000002000 100 light\n").unwrap();
    writer.comm(10, 10, "python", true, 1).sample((10, 10), 10, weights[0], &[0x7f00_0000_1010]);
    for time in 11..14 {
        writer.sample((10, 10), time, weights[1], &[0x7f00_0000_2010]);
    }
    let mut options = rooted();
    options.lookup.roots = vec![root];
    Report::new(common::read(&writer.file()).unwrap(), None, &options)
}

/// As a recorder writes that was late for the first of them: by samples it would be a quarter.
fn uneven(name: &str) -> Report {
    heavy_and_light(name, Writer::default(), [9_000_000, 1_000_000])
}

#[test]
fn a_function_has_one_share_in_every_format() {
    let report = uneven("uneven");
    let heavy = report.profile.functions.iter().find(|row| row.name == "heavy").unwrap();
    assert_eq!(heavy.shares.own.percent_of(report.profile.all), 75.0);

    let text = to_collapsed(&report);
    assert_eq!(text, "python;heavy_[j] 9000000\npython;light_[j] 3000000\n", "nanoseconds");
    assert!(by_inferno(&text).contains("<title>heavy (9,000,000 samples, 75.00%)</title>"));
    let (picture, _) = drawn(&report);
    assert!(picture.contains("<title>heavy (9,000 microseconds, 75.00%)</title>"), "{picture}");

    let profile = to_firefox(&report);
    let samples = &profile["threads"][0]["samples"];
    let mut thread = reference_profile();
    thread.0.set_thread_samples_weight_type(thread.1, WeightType::TracingMs);
    let reference = serde_json::to_value(&thread.0).unwrap();
    assert_eq!(samples["weightType"], reference["threads"][0]["samples"]["weightType"]);
    assert_eq!(samples["weight"], serde_json::json!([9.0, 1.0, 1.0, 1.0]), "milliseconds");

    let speedscope = to_speedscope(&report);
    assert_eq!(speedscope["profiles"][0]["weights"], serde_json::json!([9_000_000, 3_000_000]), "nanoseconds");
}

#[test]
fn callgrind_annotate_has_the_same_share_first() {
    let Some(program) = find("callgrind_annotate") else { return skip("callgrind_annotate (valgrind)") };
    let file = scratch("callgrind-uneven").join("callgrind.out");
    fs::write(&file, to_callgrind(&uneven("uneven-callgrind"))).unwrap();
    let output = Command::new(program).args(["--threshold=100", "--auto=no"]).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().find(|line| line.ends_with(":heavy")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains("9,000,000 (75.00%) 1 (25.00%)"), "{text}");
}

#[test]
fn what_is_counted_is_called_by_its_name_and_samples_of_nothing_are_counted() {
    let counted = heavy_and_light("counted", Writer { events: vec![(0, 0, 501)], ..Writer::default() }, [9000, 1000]);
    assert_eq!(to_collapsed(&counted), "python;heavy_[j] 9000\npython;light_[j] 3000\n");
    assert!(drawn(&counted).0.contains("<title>heavy (9,000 cycles, 75.00%)</title>"));
    let samples = &to_firefox(&counted)["threads"][0]["samples"];
    assert_eq!(
        (&samples["weight"], &samples["weightType"]),
        (&serde_json::json!([9000, 1000, 1000, 1000]), &"samples".into())
    );
    let of_nothing = heavy_and_light("of-nothing", Writer::default(), [0, 0]);
    assert_eq!(to_collapsed(&of_nothing), "python;heavy_[j] 1\npython;light_[j] 3\n");
    assert!(drawn(&of_nothing).0.contains("<title>heavy (1 samples, 25.00%)</title>"));
}

/// Readers add the numbers up.
#[test]
fn whatever_a_recording_claims_can_be_added_up() {
    let events = vec![(0, 0, 501)];
    for writer in [Writer::default(), Writer { events, ..Writer::default() }] {
        let hostile = heavy_and_light("hostile", writer, [u64::MAX, u64::MAX]);
        assert!(by_inferno(&to_collapsed(&hostile)).contains("heavy"));
        assert!(drawn(&hostile).0.contains("heavy"));
    }
}

/// What is drawn, and the colour of the first frame whose name begins with this.
fn drawn(report: &Report) -> (String, impl Fn(&str) -> [u8; 3] + use<>) {
    let mut picture = Vec::new();
    to_flamegraph(report, &mut picture).unwrap();
    let picture = String::from_utf8(picture).unwrap();
    let text = picture.clone();
    let colour_of = move |name: &str| {
        let frame = text.split("<title>").find(|frame| frame.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        let colour = frame.split_once("fill=\"rgb(").and_then(|(_, rest)| rest.split(')').next()).unwrap();
        let parts: Vec<u8> = colour.split(',').map(|part| part.trim().parse().unwrap()).collect();
        parts.try_into().unwrap()
    };
    (picture, colour_of)
}

#[test]
fn the_flame_graph_is_green_yellow_and_red() {
    let (_, colour_of) = drawn(&fixture());
    let [r, g, b] = colour_of("__main__.fibonacci(");
    assert!(g > r + 60 && g > b + 60, "compiled code is green: {r} {g} {b}");
    let [r, g, b] = colour_of("bell (");
    assert!(g == b && g > r + 60, "what was inlined is bluish: {r} {g} {b}");
    let [r, g, b] = colour_of("[libm.so.6] (");
    assert!(r > g + 60 && r > b + 60, "C is red: {r} {g} {b}");
    // Python that the interpreter runs, as CPython names its trampolines.
    let root = scratch("trampolines");
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::write(root.join("tmp/perf-10.map"), "7f0000001000 100 py::outer:/tmp/program.py\n").unwrap();
    let mut writer = Writer::default();
    writer.comm(10, 10, "python", true, 1).sample((10, 10), 10, 5, &[0x7f00_0000_1010]);
    let mut options = rooted();
    options.lookup.roots = vec![root];
    let report = Report::new(common::read(&writer.file()).unwrap(), None, &options);
    let [r, g, b] = drawn(&report).1("outer (");
    assert!(r > b + 60 && g > b + 60, "Python is yellow: {r} {g} {b}");
}

#[test]
fn the_flame_graph_is_grey_at_its_foot_and_well_formed() {
    let (picture, colour_of) = drawn(&fixture());
    assert!(picture.contains("<svg") && picture.contains("394 samples of cpu-clock"));
    assert!(picture.contains("__main__.heavy"), "compiled code by name");
    assert_eq!([colour_of("all ("), colour_of("python (")], [[215; 3]; 2], "what is no code is grey");
    let Some(python) = find("python3") else { return skip("python3") };
    let file = scratch("flames").join("flames.svg");
    fs::write(&file, &picture).unwrap();
    let check = "import sys, xml.dom.minidom as m; print(len(m.parse(sys.argv[1]).getElementsByTagName('rect')))";
    let output = Command::new(python).args(["-c", check]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn callgrind_annotate_reads_the_totals_and_the_lines() {
    let Some(program) = find("callgrind_annotate") else { return skip("callgrind_annotate (valgrind)") };
    let file = scratch("callgrind").join("callgrind.out");
    fs::write(&file, to_callgrind(&fixture())).unwrap();
    let output = Command::new(program).args(["--threshold=100", "--auto=no"]).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.lines().any(|line| line.contains("394 (100.0%)") && line.contains("PROGRAM TOTALS")), "{text}");
    assert!(text.contains("/tmp/fixture/sides.py:__main__.fibonacci(int64) [v21]"), "{text}");
}

#[test]
fn a_speedscope_file_has_its_fields() {
    let report = fixture();
    let file = to_speedscope(&report);
    let frames = file["shared"]["frames"].as_array().unwrap();
    let mut weight = 0;
    for profile in file["profiles"].as_array().unwrap() {
        let (samples, weights) = (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
        assert_eq!(samples.len(), weights.len());
        let own: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
        assert_eq!(profile["endValue"].as_u64().unwrap(), own);
        weight += own;
        assert!(
            samples
                .iter()
                .flat_map(|sample| sample.as_array().unwrap())
                .all(|at| (at.as_u64().unwrap() as usize) < frames.len())
        );
    }
    assert_eq!(weight, report.profile.all.weight);
    assert!(
        frames.iter().any(|frame| frame["name"] == "bell_[i]"
            && frame["line"] == 12
            && frame["file"] == "/tmp/fixture/sides.py")
    );
}

/// The tables of a profile with their columns and the kinds of what is in them.
fn shape(value: &Value) -> BTreeMap<String, String> {
    fn walk(value: &Value, path: &str, found: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| walk(value, &format!("{path}.{key}"), found)),
            Value::Array(all) => {
                found.insert(path.to_owned(), "array".to_owned());
                if let Some(first @ Value::Object(_)) = all.first() {
                    walk(first, path, found);
                }
            }
            Value::Number(_) => drop(found.insert(path.to_owned(), "number".to_owned())),
            Value::String(_) => drop(found.insert(path.to_owned(), "string".to_owned())),
            Value::Bool(_) => drop(found.insert(path.to_owned(), "bool".to_owned())),
            Value::Null => drop(found.insert(path.to_owned(), "null".to_owned())),
        }
    }
    let mut found = BTreeMap::new();
    walk(value, "", &mut found);
    found
}

/// What the crate that samply writes its profiles with makes of one sample.
fn reference() -> Value {
    serde_json::to_value(&reference_profile().0).unwrap()
}

fn reference_profile() -> (Profile, ThreadHandle) {
    let zero = Timestamp::from_millis_since_reference(0.0);
    let start = ReferenceTimestamp::from_millis_since_unix_epoch(0.0);
    let mut profile = Profile::new("reference", start, SamplingInterval::from_millis(1));
    let process = profile.add_process("process", 1, zero);
    let thread = profile.add_thread(process, 1, zero, true);
    let frame = Frame::Label(profile.intern_string("frame"));
    let frame = FrameInfo { frame, category_pair: CategoryHandle::OTHER.into(), flags: FrameFlags::empty() };
    let stack = profile.intern_stack_frames(thread, [frame].into_iter());
    profile.add_sample(thread, zero, stack, CpuDelta::ZERO, 1);
    (profile, thread)
}

#[test]
fn the_firefox_profile_has_the_tables_and_columns_of_its_version() {
    let report = fixture();
    let profile = to_firefox(&report);
    let reference = reference();
    assert_eq!(profile["meta"]["preprocessedProfileVersion"], reference["meta"]["preprocessedProfileVersion"]);
    let (ours, theirs) = (shape(&profile), shape(&reference));
    let missing: Vec<_> = theirs.keys().filter(|key| !ours.contains_key(*key)).collect();
    assert!(missing.is_empty(), "not there: {missing:?}");
    let mut count = 0;
    for thread in profile["threads"].as_array().unwrap() {
        for table in ["frameTable", "funcTable", "stackTable", "samples"] {
            let length = thread[table]["length"].as_u64().unwrap() as usize;
            for (column, values) in thread[table].as_object().unwrap() {
                let Some(values) = values.as_array() else { continue };
                assert_eq!(values.len(), length, "{table}.{column}");
            }
        }
        let length = |table: &str| thread[table]["length"].as_u64().unwrap();
        let below = |table: &str, column: &str, limit: u64| {
            let values = thread[table][column].as_array().unwrap();
            assert!(values.iter().filter_map(Value::as_u64).all(|value| value < limit), "{table}.{column}");
        };
        below("samples", "stack", length("stackTable"));
        below("stackTable", "frame", length("frameTable"));
        below("frameTable", "func", length("funcTable"));
        below("funcTable", "name", thread["stringArray"].as_array().unwrap().len() as u64);
        let times = thread["samples"]["threadCPUDelta"].as_array().unwrap();
        assert!(times.iter().all(|time| time.as_u64() == Some(10_101)), "99 samples a second, in microseconds");
        let deltas = thread["samples"]["timeDeltas"].as_array().unwrap();
        assert!(deltas.iter().all(|delta| delta.as_f64().unwrap() >= 0.0));
        for (at, prefix) in thread["stackTable"]["prefix"].as_array().unwrap().iter().enumerate() {
            assert!(prefix.as_u64().is_none_or(|prefix| prefix < at as u64), "a stack's caller comes before it");
        }
        count += length("samples");
    }
    assert_eq!(count, report.profile.all.samples);
}
