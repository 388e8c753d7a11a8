//! Python functions in recordings: complete stacks, names, lines and shares of time, with each installed CPython
//! release.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::sampled::{WeightedSample, assert_complete, counters, read, sigma, with_recording};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const RELEASES: [&str; 4] = ["numba-0.56.4", "numba-0.68.1", "numba-0.68.1-python-3.12", "numba-0.68.1-python-3.13"];

/// Records `python_frames.py`. Returns the share that the program itself measured, and the host with the recording.
fn run(venv: &str, seconds: &str) -> Option<(f64, Host)> {
    tool::require("perf", Absence::FailsInCi)?;
    let python = integration::python(venv)?;
    let host = Host::new(python, "python-frames").argument(paths::host("python_frames.py")).argument(seconds);
    let (host, _) = with_recording(host, "");
    let outcome = host.run(Preload::Library).expect_success();
    let share = String::from_utf8_lossy(&outcome.stdout).trim().parse().expect("a share");
    Some((share, host))
}

fn is_python(frame: &str, name: &str) -> bool {
    frame.strip_prefix("py::").and_then(|rest| rest.split_once(':')).is_some_and(|(function, _)| function == name)
}

fn samples_in(samples: &[WeightedSample], name: &str) -> Vec<WeightedSample> {
    samples.iter().filter(|sample| sample.frames.iter().any(|frame| is_python(frame, name))).cloned().collect()
}

fn total_ns(samples: &[WeightedSample]) -> f64 {
    samples.iter().map(|sample| sample.period as f64).sum()
}

/// Share of `long` in the time of `long` and `short`, in percent.
fn share_of_long(samples: &[WeightedSample]) -> f64 {
    let (long_ns, short_ns) = (total_ns(&samples_in(samples, "long")), total_ns(&samples_in(samples, "short")));
    long_ns / (long_ns + short_ns) * 100.0
}

/// Tolerance of a measured share, in percentage points: four sigma, but at least `min_points`.
fn tolerance(samples: &[WeightedSample], min_points: f64) -> f64 {
    let long_and_short: Vec<WeightedSample> = [samples_in(samples, "long"), samples_in(samples, "short")].concat();
    (4.0 * sigma(&long_and_short)).max(min_points)
}

#[test]
fn shares_are_true() {
    let Some((truth, host)) = run("numba-0.68.1", "17") else { return };
    let samples = read(&host.scratch("f.data"));
    let share = share_of_long(&samples);
    assert!(
        (share - truth).abs() < tolerance(&samples, 3.0),
        "{share} % instead of {truth} in {} samples",
        samples.len()
    );
}

#[test]
fn stacks_of_every_release_are_whole() {
    for venv in RELEASES {
        let Some((truth, host)) = run(venv, "3") else { continue };
        let data = host.scratch("f.data");
        let samples = read(&data);
        let main_samples = samples_in(&samples, "main");
        assert!(
            main_samples.len() * 100 >= samples.len() * 80,
            "{venv}: {} of {} below main",
            main_samples.len(),
            samples.len()
        );
        assert_complete(&main_samples, 99.5);
        assert_eq!(counters(&data).truncated, 0, "{venv}");
        let share = share_of_long(&samples);
        let max_error = tolerance(&samples, 8.0);
        assert!((share - truth).abs() < max_error, "{venv}: {share} % instead of {truth} in {} samples", samples.len());
        // Python frames replace the interpreter's evaluator frames, except in an evaluator's first and last
        // instructions.
        let has_evaluator =
            |sample: &&WeightedSample| sample.frames.iter().any(|frame| frame.contains("EvalFrameDefault"));
        let evaluator_count = main_samples.iter().filter(has_evaluator).count();
        assert!(
            evaluator_count * 100 <= main_samples.len() * 3 + 300,
            "{venv}: {evaluator_count} of {} have an evaluator",
            main_samples.len()
        );
        for (callee, caller) in [("burn", "long"), ("key", "ugly"), ("generator", "ugly"), ("recursive", "ugly")] {
            let matches = samples_in(&samples_in(&samples, callee), caller);
            assert!(!matches.is_empty(), "{venv}: no {callee} below {caller}");
        }
        let recursion_depths = main_samples
            .iter()
            .map(|sample| sample.frames.iter().filter(|frame| is_python(frame, "recursive")).count());
        assert_eq!(recursion_depths.max(), Some(31), "{venv}");
    }
}

/// Each `short_lived_N` reuses the memory of the previous code object.
#[test]
fn freed_code_objects_keep_their_own_names() {
    for venv in RELEASES {
        let Some((_, host)) = run(venv, "3") else { continue };
        let frame_lines = lines(&host.scratch("f.data"));
        let short_lived: Vec<_> = frame_lines.iter().filter(|(name, _)| name.starts_with("py::short_lived_")).collect();
        assert!(!short_lived.is_empty(), "{venv}: of {} frames none", frame_lines.len());
        for (name, line) in short_lived {
            let number: u32 = name.trim_start_matches("py::short_lived_").split(':').next().unwrap().parse().unwrap();
            // The first instruction has the line of `def`.
            let definition = number % 50 * 2 + 1;
            let has_own_line = [definition, definition + 1].map(|line| format!("<string>:{line}")).contains(line);
            assert!(has_own_line, "{venv}: {name} at {line}");
        }
    }
}

