//! `py-spy --native` and `pystack --native` on Python -> Numba -> Python -> Numba stacks whose code lacks frame
//! pointers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::host::{Preload, Running};
use jitlisten_tests::image::with_images;
use jitlisten_tests::integration::Integration;
use jitlisten_tests::scenario;
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const NUMBA: &str = "numba-0.68.1";

fn py_spy() -> Option<PathBuf> {
    let path = integration::python(NUMBA)?.with_file_name("py-spy");
    let is_installed = path.is_file();
    if !is_installed {
        tool::skip("py-spy", "not in the virtual environment", Absence::FailsInCi);
    }
    is_installed.then_some(path)
}

/// Starts `callback.py`, with or without the library and with or without debug information, and returns the result of
/// `inspect`.
fn inspect_running<T>(preload: Preload, debug: &str, inspect: impl FnOnce(&Running<'_>) -> T) -> Option<T> {
    let host = with_images(integration::numba(NUMBA, "callback.py")?.argument("300"));
    let host = host.variable("JITLISTEN_FRAME_POINTERS", "0").variable("NUMBA_DEBUGINFO", debug);
    let mut running = host.start(preload);
    running.wait_for_line("running");
    Some(inspect(&running))
}

/// Returns true if the stack has frames with these names in this order, outermost first.
fn has_in_order(stack: &[&str], names: &[&str]) -> bool {
    let mut frames = stack.iter();
    names.iter().all(|name| frames.any(|frame| frame.contains(name)))
}

/// Frames on the path to `inner` that goes through Python.
const PATH_THROUGH_PYTHON: [&str; 6] = ["<module>", "Dispatcher_call", "outer", "between", "Dispatcher_call", "inner"];
/// Frames on the path that calls `inner` directly.
const DIRECT_PATH: [&str; 4] = ["<module>", "Dispatcher_call", "outer", "inner"];

/// Stacks with their sample counts from `py-spy record -f raw`, and the number of samples for which py-spy failed.
fn record(spy: PathBuf, running: &Running<'_>) -> Result<(Vec<(String, u64)>, u64), String> {
    let raw = PathBuf::from(format!("{}/py-spy-{}.raw", std::env::temp_dir().display(), running.pid()));
    let mut command = Command::new(spy);
    command.args(["record", "--native", "-f", "raw", "-d", "3", "-r", "50", "-o"]).arg(&raw);
    let py_spy_run = tool::run(command.args(["-p", &running.pid().to_string()]));
    let text = fs::read_to_string(&raw).unwrap_or_default();
    let _ = fs::remove_file(raw);
    let output = String::from_utf8_lossy(&[py_spy_run.stdout, py_spy_run.stderr].concat()).into_owned();
    let errors = output.split_once("Errors: ").ok_or(&output)?.1;
    let digits: String = errors.chars().take_while(char::is_ascii_digit).collect();
    let parse_stack =
        |line: &str| line.rsplit_once(' ').and_then(|(stack, count)| Some((stack.to_owned(), count.parse().ok()?)));
    Ok((text.lines().filter_map(parse_stack).collect(), digits.parse().map_err(|_| output.clone())?))
}

#[test]
fn py_spy_records_every_stack_whole() {
    for debug in ["0", "1"] {
        let Some(spy) = py_spy() else { return };
        let Some(recording) = inspect_running(Preload::Library, debug, |running| record(spy, running)) else { return };
        let (stacks, errors) = recording.unwrap_or_else(|output| panic!("py-spy: {output}"));
        assert_eq!(errors, 0, "{stacks:#?}");
        let (mut total, mut through_python, mut inner, mut with_line) = (0, 0, 0, 0);
        for (stack, count) in &stacks {
            let frames: Vec<&str> = stack.split(';').collect();
            let leaf = frames.last().copied().unwrap_or_default();
            // Samples without compiled code do not depend on the library, only on py-spy and on a Python without
            // symbols.
            let is_compiled =
                ["inner", "outer"].iter().any(|name| frames.iter().any(|frame| scenario::names_function(frame, name)));
            let is_nameless = leaf.contains("(?)") || (is_compiled && stack.contains("(?)"));
            assert!(has_in_order(&frames, &["<module>"]) && !is_nameless, "cut or without a name: {stack}");
            if scenario::names_function(leaf, "inner") {
                assert!(has_in_order(&frames, &DIRECT_PATH), "not whole: {stack}");
                inner += count;
                with_line += if leaf.contains("callback.py:") { *count } else { 0 };
                through_python += if has_in_order(&frames, &PATH_THROUGH_PYTHON) { *count } else { 0 };
            }
            total += count;
        }
        // LLVM assigns line 0 to some instructions. The time spent in them depends on the processor.
        assert!(debug == "0" || with_line * 4 >= inner, "{with_line} of {inner} have a line: {stacks:#?}");
        // py-spy stops the process for each sample. On a busy machine, most samples fall between the calls.
        assert!(total >= 30 && through_python >= 5, "{through_python} of {total} lead over Python: {stacks:#?}");
    }
}

#[test]
fn stock_stacks_are_lost() {
    let Some(spy) = py_spy() else { return };
    let Some(recording) = inspect_running(Preload::Nothing, "0", |running| record(spy, running)) else { return };
    let (stacks, _) = recording.unwrap_or_else(|output| panic!("py-spy: {output}"));
    let has_whole_stack =
        stacks.iter().any(|(stack, _)| has_in_order(&stack.split(';').collect::<Vec<_>>(), &PATH_THROUGH_PYTHON));
    assert!(!has_whole_stack, "the check must be able to say no: {stacks:#?}");
}

/// Dumps the current stack up to 20 times, until `inner` was called through Python. Returns `None` if it never was.
fn snapshot(mut read_stack: impl FnMut() -> Vec<String>) -> Option<Vec<String>> {
    let is_through_python =
        |stack: &Vec<String>| has_in_order(&stack.iter().map(String::as_str).collect::<Vec<_>>(), &PATH_THROUGH_PYTHON);
    (0..20).map(|_| read_stack()).find(is_through_python)
}

fn output_lines(command: &mut Command) -> Vec<String> {
    String::from_utf8_lossy(&tool::run(command).stdout).lines().map(str::to_owned).collect()
}

#[test]
fn py_spy_dumps_names_and_lines() {
    let Some(spy) = py_spy() else { return };
    let dump = |running: &Running<'_>| {
        snapshot(|| {
            let mut lines =
                output_lines(Command::new(&spy).args(["dump", "--native", "-p", &running.pid().to_string()]));
            lines.reverse();
            lines
        })
    };
    let Some(stack) = inspect_running(Preload::Library, "1", dump) else { return };
    let stack = stack.expect("one dump in twenty shows Python -> Numba -> Python -> Numba");
    let has_line =
        |name: &str| stack.iter().any(|frame| scenario::names_function(frame, name) && frame.contains("(callback.py:"));
    assert!(has_line("outer") && has_line("inner"), "{stack:#?}");
}

