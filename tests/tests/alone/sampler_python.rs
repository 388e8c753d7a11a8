//! Functions that CPython interprets: whole stacks, names, lines and shares, in each release that there is.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::sampled::{Weighed, assert_complete, counter, read, recorded, sigma};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const RELEASES: [&str; 4] = ["numba-0.56.4", "numba-0.68.1", "numba-0.68.1-python-3.12", "numba-0.68.1-python-3.13"];

/// What the program says of itself, and the file.
fn run(venv: &str, seconds: &str) -> Option<(f64, Host)> {
    tool::require("perf", Absence::FailsInCi)?;
    let python = integration::python(venv)?;
    let host = Host::new(python, "python-frames").argument(paths::host("python_frames.py")).argument(seconds);
    let (host, _) = recorded(host, "");
    let ended = host.run(Preload::Library).well();
    let share = String::from_utf8_lossy(&ended.stdout).trim().parse().expect("a share");
    Some((share, host))
}

fn is_python(frame: &str, name: &str) -> bool {
    frame.strip_prefix("py::").and_then(|rest| rest.split_once(':')).is_some_and(|(function, _)| function == name)
}

fn below(samples: &[Weighed], name: &str) -> Vec<Weighed> {
    samples.iter().filter(|sample| sample.frames.iter().any(|frame| is_python(frame, name))).cloned().collect()
}

fn time(samples: &[Weighed]) -> f64 {
    samples.iter().map(|sample| sample.period as f64).sum()
}

/// Of `long` and `short`, what is below the first.
fn share_of_long(samples: &[Weighed]) -> f64 {
    let (long, short) = (time(&below(samples, "long")), time(&below(samples, "short")));
    long / (long + short) * 100.0
}

/// By how many points that may be off: four sigma, and at least `least`.
fn off_by_chance(samples: &[Weighed], least: f64) -> f64 {
    let both: Vec<Weighed> = [below(samples, "long"), below(samples, "short")].concat();
    (4.0 * sigma(&both)).max(least)
}

#[test]
fn shares_are_true() {
    let Some((truth, host)) = run("numba-0.68.1", "17") else { return };
    let samples = read(&host.scratch("f.data"));
    let share = share_of_long(&samples);
    assert!(
        (share - truth).abs() < off_by_chance(&samples, 3.0),
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
        let main = below(&samples, "main");
        assert!(main.len() * 100 >= samples.len() * 80, "{venv}: {} of {} below main", main.len(), samples.len());
        assert_complete(&main, 99.5);
        assert_eq!(counter(&data, "truncated"), 0, "{venv}");
        let share = share_of_long(&samples);
        let most = off_by_chance(&samples, 8.0);
        assert!((share - truth).abs() < most, "{venv}: {share} % instead of {truth} in {} samples", samples.len());
        // Evaluators are replaced, but in their first and last instructions.
        let evaluators = |sample: &&Weighed| sample.frames.iter().any(|frame| frame.contains("EvalFrameDefault"));
        let left = main.iter().filter(evaluators).count();
        assert!(left * 100 <= main.len() * 3 + 300, "{venv}: {left} of {} have an evaluator", main.len());
        for (callee, caller) in [("burn", "long"), ("key", "ugly"), ("generator", "ugly"), ("recursive", "ugly")] {
            let found = below(&below(&samples, callee), caller);
            assert!(!found.is_empty(), "{venv}: no {callee} below {caller}");
        }
        let deepest =
            main.iter().map(|sample| sample.frames.iter().filter(|frame| is_python(frame, "recursive")).count());
        assert_eq!(deepest.max(), Some(31), "{venv}");
    }
}

/// Each `short_lived_N` takes the memory of the one before it.
#[test]
fn code_objects_that_are_gone_have_their_own_names() {
    for venv in RELEASES {
        let Some((_, host)) = run(venv, "3") else { continue };
        let lines = lines(&host.scratch("f.data"));
        let forgotten: Vec<_> = lines.iter().filter(|(name, _)| name.starts_with("py::short_lived_")).collect();
        assert!(!forgotten.is_empty(), "{venv}: of {} frames none", lines.len());
        for (name, line) in forgotten {
            let number: u32 = name.trim_start_matches("py::short_lived_").split(':').next().unwrap().parse().unwrap();
            assert_eq!(*line, format!("<string>:{}", number % 50 + 2), "{venv}: {name}");
        }
    }
}

