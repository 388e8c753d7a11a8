//! Tests of the page's data and of the flame graphs. Together they show all samples.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fs;

use common::{Writer, fixture_options, read, scratch_directory, testdata};
use jitlisten_report::{HotLine, Options, Recording, Report, to_flamegraph, to_html};
use serde_json::Value;

fn data(report: &Report) -> Value {
    let page = to_html(report);
    let (_, rest) = page.split_once("<script id=\"data\" type=\"application/json\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Stack tree, as the page's script reads it.
struct Stacks {
    /// Parent, function, file and line of each node.
    nodes: Vec<(usize, i64, i64, i64)>,
    /// Slice, thread, node, activity, hot line, samples, weight, leaf of the tree of lines.
    parts: Vec<[u64; 8]>,
}

impl Stacks {
    fn new(data: &Value) -> Stacks {
        let numbers = |key: &str| -> Vec<i64> {
            data["stacks"][key].as_array().unwrap().iter().map(|number| number.as_i64().unwrap()).collect()
        };
        let spots = numbers("spots");
        let (mut path, mut nodes) = (Vec::new(), Vec::new());
        for (number, node) in numbers("nodes").chunks(2).enumerate() {
            let (depth, spot) = (node[0] as usize, node[1] as usize * 4);
            path.truncate(depth);
            nodes.push((path.last().copied().unwrap_or(0), spots[spot], spots[spot + 1], spots[spot + 2]));
            path.push(number);
        }
        let parts = data["stacks"]["parts"].as_array().unwrap();
        let parts = parts.chunks(8).map(|part| std::array::from_fn(|field| part[field].as_u64().unwrap())).collect();
        Stacks { nodes, parts }
    }

    fn sum(&self, matches: impl Fn(&[u64; 8]) -> bool) -> (u64, u64) {
        let parts = self.parts.iter().filter(|part| matches(part));
        parts.fold((0, 0), |sum, part| (sum.0 + part[5], sum.1 + part[6]))
    }

    /// Returns self and total weight of each line. A line counts once per stack.
    fn lines(&self) -> BTreeMap<(i64, i64), (u64, u64)> {
        let mut lines: BTreeMap<(i64, i64), (u64, u64)> = BTreeMap::new();
        for part in &self.parts {
            let mut node = part[2] as usize;
            let (_, _, file, line) = self.nodes[node];
            lines.entry((file, line)).or_default().0 += part[6];
            let mut seen = Vec::new();
            while node != 0 {
                let (parent, _, file, line) = self.nodes[node];
                if !seen.contains(&(file, line)) {
                    seen.push((file, line));
                    lines.entry((file, line)).or_default().1 += part[6];
                }
                node = parent;
            }
        }
        lines.remove(&(-1, 0));
        lines
    }
}

/// Returns file, line, compiled flag, self weight and weight in C functions of each hot line, as added up by the page.
/// The hottest line comes first.
fn hot_lines(data: &Value, stacks: &Stacks) -> Vec<(u64, u64, bool, u64, u64)> {
    let lines = data["stacks"]["hot"].as_array().unwrap().iter().zip(0_u64..);
    lines
        .map(|(line, index)| {
            let sum = |code: u64| stacks.sum(|part| part[4] == 1 + 2 * index + code).1;
            let position = (line[0].as_u64().unwrap(), line[1].as_u64().unwrap());
            (position.0, position.1, line[2].as_bool().unwrap(), sum(0) + sum(1), sum(1))
        })
        .collect()
}

fn hottest_lines(report: &Report) -> Vec<(u64, u64, bool, u64, u64)> {
    let line = |line: &HotLine| {
        (line.position.0.into(), line.position.1.into(), line.compiled, line.self_count.weight, line.in_c.weight)
    };
    report.profile.hottest(usize::MAX).iter().map(line).collect()
}

fn assert_adds_up(report: &Report) -> (Value, Stacks) {
    let data = data(report);
    let stacks = Stacks::new(&data);
    assert_eq!(stacks.sum(|_| true), (report.profile.all.samples, report.profile.all.weight));
    for (index, row) in report.profile.threads.iter().enumerate() {
        assert_eq!(stacks.sum(|part| part[1] == index as u64), (row.all.samples, row.all.weight), "thread {index}");
    }
    let (slices, activities) =
        (data["stacks"]["slices"].as_u64().unwrap(), data["stacks"]["activities"].as_array().unwrap().len());
    assert_eq!(hot_lines(&data, &stacks), hottest_lines(report));
    assert!(slices <= 301 && stacks.parts.iter().all(|part| part[0] < slices && part[3] < activities as u64));
    (data, stacks)
}

#[test]
fn the_stacks_of_the_page_add_up_to_its_lines() {
    let report = Report::open(&testdata().join("perf.data"), &fixture_options()).unwrap();
    let (data, stacks) = assert_adds_up(&report);
    let mut expected: BTreeMap<(i64, i64), (u64, u64)> = BTreeMap::new();
    for (file, source_lines) in report.profile.files.iter().enumerate() {
        for (line, entry) in &source_lines.lines {
            let shares = (entry.shares.self_count.weight, entry.shares.total.weight);
            expected.insert((file as i64, i64::from(*line)), shares);
        }
    }
    assert!(expected.len() > 10);
    assert_eq!(stacks.lines(), expected);
    assert!(data["program"].as_str().is_some_and(|program| !program.is_empty() && !program.contains('/')), "{data}");
}

#[test]
fn the_page_stays_small_with_any_number_of_stacks() {
    let root = scratch_directory("page-many");
    fs::create_dir_all(root.join("tmp")).unwrap();
    let functions: String =
        (0..4096).map(|index| format!("{:x} 10 f{index}\n", 0x7f00_0000_0000_u64 + index * 16)).collect();
    fs::write(root.join("tmp/perf-10.map"), functions).unwrap();
    let mut writer = Writer::default();
    writer.comm(10, 10, "python", true, 1);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for time in 0..60_000 {
        let chain: Vec<u64> = (0..12)
            .map(|depth| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // There are few outer functions and many inner ones.
                0x7f00_0000_0000 + (seed >> 33) % (4096 >> depth) * 16 + 1
            })
            .collect();
        writer.sample((10, 10 + time as u32 % 8), 10 + time * 1000, 1000, &chain);
    }
    let mut options = fixture_options();
    options.lookup.roots = vec![root];
    let report = Report::new(common::read(&writer.file()).unwrap(), None, &options);
    assert!(report.recording.stacks.len() > 50_000);
    let (data, stacks) = assert_adds_up(&report);
    assert!(stacks.nodes.len() < 60_000 && stacks.parts.len() <= 150_000);
    assert!(stacks.nodes.iter().skip(1).any(|node| node.1 == -1), "the light ones are together");
    let size = data["stacks"].to_string().len();
    assert!(size < 4_000_000, "{size} bytes");
}

/// Builds a recording in which `outer` calls `inner` through the interpreter's C code, and `inner` the sampled C
/// function.
fn interpreted() -> Report {
    let root = scratch_directory("page-interpreted");
    fs::create_dir_all(root.join("tmp")).unwrap();
    let perf_map = "7f0000001000 100 py::outer:/tmp/program.py\n7f0000002000 100 py::inner:/tmp/program.py\n\
               7f0000003000 100 py::_find_and_load:<frozen importlib._bootstrap>\n";
    fs::write(root.join("tmp/perf-10.map"), perf_map).unwrap();
    let mut writer = Writer::default();
    writer.comm(10, 10, "python", true, 1);
    writer.mmap(10, (0x5000_0000, 0x5001_0000), 0, "/none/libpython3.11.so.1.0", 2);
    writer.mmap(10, (0x6000_0000, 0x6001_0000), 0, "/none/libc.so.6", 2);
    let (outer, inner, import, python, libc) =
        (0x7f00_0000_1010, 0x7f00_0000_2010, 0x7f00_0000_3010, 0x5000_0010, 0x6000_0010);
    writer.sample((10, 10), 10, 5, &[python, inner, python, import, python, outer, python, libc, python]);
    writer.sample((10, 10), 11, 5, &[libc, import, python, outer, python]);
    let mut options: Options = fixture_options();
    options.lookup.roots = vec![root];
    Report::new(common::read(&writer.file()).unwrap(), None, &options)
}

#[test]
fn interpreter_frames_are_omitted_except_at_the_leaf() {
    let report = interpreted();
    let (_, stacks) = assert_adds_up(&report);
    let names = |mut node: usize| {
        let mut names = Vec::new();
        while node != 0 {
            names.push(report.profile.functions[stacks.nodes[node].1 as usize].name.as_str());
            node = stacks.nodes[node].0;
        }
        names
    };
    let stack_names: Vec<_> = stacks.parts.iter().map(|part| names(part[2] as usize)).collect();
    let (first, second) =
        (vec!["[libpython3.11.so.1.0]", "inner", "outer"], vec!["[libc.so.6]", "_find_and_load", "outer"]);
    assert!(stack_names.len() == 2 && stack_names.contains(&first) && stack_names.contains(&second), "{stack_names:?}");
    let mut svg = Vec::new();
    to_flamegraph(&report, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    assert_eq!(svg.matches("<title>[libpython3.11.so.1.0]").count(), 1, "{svg}");
    assert!(svg.contains("<title>inner (program.py)"), "{svg}");
}

#[test]
fn frames_narrower_than_a_pixel_do_not_increase_the_height() {
    let root = scratch_directory("page-narrow");
    fs::create_dir_all(root.join("tmp")).unwrap();
    let functions: String =
        (0..300).map(|index| format!("{:x} 10 f{index}\n", 0x7f00_0000_0000_u64 + index * 16)).collect();
    fs::write(root.join("tmp/perf-10.map"), functions).unwrap();
    let mut writer = Writer::default();
    writer.comm(10, 10, "python", true, 1).sample((10, 10), 10, 999_990, &[0x7f00_0000_0001]);
    let deep: Vec<u64> = (0..300).map(|index| 0x7f00_0000_0001 + index * 16).collect();
    writer.sample((10, 10), 11, 10, &deep);
    let mut options = fixture_options();
    options.lookup.roots = vec![root];
    let report = Report::new(common::read(&writer.file()).unwrap(), None, &options);
    let mut svg = Vec::new();
    to_flamegraph(&report, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let height = svg.split_once("viewBox=\"0 0 1200 ").unwrap().1.split('"').next().unwrap();
    assert!(height.parse::<u32>().unwrap() < 250, "{height}");
}

/// Processes of one command have one clock; those of other commands may be of another day.
#[test]
fn processes_of_a_command_are_shown_at_their_times() {
    /// Thread of the record that has the command.
    const RUN_TID: u32 = u32::MAX - 3;
    const MS: u64 = 1_000_000;
    let recording = |pid: u32, run: &str, begin: u64| {
        let mut writer = Writer::default();
        writer.comm(pid, pid, "python", true, begin).mmap(pid, (0x1000, 0x2000), 0, "/lib/a.so", begin);
        writer.comm(pid, RUN_TID, run, false, begin);
        for turn in 0..10 {
            writer.sample((pid, pid), begin + turn * MS, MS, &[0x1100]);
        }
        read(&writer.file()).unwrap()
    };
    let first_slices = |runs: [&str; 2]| {
        let parts = vec![recording(10, runs[0], 1000), recording(11, runs[1], 1000 + 50 * MS)];
        let report = Report::new(Recording::merged(parts).unwrap(), None, &Options::default());
        let (data, stacks) = assert_adds_up(&report);
        let slice = data["stacks"]["slice"].as_u64().unwrap();
        [0, 1].map(|thread| {
            stacks.parts.iter().filter(|part| part[1] == thread).map(|part| part[0] * slice / MS).min().unwrap()
        })
    };
    let [first, second] = first_slices(["run=9-5-1", "run=9-5-1"]);
    assert!(first == 0 && (49..=50).contains(&second), "{first} {second}");
    assert_eq!(first_slices(["run=9-5-1", "run=9-6-1"]), [0, 0]);
    assert_eq!(first_slices(["", ""]), [0, 0]);
}