/// Checks only the compiled frames, because from Python 3.14 on, py-spy 0.4.3 misplaces Python's own frames.
#[test]
fn py_spy_dumps_the_chain() {
    for preload in [Preload::Library, Preload::Nothing] {
        let (Some(spy), Some(host)) = (py_spy(), Integration::Numba(NUMBA).chain(300, &[])) else { return };
        let host = with_images(host);
        let mut running = host.start(preload);
        running.wait_for_line("running");
        let dump = || output_lines(Command::new(&spy).args(["dump", "--native", "-p", &running.pid().to_string()]));
        let chain = ["gamma", "beta", "alpha", "Dispatcher_call"];
        let whole_stack = (0..5)
            .map(|_| dump())
            .find(|dump| has_in_order(&dump.iter().map(String::as_str).collect::<Vec<_>>(), &chain));
        assert_eq!(whole_stack.is_some(), preload == Preload::Library, "{whole_stack:#?}");
    }
}

#[test]
fn pystack_shows_names_and_lines() {
    let pystack = paths::venv("tools").join("bin/pystack");
    if !pystack.is_file() {
        return tool::skip("pystack", "no virtual environment with it; run ci/setup.sh", Absence::FailsInCi);
    }
    let read_stack = |running: &Running<'_>| {
        snapshot(|| output_lines(Command::new(&pystack).args(["remote", "--native", &running.pid().to_string()])))
    };
    let Some(frames) = inspect_running(Preload::Library, "1", read_stack) else { return };
    let frames = frames.expect("one view in twenty shows Python -> Numba -> Python -> Numba");
    let has_line = |name: &str| {
        frames
            .iter()
            .any(|frame| frame.contains("(C) File") && frame.contains("callback.py\", line ") && frame.contains(name))
    };
    assert!(has_line(" in __main__.outer(") && has_line(" in __main__.inner("), "{frames:#?}");
    let stock = inspect_running(Preload::Nothing, "1", |running| {
        let mut stacks = (0..3)
            .map(|_| output_lines(Command::new(&pystack).args(["remote", "--native", &running.pid().to_string()])));
        stacks.any(|stack| stack.iter().any(|frame| frame.contains("(C) File") && frame.contains("inner(")))
    });
    assert_eq!(stock, Some(false), "the check must be able to say no");
}

/// llvmlite runs an object that clang compiled with inlined calls; py-spy must show them as frames.
#[test]
fn py_spy_shows_inlined_calls_as_frames() {
    let (Some(spy), Some(host)) = (py_spy(), integration::numba(NUMBA, "bitcode.py")) else { return };
    let file = host.scratch("inlined.bc");
    let Some(()) = integration::bitcode(14, "inlined.c", &file) else { return };
    let host = with_images(host.argument(file).argument("outer").argument("300"));
    let mut running = host.variable("JITLISTEN_FRAME_POINTERS", "0");
    running = running.variable("PYTHONUNBUFFERED", "1");
    let mut running = running.start(Preload::Library);
    running.wait_for_line("running");
    let frames = ["hot (inlined.c:", "middle (inlined.c:", "outer (inlined.c:", "run (bitcode.py:"];
    let dump = || output_lines(Command::new(&spy).args(["dump", "--native", "-p", &running.pid().to_string()]));
    let mut last_dump = Vec::new();
    let has_whole_stack = (0..20).any(|_| {
        last_dump = dump();
        has_in_order(&last_dump.iter().map(String::as_str).collect::<Vec<_>>(), &frames)
    });
    assert!(has_whole_stack, "{last_dump:#?}");
}
