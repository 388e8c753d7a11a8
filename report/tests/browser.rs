//! Test of the page in a real browser: `tests/browser.py` drives headless Chromium.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Writer, find_program, fixture_options, scratch_directory, skip, testdata};
use jitlisten_report::{Activity, Compilation, HotLine, Options, Recording, Report, Sample, Why, to_html};

/// Tests the page in the browser. Returns the features that were used, which depend on the recording.
fn use_page(name: &str, report: &Report, hottest: &[HotLine]) -> Option<String> {
    let (Some(_), Some(_), Some(python)) =
        (find_program("chromium"), find_program("chromedriver"), find_program("python3"))
    else {
        skip("chromium, chromium-driver and python3");
        return None;
    };
    let page = scratch_directory(name).join("page.html");
    fs::write(&page, to_html(report)).unwrap();
    if !hottest.is_empty() {
        let lines: Vec<_> = hottest.iter().map(|line| (line.position, line.self_count.weight)).collect();
        let expected = serde_json::json!({"all": report.profile.all.weight, "hottest": lines});
        fs::write(page.with_extension("json"), expected.to_string()).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser.py");
    let output = Command::new(python).arg(script).arg(&page).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
    println!("{name}: {output_text}");
    Some(output_text)
}

/// Returns two compilations of one function, during which all samples of compiling were taken.
fn compilations(report: &Report) -> Vec<Compilation> {
    let activity = |sample: &Sample| report.profile.activities.get(sample.stack).activity;
    let samples = report.recording.samples.iter().filter(|sample| activity(sample) == Activity::Compiling);
    let times: Vec<u64> = samples.clone().map(|sample| sample.time).collect();
    let thread = &report.recording.threads[samples.clone().next().unwrap().thread as usize];
    let (first, last) = (*times.iter().min().unwrap(), *times.iter().max().unwrap());
    let middle = first + (last - first) / 2;
    let compilation = |begin, end: u64| Compilation {
        function: "sides.compiled".to_owned(),
        file: "/tmp/fixture/sides.py".to_owned(),
        line: 3,
        signature: String::new(),
        host: thread.host.clone(),
        pid: thread.pid,
        tid: thread.tid,
        depth: 0,
        begin,
        lasted: end - begin,
        cpu_ns: end - begin,
        exclusive: end - begin,
        first_use: 0,
        saved: 0,
        llvm: 0,
        size: 0,
        caller: None,
        why: Why::NotCached,
        is_loop: false,
        failed: false,
        is_finished: true,
    };
    vec![compilation(first, middle), compilation(middle, last)]
}

#[test]
fn the_page_of_a_recording_works() {
    let options = Options { by_thread: true, ..fixture_options() };
    let mut report = Report::open(&testdata().join("perf.data"), &options).unwrap();
    report.recording.facts.run_queue_ns = report.profile.all.weight / 2;
    report.compilations = compilations(&report);
    if let Some(features) = use_page("browser", &report, &report.profile.hottest(10)) {
        assert!(
            features.starts_with("ok, compilations, outside, compiler, time, inlined calls, callers, search, threads;"),
            "{features}"
        );
    }
}

#[test]
fn the_strip_of_processes_filters_the_page() {
    let image = "/tmp/fixture/images/image-19001-347235/object-22.so";
    let recordings = (0..30_u32).map(|rank| {
        let (pid, mut writer) = (rank + 10, Writer::default());
        writer.comm(pid, pid, "python", true, 1);
        writer.mmap(pid, (0x7000_0000_0000, 0x7000_0000_2000), 0, image, 2);
        // The rank of the process.
        writer.comm(pid, u32::MAX - 1, &rank.to_string(), false, 3);
        for time in 0..10 + u64::from(rank) {
            writer.sample((pid, pid), 10 + time, 10_000_000, &[0x7000_0000_1000 + time, 0x7000_0000_1030]);
        }
        common::read(&writer.file()).unwrap()
    });
    let recording = Recording::merged(recordings.collect()).unwrap();
    let report = Report::new(recording, None, &Options { by_thread: true, ..fixture_options() });
    if let Some(features) = use_page("browser-processes", &report, &report.profile.hottest(10)) {
        assert!(features.contains(", processes,") || features.contains(", processes;"), "{features}");
    }
}

/// Every line of the large sources contains markup that a careless page would execute.
#[test]
fn large_and_hostile_sources_work_too() {
    let directory = scratch_directory("browser-large-root");
    let image = "/tmp/fixture/images/image-19001-347235/object-22.so";
    let mut writer = Writer::default();
    writer.comm(10, 10, "<b onclick=injected=1>", true, 1).mmap(10, (0x7000_0000_0000, 0x7000_0000_2000), 0, image, 2);
    for time in 0..100 {
        writer.sample((10, 10 + time as u32 % 3), 10 + time, 1000, &[0x7000_0000_1000 + time % 97, 0x7000_0000_1030]);
    }
    let source = directory.join("tmp/fixture/sides.py");
    fs::create_dir_all(source.parent().unwrap()).unwrap();
    let line = "total += '</script><img src=x onerror=\"window.injected=1\"><script>window.injected=1</script>'\n";
    fs::write(&source, line.repeat(2000)).unwrap();
    let mut options = Options { by_thread: true, ..fixture_options() };
    options.lookup.roots.insert(0, directory);
    let mut report = Report::new(common::read(&writer.file()).unwrap(), None, &options);
    for copy in 1..20 {
        let mut file = report.profile.files[0].clone();
        file.path = format!("{}.{copy}<img src=x onerror=injected=1>", file.path);
        report.profile.files.push(file);
        report.sources.push(report.sources[0].clone());
    }
    use_page("browser-large", &report, &[]);
}
