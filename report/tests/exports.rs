//! Tests of the exports with other readers of the same formats.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use common::{Writer, find_program, fixture_options, scratch_directory, skip, testdata};
use fxprof_processed_profile::{
    CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile, ReferenceTimestamp, SamplingInterval,
    ThreadHandle, Timestamp, WeightType,
};
use jitlisten_report::{
    Report, gzip, stacks_to_json, to_callgrind, to_collapsed, to_firefox, to_flamegraph, to_pprof, to_speedscope,
};
use serde_json::Value;

fn fixture() -> Report {
    Report::open(&testdata().join("perf.data"), &fixture_options()).unwrap()
}

/// Builds a wall-clock recording of pools: three samples run tasks, and three are idle.
fn pools() -> Report {
    let root = scratch_directory("pools");
    fs::create_dir_all(root.join("tmp")).unwrap();
    let library = "/usr/lib/python3.12";
    let functions = [
        "main:/home/me/program.py".to_owned(),
        format!("_worker:{library}/concurrent/futures/thread.py"),
        format!("_WorkItem.run:{library}/concurrent/futures/thread.py"),
        format!("get:{library}/site-packages/requests/api.py"),
        format!("worker:{library}/multiprocessing/pool.py"),
        format!("mapstar:{library}/multiprocessing/pool.py"),
        format!("SimpleQueue.get:{library}/multiprocessing/queues.py"),
    ];
    let map = functions.iter().enumerate().map(|(index, name)| format!("7f000000{}000 100 py::{name}\n", index + 1));
    fs::write(root.join("tmp/perf-10.map"), map.collect::<String>()).unwrap();
    let [main, thread, run, request, worker, task, queue] =
        [1, 2, 3, 4, 5, 6, 7].map(|index| 0x7f00_0000_0010 + 0x1000 * index);
    let waits = 0x7f11_0000_0010;
    let mut writer = Writer::default();
    writer.comm(10, 10, "python", true, 1).mmap(10, (waits - 0x10, waits + 0xff0), 0, "/usr/lib/libgomp.so.1", 2);
    let stacks: [&[u64]; 6] = [
        &[waits, main],
        &[waits, request, run, thread],
        &[waits, task, worker, main],
        &[waits, thread],
        &[waits, queue, worker, main],
        &[waits],
    ];
    for (time, stack) in (10..).zip(stacks) {
        writer.sample((10, 10), time, 1_000_000, stack);
    }
    let mut recording = common::read(&writer.file()).unwrap();
    recording.events[0].0.name = "wall-clock".to_owned();
    let mut options = fixture_options();
    options.lookup.roots = vec![root];
    Report::new(recording, None, &options)
}

#[test]
fn idle_threads_of_pools_are_in_no_export() {
    let report = pools();
    assert_eq!((report.profile.all.samples, report.profile.idle.samples), (3, 3));
    assert_eq!(collapsed_sum(&to_collapsed(&report)), report.profile.all.weight);
    let callgrind = to_callgrind(&report);
    let mut lines = callgrind.lines();
    let mut own = 0;
    while let Some(line) = lines.next() {
        if line.starts_with("calls=") {
            lines.next();
        } else if line.starts_with(|letter: char| letter.is_ascii_digit()) {
            own += line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
        }
    }
    assert_eq!(own, report.profile.all.weight, "{callgrind}");
    let sum = |values: &Value| values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).sum::<f64>();
    assert_eq!(sum(&stacks_to_json(&report)["samples"]["samples"]), 3.0);
    assert_eq!(sum(&to_speedscope(&report)["profiles"][0]["weights"]), 3e6, "nanoseconds");
    assert_eq!(sum(&to_firefox(&report)["threads"][0]["samples"]["weight"]), 3.0, "milliseconds");
    if let Some(text) = pprof(&report, "pools", &["-top", "-sample_index=samples"]) {
        assert!(text.contains("of 3 total"), "{text}");
    }
}