/// They have their parent's interpreter, and names of their own. A child without a sample makes no directory for them,
/// and no file unless it might become another user.
#[test]
fn children_of_a_fork() {
    let Some(_) = tool::require("perf", Absence::FailsInCi) else { return };
    let (mut ran, mut without) = (0, 0);
    for venv in RELEASES {
        let Some(python) = integration::python(venv) else { continue };
        let host = Host::new(python, "python-children").argument(paths::host("python_children.py")).argument("0.3");
        let (host, data) = recorded(host, ",children");
        let ended = host.run(Preload::Library).well();
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let [works, idles] = &text.lines().collect::<Vec<_>>()[..] else { panic!("{venv}: {text}") };
        let samples = read(&host.scratch(&format!("f.data.{works}")));
        let (all, named) = (time(&samples), time(&below(&below(&samples, "work"), "main")));
        assert!((0.2e9..0.4e9).contains(&all) && named > 0.95 * all, "{venv}: {named} of {all} ns have names");
        // The first sample comes at any time of the first period, so this child may have one, too.
        let (file, images) = ["", ".images"].map(|end| data.with_file_name(format!("f.data.{idles}{end}"))).into();
        let is_sampled = file.exists() && !read(&file).is_empty();
        assert_eq!(file.exists(), is_sampled, "{venv}");
        assert!(is_sampled || !images.exists(), "{venv}");
        (ran, without) = (ran + 1, without + u32::from(!is_sampled));
    }
    assert!(ran == 0 || without > 0, "no child without a sample");
}

/// A million, each with a name and a file of its own, mostly at the same addresses: a name that is not the running
/// function's would come twice. What is remembered of them is bounded.
#[test]
fn functions_that_live_for_one_call_take_no_memory() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let host = Host::new(python, "lambdas").argument(paths::host("lambdas.py")).argument("1000000");
    let (host, data) = recorded(host, "");
    let ended = host.run(Preload::Library).well();
    let grown: i64 = String::from_utf8_lossy(&ended.stdout).trim().parse().expect("kilobytes");
    assert!(grown < 16 << 10, "{grown} kB");
    let mut numbers = Vec::new();
    for frame in read(&data).iter().flat_map(|sample| &sample.frames) {
        if let Some((number, file)) = frame.strip_prefix("py::lived_").and_then(|rest| rest.split_once(':')) {
            assert_eq!(file, format!("file_{number}.py"));
            numbers.push(number.parse::<u32>().unwrap());
        }
    }
    assert!(numbers.len() >= 20 && numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
}

#[test]
fn lines_are_those_of_the_source() {
    let source = std::fs::read_to_string(paths::host("python_frames.py")).expect("the program");
    let line_of = |text: &str| source.lines().position(|line| line.trim() == text).expect("a line") + 1;
    for venv in RELEASES {
        let Some((_, host)) = run(venv, "2") else { continue };
        let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, line) in lines(&host.scratch("f.data")) {
            by_name.entry(name).or_default().push(line);
        }
        let of = |name: &str| {
            let found = by_name.iter().filter(|(full, _)| is_python(full, name)).flat_map(|(_, lines)| lines.clone());
            found.collect::<Vec<String>>()
        };
        for (name, text) in
            [("long", "return burn(6000)"), ("short", "return burn(2000)"), ("key", "return burn(500) - value")]
        {
            let expected = format!("python_frames.py:{}", line_of(text));
            let (found, all) = (of(name), of(name).len());
            let right = found.iter().filter(|line| **line == expected).count();
            assert!(all > 0 && right * 100 >= all * 90, "{venv}: {name}: {found:?} instead of {expected}");
        }
    }
}

/// Names and lines of all frames of Python.
fn lines(data: &Path) -> Vec<(String, String)> {
    let mut command = Command::new("perf");
    command.args(["script", "--no-inline", "--max-stack", "1024", "-F", "ip,sym,srcline", "-i"]).arg(data);
    let done = tool::run(&mut command);
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    let mut lines = text.lines().map(str::trim).peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if let Some((_, name)) = line.split_once(' ').filter(|(_, name)| name.starts_with("py::")) {
            found.push((name.trim().to_owned(), lines.peek().map_or(String::new(), |line| (*line).to_owned())));
        }
    }
    found
}