/// A forked child inherits the interpreter but writes its own names. A child without a sample creates no image
/// directory, and no recording unless it might become another user.
#[test]
fn children_of_a_fork() {
    let Some(_) = tool::require("perf", Absence::FailsInCi) else { return };
    let (mut tested, mut unsampled) = (0, 0);
    for venv in RELEASES {
        let Some(python) = integration::python(venv) else { continue };
        let host = Host::new(python, "python-children").argument(paths::host("python_children.py")).argument("0.3");
        let (host, data) = with_recording(host, ",children");
        let outcome = host.run(Preload::Library).expect_success();
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        let [works, idles] = &text.lines().collect::<Vec<_>>()[..] else { panic!("{venv}: {text}") };
        let samples = read(&host.scratch(&format!("f.data.{works}")));
        let (all_ns, named_ns) = (total_ns(&samples), total_ns(&samples_in(&samples_in(&samples, "work"), "main")));
        assert!(
            (0.2e9..0.4e9).contains(&all_ns) && named_ns > 0.95 * all_ns,
            "{venv}: {named_ns} of {all_ns} ns have names"
        );
        // The first sample may come at any time within the first period, so even the idle child may have one.
        let (file, images) =
            ["", ".images"].map(|suffix| data.with_file_name(format!("f.data.{idles}{suffix}"))).into();
        let is_sampled = file.exists() && !read(&file).is_empty();
        assert_eq!(file.exists(), is_sampled, "{venv}");
        assert!(is_sampled || !images.exists(), "{venv}");
        (tested, unsampled) = (tested + 1, unsampled + u32::from(!is_sampled));
    }
    assert!(tested == 0 || unsampled > 0, "no child without a sample");
}

/// Runs a million functions, each with its own name and file, mostly at the same addresses. A stale name would appear
/// twice, and the memory that the sampler uses for names must stay bounded.
#[test]
fn functions_that_live_for_one_call_take_no_memory() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let host = Host::new(python, "lambdas").argument(paths::host("lambdas.py")).argument("1000000");
    let (host, data) = with_recording(host, "");
    let outcome = host.run(Preload::Library).expect_success();
    let growth_kb: i64 = String::from_utf8_lossy(&outcome.stdout).trim().parse().expect("kilobytes");
    assert!(growth_kb < 16 << 10, "{growth_kb} kB");
    let mut numbers = Vec::new();
    for frame in read(&data).iter().flat_map(|sample| &sample.frames) {
        if let Some((number, file)) = frame.strip_prefix("py::lived_").and_then(|rest| rest.split_once(':')) {
            assert_eq!(file, format!("file_{number}.py"));
            numbers.push(number.parse::<u32>().unwrap());
        }
    }
    assert!(numbers.len() >= 20 && numbers.is_sorted_by(|previous, next| previous < next), "{numbers:?}");
}

#[test]
fn lines_are_those_of_the_source() {
    let source = std::fs::read_to_string(paths::host("python_frames.py")).expect("the program");
    let find_line = |text: &str| source.lines().position(|line| line.trim() == text).expect("a line") + 1;
    for venv in RELEASES {
        let Some((_, host)) = run(venv, "2") else { continue };
        let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, line) in lines(&host.scratch("f.data")) {
            by_name.entry(name).or_default().push(line);
        }
        let lines_of_function = |name: &str| {
            let matches = by_name.iter().filter(|(full, _)| is_python(full, name)).flat_map(|(_, lines)| lines.clone());
            matches.collect::<Vec<String>>()
        };
        for (name, text) in
            [("long", "return burn(6000)"), ("short", "return burn(2000)"), ("key", "return burn(500) - value")]
        {
            let expected = format!("python_frames.py:{}", find_line(text));
            let (matches, total) = (lines_of_function(name), lines_of_function(name).len());
            let correct_count = matches.iter().filter(|line| **line == expected).count();
            assert!(
                total > 0 && correct_count * 100 >= total * 90,
                "{venv}: {name}: {matches:?} instead of {expected}"
            );
        }
    }
}

/// Names and source lines of all Python frames in a recording.
fn lines(data: &Path) -> Vec<(String, String)> {
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "--max-stack", "1024", "-F", "ip,sym,srcline", "-i"]).arg(data);
    let perf_run = tool::run(&mut command);
    let text = String::from_utf8_lossy(&perf_run.stdout).into_owned();
    let mut lines = text.lines().map(str::trim).peekable();
    let mut frame_lines = Vec::new();
    while let Some(line) = lines.next() {
        if let Some((_, name)) = line.split_once(' ').filter(|(_, name)| name.starts_with("py::")) {
            frame_lines.push((name.trim().to_owned(), lines.peek().map_or(String::new(), |line| (*line).to_owned())));
        }
    }
    frame_lines
}