/// Returns the sum of the counts at the ends of all lines.
fn collapsed_sum(text: &str) -> u64 {
    text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn collapsed_stacks_add_up_to_the_total() {
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
    let expected_title = format!("<title>all ({} samples, 100%)</title>", with_commas(collapsed_sum(&text)));
    assert!(
        render_with_inferno(&text).contains(&expected_title),
        "every line, and all that it counts: {expected_title}"
    );
}

fn render_with_inferno(text: &str) -> String {
    let mut svg = Vec::new();
    inferno::flamegraph::from_lines(&mut inferno::flamegraph::Options::default(), text.lines(), &mut svg).unwrap();
    String::from_utf8(svg).unwrap()
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> = digits.as_bytes().rchunks(3).rev().map(|part| std::str::from_utf8(part).unwrap()).collect();
    parts.join(",")
}

/// Builds a recording of two functions, named by a perf map. `heavy` has one sample with the first weight, and `light`
/// has three samples with the second.
fn heavy_and_light(name: &str, mut writer: Writer, weights: [u64; 2]) -> Report {
    let root = scratch_directory(name);
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::write(root.join("tmp/perf-10.map"), "7f0000001000 100 heavy\n7f0000002000 100 light\n").unwrap();
    writer.comm(10, 10, "python", true, 1).sample((10, 10), 10, weights[0], &[0x7f00_0000_1010]);
    for time in 11..14 {
        writer.sample((10, 10), time, weights[1], &[0x7f00_0000_2010]);
    }
    let mut options = fixture_options();
    options.lookup.roots = vec![root];
    Report::new(common::read(&writer.file()).unwrap(), None, &options)
}

/// Builds a recording whose recorder was late for the first sample. `heavy` has 3/4 of the time but 1/4 of the samples.
fn uneven(name: &str) -> Report {
    heavy_and_light(name, Writer::default(), [9_000_000, 1_000_000])
}

#[test]
fn a_function_has_the_same_share_in_every_format() {
    let report = uneven("uneven");
    let heavy = report.profile.functions.iter().find(|row| row.name == "heavy").unwrap();
    assert_eq!(heavy.shares.self_count.percent_of(report.profile.all), 75.0);

    let text = to_collapsed(&report);
    assert_eq!(text, "python;heavy_[j] 9000000\npython;light_[j] 3000000\n", "nanoseconds");
    assert!(render_with_inferno(&text).contains("<title>heavy (9,000,000 samples, 75.00%)</title>"));
    let (svg, _) = draw(&report);
    assert!(svg.contains("<title>heavy (9,000 microseconds, 75.00%)</title>"), "{svg}");

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
    let Some(program) = find_program("callgrind_annotate") else { return skip("callgrind_annotate (valgrind)") };
    let file = scratch_directory("callgrind-uneven").join("callgrind.out");
    fs::write(&file, to_callgrind(&uneven("uneven-callgrind"))).unwrap();
    let output = Command::new(program).args(["--threshold=100", "--auto=no"]).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().find(|line| line.ends_with(":heavy")).unwrap_or_else(|| panic!("{text}"));
    assert!(row.contains("9,000,000 (75.00%) 1 (25.00%)"), "{text}");
}

#[test]
fn callgrind_annotate_counts_recursion_once() {
    let Some(program) = find_program("callgrind_annotate") else { return skip("callgrind_annotate (valgrind)") };
    let root = scratch_directory("callgrind-recursion");
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::write(root.join("tmp/perf-10.map"), "7f0000001000 100 odd\n7f0000002000 100 even\n7f0000003000 100 main\n")
        .unwrap();
    let [odd, even, main] = [0x7f00_0000_1010, 0x7f00_0000_2010, 0x7f00_0000_3010];
    let mut writer = Writer::default();
    writer.comm(10, 10, "python", true, 1).sample((10, 10), 10, 1_000_000, &[even, odd, even, odd, odd, main]);
    writer.sample((10, 10), 11, 3_000_000, &[odd, odd, even, main]);
    let mut options = fixture_options();
    options.lookup.roots = vec![root.clone()];
    let report = Report::new(common::read(&writer.file()).unwrap(), None, &options);
    let file = root.join("callgrind.out");
    fs::write(&file, to_callgrind(&report)).unwrap();
    let arguments = ["--inclusive=yes", "--threshold=100", "--auto=no"];
    let output = Command::new(program).args(arguments).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for name in ["odd", "even", "main"] {
        let row = text.lines().find(|line| line.ends_with(&format!(":{name}"))).unwrap_or_else(|| panic!("{text}"));
        assert!(row.contains("4,000,000 (100.0%)"), "{text}");
    }
}

/// Runs google/pprof on an export. `None` if it is not installed; Go contains it.
fn pprof(report: &Report, name: &str, arguments: &[&str]) -> Option<String> {
    let mut command = match (find_program("pprof"), find_program("go")) {
        (Some(pprof), _) => Command::new(pprof),
        (None, Some(go)) => {
            let mut command = Command::new(go);
            command.args(["tool", "pprof"]);
            command
        }
        (None, None) => {
            skip("pprof (golang-go)");
            return None;
        }
    };
    let directory = scratch_directory(name);
    let file = directory.join("profile.pb.gz");
    fs::write(&file, gzip(&to_pprof(report))).unwrap();
    let output = command.args(arguments).arg(&file).env("PPROF_TMPDIR", &directory).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    Some(text.into_owned())
}

#[test]
fn pprof_has_the_same_totals_with_inlined_functions_and_labels() {
    let Some(text) = pprof(&uneven("uneven-pprof"), "pprof-uneven", &["-top", "-unit=ns"]) else { return };
    let row = text.lines().find(|line| line.ends_with("  heavy")).unwrap_or_else(|| panic!("{text}"));
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns, ["9000000ns", "75.00%", "75.00%", "9000000ns", "75.00%", "heavy"]);

    let report = fixture();
    let Some(text) = pprof(&report, "pprof-fixture", &["-raw"]) else { return };
    // A sample is `SAMPLES WEIGHT: LOCATION LOCATION ...`, followed by its labels.
    let rows = text.lines().filter_map(|line| line.split_once(": ")).filter_map(|(values, _)| {
        let values: Vec<u64> = values.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        <[u64; 2]>::try_from(values).ok()
    });
    let sums = rows.fold([0, 0], |sums: [u64; 2], row| [sums[0] + row[0], sums[1] + row[1]]);
    assert_eq!(sums, [report.profile.all.samples, report.profile.all.weight]);
    assert!(text.contains("thread:[") && text.contains("pid:["), "{text}");
    let Some(text) = pprof(&report, "pprof-inlined", &["-top", "-nodefraction=0", "-nodecount=1000"]) else { return };
    assert!(text.contains("bell (inline)"), "{text}");
    let Some(text) = pprof(&report, "pprof-lines", &["-top", "-lines", "-nodecount=1000"]) else { return };
    let (path, line) =
        report.profile.files.iter().find_map(|file| Some((&file.path, file.lines.keys().max()?))).unwrap();
    assert!(text.contains(&format!("{path}:{line}")), "{path}:{line} in {text}");
}