/// A foreign thread, a second interpreter in two threads, and a deep recursion.
#[test]
fn frames_of_every_interpreter_and_thread_are_found() {
    for venv in RELEASES {
        let Some(python) = integration::python(venv) else { continue };
        let host = Host::new(python, "interpreters").argument(paths::host("interpreters.py")).argument("0.5");
        let (host, data) = recorded(host, "");
        host.run(Preload::Library).well();
        let burning = below(&read(&data), "burn");
        for deep in ["deep", "between"] {
            assert_complete(&below(&burning, deep), 99.5);
        }
        // Threads end in functions that the C library of Debian 13 has no names of.
        let (samples, incomplete) = (counter(&data, "samples"), counter(&data, "incomplete"));
        assert!(incomplete * 100 <= samples + 300, "{venv}: {incomplete} of {samples} are incomplete");
        let callers = |sample: &Weighed, wanted: &str| {
            let frames = sample.frames.iter().skip_while(|frame| !is_python(frame, "burn")).skip(1);
            frames.take_while(|frame| is_python(frame, wanted)).count()
        };
        let between = burning.iter().map(|one| one.frames.iter().filter(|frame| is_python(frame, "between")).count());
        assert_eq!((between.max(), counter(&data, "truncated")), (Some(600), 0), "{venv}");
        // But in the first and last instructions of a function.
        let most = |wanted: &str| burning.iter().map(|sample| callers(sample, wanted)).max();
        assert_eq!((most("foreign"), most("inside"), most("deep")), (Some(1), Some(1), Some(5000)), "{venv}");
        let known =
            |sample: &&Weighed| ["foreign", "inside", "deep", "between"].iter().any(|name| callers(sample, name) != 0);
        let found = burning.iter().filter(known).count();
        assert!(found * 100 + 300 >= burning.len() * 99, "{venv}: {found} of {}", burning.len());
    }
}

/// Functions of the program that call `name` in a sample, the innermost first.
fn callers(sample: &Weighed, name: &str) -> Vec<String> {
    let own = |frame: &String| {
        let (name, file) = frame.strip_prefix("py::")?.split_once(':')?;
        file.ends_with("awaiting.py").then(|| name.to_owned())
    };
    let frames = sample.frames.iter().filter_map(own);
    frames.skip_while(|frame| frame != name).skip(1).filter(|frame| frame != "<module>").collect()
}

/// What awaits a task calls it. From 3.14 on, asyncio notes who does.
#[test]
#[ignore = "needs Python 3.14 or newer: ci/systems.sh sid"]
fn tasks_are_called_by_those_that_await_them() {
    let Some(python) = integration::python("numba-0.68.1") else { return };
    let version = tool::run(Command::new(&python).args(["-c", "import sys; print(*sys.version_info[:2])"]));
    if String::from_utf8_lossy(&version.stdout).trim().rsplit(' ').next().is_none_or(|minor| minor < "14") {
        return tool::skip("tasks", "Python 3.14 notes who awaits a task", Absence::IsAllowed);
    }
    for eager in [false, true] {
        let host = Host::new(&python, "awaiting").argument(paths::host("awaiting.py")).argument("3");
        let (host, data) = recorded(if eager { host.argument("eager") } else { host }, "");
        host.run(Preload::Library).well();
        let samples = read(&data);
        assert_complete(&below(&samples, "main"), 99.5);
        for (kind, expected) in [
            ("await", &["leaf", "by_await", "main"][..]),
            ("gather", &["leaf", "inner_gather", "by_gather", "main"]),
            ("group", &["leaf", "by_group", "main"]),
            ("both", &["leaf", "by_group_and_await", "main"]),
            ("chain", &["leaf", "link", "by_chain", "main"]),
            ("two", &["leaf"]),
        ] {
            let name = format!("work_for_{kind}");
            let samples = below(&samples, &name);
            let wrong: Vec<_> = samples.iter().map(|one| callers(one, &name)).filter(|one| one != expected).collect();
            assert!(samples.len() > 5, "{kind}: {}", samples.len());
            assert!(wrong.is_empty(), "{kind}, eager {eager}: {} of {}: {wrong:?}", wrong.len(), samples.len());
            let under_loop =
                samples.iter().filter(|one| one.frames.iter().any(|frame| is_python(frame, "BaseEventLoop._run_once")));
            assert_eq!(under_loop.count(), samples.len(), "{kind}");
        }
    }
}