/// Records a foreign thread, a second interpreter in two threads, and a deep recursion.
#[test]
fn frames_of_every_interpreter_and_thread_are_found() {
    for venv in RELEASES {
        let Some(python) = integration::python(venv) else { continue };
        let host = Host::new(python, "interpreters").argument(paths::host("interpreters.py")).argument("0.5");
        let (host, data) = with_recording(host, "");
        host.run(Preload::Library).expect_success();
        let burning_samples = samples_in(&read(&data), "burn");
        for deep in ["deep", "between"] {
            assert_complete(&samples_in(&burning_samples, deep), 99.5);
        }
        // Threads end in functions without symbols in Debian 13's C library.
        let (samples, incomplete) = (counters(&data).samples, counters(&data).incomplete);
        assert!(incomplete * 100 <= samples + 300, "{venv}: {incomplete} of {samples} are incomplete");
        let callers = |sample: &WeightedSample, function: &str| {
            let frames = sample.frames.iter().skip_while(|frame| !is_python(frame, "burn")).skip(1);
            frames.take_while(|frame| is_python(frame, function)).count()
        };
        let between = burning_samples
            .iter()
            .map(|sample| sample.frames.iter().filter(|frame| is_python(frame, "between")).count());
        assert_eq!((between.max(), counters(&data).truncated), (Some(600), 0), "{venv}");
        // The test compares the largest numbers of callers, because samples in a function's first and last instructions
        // may lack callers.
        let max_callers = |function: &str| burning_samples.iter().map(|sample| callers(sample, function)).max();
        assert_eq!(
            (max_callers("foreign"), max_callers("inside"), max_callers("deep")),
            (Some(1), Some(1), Some(5000)),
            "{venv}"
        );
        // Of the main thread and of another one, 0.5 s each.
        let inside_ns = total_ns(&samples_in(&burning_samples, "inside"));
        assert!((0.85e9..1.15e9).contains(&inside_ns), "{venv}: {inside_ns} ns");
        let has_known_caller = |sample: &&WeightedSample| {
            ["foreign", "inside", "deep", "between"].iter().any(|name| callers(sample, name) != 0)
        };
        let with_known_caller = burning_samples.iter().filter(has_known_caller).count();
        assert!(
            with_known_caller * 100 + 300 >= burning_samples.len() * 99,
            "{venv}: {with_known_caller} of {}",
            burning_samples.len()
        );
    }
}

/// Functions of `awaiting.py` that called `name` in a sample, innermost first.
fn callers(sample: &WeightedSample, name: &str) -> Vec<String> {
    let program_function = |frame: &String| {
        let (name, file) = frame.strip_prefix("py::")?.split_once(':')?;
        file.ends_with("awaiting.py").then(|| name.to_owned())
    };
    let frames = sample.frames.iter().filter_map(program_function);
    frames.skip_while(|frame| frame != name).skip(1).filter(|frame| frame != "<module>").collect()
}

/// The caller of an asyncio task is the function that awaits the task. Since Python 3.14, asyncio records that
/// function.
#[test]
#[ignore = "needs Python 3.14 or newer: ci/systems.sh sid"]
fn the_caller_of_a_task_is_the_function_that_awaits_it() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let version = tool::run(Command::new(&python).args(["-c", "import sys; print(sys.version_info >= (3, 14))"]));
    if version.stdout != b"True\n" {
        return tool::skip("tasks", "Python 3.14 notes who awaits a task", Absence::IsAllowed);
    }
    for eager in [false, true] {
        let host = Host::new(&python, "awaiting").argument(paths::host("awaiting.py")).argument("3");
        let (host, data) = with_recording(if eager { host.argument("eager") } else { host }, "");
        host.run(Preload::Library).expect_success();
        let samples = read(&data);
        assert_complete(&samples_in(&samples, "main"), 99.5);
        for (kind, expected) in [
            ("await", &["leaf", "by_await", "main"][..]),
            ("gather", &["leaf", "inner_gather", "by_gather", "main"]),
            ("group", &["leaf", "by_group", "main"]),
            ("both", &["leaf", "by_group_and_await", "main"]),
            ("chain", &["leaf", "link", "by_chain", "main"]),
            ("two", &["leaf"]),
        ] {
            let name = format!("work_for_{kind}");
            let samples = samples_in(&samples, &name);
            let wrong_callers: Vec<_> =
                samples.iter().map(|sample| callers(sample, &name)).filter(|sample| sample != expected).collect();
            assert!(samples.len() > 5, "{kind}: {}", samples.len());
            assert!(
                wrong_callers.is_empty(),
                "{kind}, eager {eager}: {} of {}: {wrong_callers:?}",
                wrong_callers.len(),
                samples.len()
            );
            let samples_under_loop = samples
                .iter()
                .filter(|sample| sample.frames.iter().any(|frame| is_python(frame, "BaseEventLoop._run_once")));
            assert_eq!(samples_under_loop.count(), samples.len(), "{kind}");
        }
    }
}