#[test]
fn units_are_named_after_the_event_and_samples_without_periods_are_counted() {
    let counted_events =
        heavy_and_light("counted", Writer { events: vec![(0, 0, 501)], ..Writer::default() }, [9000, 1000]);
    assert_eq!(to_collapsed(&counted_events), "python;heavy_[j] 9000\npython;light_[j] 3000\n");
    assert!(draw(&counted_events).0.contains("<title>heavy (9,000 cycles, 75.00%)</title>"));
    let samples = &to_firefox(&counted_events)["threads"][0]["samples"];
    assert_eq!(
        (&samples["weight"], &samples["weightType"]),
        (&serde_json::json!([9000, 1000, 1000, 1000]), &"samples".into())
    );
    let weightless = heavy_and_light("of-nothing", Writer::default(), [0, 0]);
    assert_eq!(to_collapsed(&weightless), "python;heavy_[j] 1\npython;light_[j] 3\n");
    assert!(draw(&weightless).0.contains("<title>heavy (1 samples, 25.00%)</title>"));
}

/// Readers add up all counts, so the sum must not overflow.
#[test]
fn sums_of_hostile_counts_do_not_overflow() {
    let events = vec![(0, 0, 501)];
    for writer in [Writer::default(), Writer { events, ..Writer::default() }] {
        let hostile = heavy_and_light("hostile", writer, [u64::MAX, u64::MAX]);
        assert!(render_with_inferno(&to_collapsed(&hostile)).contains("heavy"));
        assert!(draw(&hostile).0.contains("heavy"));
    }
}

/// Returns the SVG, and a function that finds the colour of the first frame whose name has a prefix.
fn draw(report: &Report) -> (String, impl Fn(&str) -> [u8; 3] + use<>) {
    let mut svg = Vec::new();
    to_flamegraph(report, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let text = svg.clone();
    let colour_of = move |name: &str| {
        let frame = text.split("<title>").find(|frame| frame.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
        let colour = frame.split_once("fill=\"rgb(").and_then(|(_, rest)| rest.split(')').next()).unwrap();
        let parts: Vec<u8> = colour.split(',').map(|part| part.trim().parse().unwrap()).collect();
        parts.try_into().unwrap()
    };
    (svg, colour_of)
}

#[test]
fn the_flame_graph_is_green_yellow_and_red() {
    let (_, colour_of) = draw(&fixture());
    let [r, g, b] = colour_of("__main__.fibonacci(");
    assert!(g > r + 60 && g > b + 60, "compiled code is green: {r} {g} {b}");
    let [r, g, b] = colour_of("bell (");
    assert!(g == b && g > r + 60, "what was inlined is bluish: {r} {g} {b}");
    let [r, g, b] = colour_of("[libm.so.6] (");
    assert!(r > g + 60 && r > b + 60, "C is red: {r} {g} {b}");
    // The perf map names Python functions as CPython's perf trampolines do.
    let root = scratch_directory("trampolines");
    fs::create_dir_all(root.join("tmp")).unwrap();
    fs::write(root.join("tmp/perf-10.map"), "7f0000001000 100 py::outer:/tmp/program.py\n").unwrap();
    let mut writer = Writer::default();
    writer.comm(10, 10, "python", true, 1).sample((10, 10), 10, 5, &[0x7f00_0000_1010]);
    let mut options = fixture_options();
    options.lookup.roots = vec![root];
    let report = Report::new(common::read(&writer.file()).unwrap(), None, &options);
    let [r, g, b] = draw(&report).1("outer (");
    assert!(r > b + 60 && g > b + 60, "Python is yellow: {r} {g} {b}");
}

#[test]
fn the_flame_graph_has_a_grey_root_and_is_well_formed() {
    let (svg, colour_of) = draw(&fixture());
    assert!(svg.contains("<svg") && svg.contains("394 samples of cpu-clock"));
    assert!(svg.contains("__main__.heavy"), "compiled code by name");
    assert_eq!([colour_of("all ("), colour_of("python (")], [[215; 3]; 2], "what is no code is grey");
    let Some(python) = find_program("python3") else { return skip("python3") };
    let file = scratch_directory("flames").join("flames.svg");
    fs::write(&file, &svg).unwrap();
    let check = "import sys, xml.dom.minidom as m; print(len(m.parse(sys.argv[1]).getElementsByTagName('rect')))";
    let output = Command::new(python).args(["-c", check]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn callgrind_annotate_reads_the_totals_and_the_lines() {
    let Some(program) = find_program("callgrind_annotate") else { return skip("callgrind_annotate (valgrind)") };
    let file = scratch_directory("callgrind").join("callgrind.out");
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
        let weights_sum: u64 = weights.iter().map(|weight| weight.as_u64().unwrap()).sum();
        assert_eq!(profile["endValue"].as_u64().unwrap(), weights_sum);
        weight += weights_sum;
        assert!(
            samples
                .iter()
                .flat_map(|sample| sample.as_array().unwrap())
                .all(|index| (index.as_u64().unwrap() as usize) < frames.len())
        );
    }
    assert_eq!(weight, report.profile.all.weight);
    assert!(
        frames.iter().any(|frame| frame["name"] == "bell_[i]"
            && frame["line"] == 12
            && frame["file"] == "/tmp/fixture/sides.py")
    );
}

/// Returns the tables and columns of a profile with their types.
fn column_types(value: &Value) -> BTreeMap<String, String> {
    fn walk(value: &Value, path: &str, types: &mut BTreeMap<String, String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| walk(value, &format!("{path}.{key}"), types)),
            Value::Array(items) => {
                types.insert(path.to_owned(), "array".to_owned());
                if let Some(first @ Value::Object(_)) = items.first() {
                    walk(first, path, types);
                }
            }
            Value::Number(_) => drop(types.insert(path.to_owned(), "number".to_owned())),
            Value::String(_) => drop(types.insert(path.to_owned(), "string".to_owned())),
            Value::Bool(_) => drop(types.insert(path.to_owned(), "bool".to_owned())),
            Value::Null => drop(types.insert(path.to_owned(), "null".to_owned())),
        }
    }
    let mut types = BTreeMap::new();
    walk(value, "", &mut types);
    types
}

/// Returns a profile with one sample, built by the crate that samply uses.
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
    let (ours, theirs) = (column_types(&profile), column_types(&reference));
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
        let assert_below = |table: &str, column: &str, limit: u64| {
            let values = thread[table][column].as_array().unwrap();
            assert!(values.iter().filter_map(Value::as_u64).all(|value| value < limit), "{table}.{column}");
        };
        assert_below("samples", "stack", length("stackTable"));
        assert_below("stackTable", "frame", length("frameTable"));
        assert_below("frameTable", "func", length("funcTable"));
        assert_below("funcTable", "name", thread["stringArray"].as_array().unwrap().len() as u64);
        let times = thread["samples"]["threadCPUDelta"].as_array().unwrap();
        assert!(times.iter().all(|time| time.as_u64() == Some(10_101)), "99 samples a second, in microseconds");
        let deltas = thread["samples"]["timeDeltas"].as_array().unwrap();
        assert!(deltas.iter().all(|delta| delta.as_f64().unwrap() >= 0.0));
        for (index, prefix) in thread["stackTable"]["prefix"].as_array().unwrap().iter().enumerate() {
            assert!(prefix.as_u64().is_none_or(|prefix| prefix < index as u64), "a stack's caller comes before it");
        }
        count += length("samples");
    }
    assert_eq!(count, report.profile.all.samples);
}
