//! `py-spy --native` and `pystack --native` on Python -> Numba -> Python -> Numba, where the code has no frame
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
    let spy = integration::python(NUMBA)?.with_file_name("py-spy");
    let here = spy.is_file();
    if !here {
        tool::skip("py-spy", "not in the virtual environment", Absence::FailsInCi);
    }
    here.then_some(spy)
}

/// Starts `callback.py`, with or without the library and debug information, lets `look` have it, returns what that
/// found.
fn watch<T>(preload: Preload, debug: &str, look: impl FnOnce(&Running<'_>) -> T) -> Option<T> {
    let host = with_images(integration::numba(NUMBA, "callback.py")?.argument("300"));
    let host = host.variable("JITLISTEN_FRAME_POINTERS", "0").variable("NUMBA_DEBUGINFO", debug);
    let mut running = host.start(preload);
    running.wait_for_line("running");
    Some(look(&running))
}

/// Whether these are among the frames of a stack, outermost first, in this order.
fn in_turn(stack: &[&str], names: &[&str]) -> bool {
    let mut frames = stack.iter();
    names.iter().all(|name| frames.any(|frame| frame.contains(name)))
}

/// Both ways to `inner`: over Python, and directly.
const OVER_PYTHON: [&str; 6] = ["<module>", "Dispatcher_call", "outer", "between", "Dispatcher_call", "inner"];
const DIRECTLY: [&str; 4] = ["<module>", "Dispatcher_call", "outer", "inner"];

/// Stacks as `py-spy record -f raw` writes them, with the samples of each, and how many samples made no sense to it.
fn record(spy: PathBuf, running: &Running<'_>) -> Result<(Vec<(String, u64)>, u64), String> {
    let raw = PathBuf::from(format!("{}/py-spy-{}.raw", std::env::temp_dir().display(), running.pid()));
    let mut command = Command::new(spy);
    command.args(["record", "--native", "-f", "raw", "-d", "3", "-r", "50", "-o"]).arg(&raw);
    let done = tool::run(command.args(["-p", &running.pid().to_string()]));
    let text = fs::read_to_string(&raw).unwrap_or_default();
    let _ = fs::remove_file(raw);
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    let errors = said.split_once("Errors: ").ok_or(&said)?.1;
    let digits: String = errors.chars().take_while(char::is_ascii_digit).collect();
    let stack =
        |line: &str| line.rsplit_once(' ').and_then(|(stack, count)| Some((stack.to_owned(), count.parse().ok()?)));
    Ok((text.lines().filter_map(stack).collect(), digits.parse().map_err(|_| said.clone())?))
}

#[test]
fn py_spy_records_every_stack_whole() {
    for debug in ["0", "1"] {
        let Some(spy) = py_spy() else { return };
        let Some(recorded) = watch(Preload::Library, debug, |running| record(spy, running)) else { return };
        let (stacks, errors) = recorded.unwrap_or_else(|said| panic!("py-spy: {said}"));
        assert_eq!(errors, 0, "{stacks:#?}");
        let (mut all, mut over_python, mut inner, mut with_line) = (0, 0, 0, 0);
        for (stack, count) in &stacks {
            let frames: Vec<&str> = stack.split(';').collect();
            let leaf = frames.last().copied().unwrap_or_default();
            // Samples with no compiled code in them are between py-spy and a Python without symbols.
            let compiled =
                ["inner", "outer"].iter().any(|name| frames.iter().any(|frame| scenario::names(frame, name)));
            let nameless = leaf.contains("(?)") || (compiled && stack.contains("(?)"));
            assert!(in_turn(&frames, &["<module>"]) && !nameless, "cut or without a name: {stack}");
            if scenario::names(leaf, "inner") {
                assert!(in_turn(&frames, &DIRECTLY), "not whole: {stack}");
                inner += count;
                with_line += if leaf.contains("callback.py:") { *count } else { 0 };
                over_python += if in_turn(&frames, &OVER_PYTHON) { *count } else { 0 };
            }
            all += count;
        }
        // LLVM gives some instructions line 0, what belongs to none; which ones, and whether they are hot, is the
        // processor's.
        assert!(debug == "0" || with_line * 4 >= inner, "{with_line} of {inner} have a line: {stacks:#?}");
        // On a busy machine py-spy, which stops the process for each sample, meets it mostly between the calls.
        assert!(all >= 30 && over_python >= 5, "{over_python} of {all} lead over Python: {stacks:#?}");
    }
}

#[test]
fn stock_stacks_are_lost() {
    let Some(spy) = py_spy() else { return };
    let Some(recorded) = watch(Preload::Nothing, "0", |running| record(spy, running)) else { return };
    let (stacks, _) = recorded.unwrap_or_else(|said| panic!("py-spy: {said}"));
    let whole = stacks.iter().any(|(stack, _)| in_turn(&stack.split(';').collect::<Vec<_>>(), &OVER_PYTHON));
    assert!(!whole, "the check must be able to say no: {stacks:#?}");
}

/// Runs a tool that shows the process as it is in one moment, until it is in `inner` over Python. `None` when it never
/// is.
fn snapshot(mut show: impl FnMut() -> Vec<String>) -> Option<Vec<String>> {
    let over_python =
        |stack: &Vec<String>| in_turn(&stack.iter().map(String::as_str).collect::<Vec<_>>(), &OVER_PYTHON);
    (0..20).map(|_| show()).find(over_python)
}

fn lines_of(command: &mut Command) -> Vec<String> {
    String::from_utf8_lossy(&tool::run(command).stdout).lines().map(str::to_owned).collect()
}

#[test]
fn py_spy_dumps_names_and_lines() {
    let Some(spy) = py_spy() else { return };
    let dump = |running: &Running<'_>| {
        snapshot(|| {
            let mut lines = lines_of(Command::new(&spy).args(["dump", "--native", "-p", &running.pid().to_string()]));
            lines.reverse();
            lines
        })
    };
    let Some(stack) = watch(Preload::Library, "1", dump) else { return };
    let stack = stack.expect("one dump in twenty shows Python -> Numba -> Python -> Numba");
    let with_line =
        |name: &str| stack.iter().any(|frame| scenario::names(frame, name) && frame.contains("(callback.py:"));
    assert!(with_line("outer") && with_line("inner"), "{stack:#?}");
}

/// The chain alone. Where Python's own frames belong, py-spy 0.4.3 does not know from Python 3.14 on.
#[test]
fn py_spy_dumps_the_chain() {
    for preload in [Preload::Library, Preload::Nothing] {
        let (Some(spy), Some(host)) = (py_spy(), Integration::Numba(NUMBA).chain(300, &[])) else { return };
        let host = with_images(host);
        let mut running = host.start(preload);
        running.wait_for_line("running");
        let dump = || lines_of(Command::new(&spy).args(["dump", "--native", "-p", &running.pid().to_string()]));
        let chain = ["gamma", "beta", "alpha", "Dispatcher_call"];
        let whole =
            (0..5).map(|_| dump()).find(|dump| in_turn(&dump.iter().map(String::as_str).collect::<Vec<_>>(), &chain));
        assert_eq!(whole.is_some(), preload == Preload::Library, "{whole:#?}");
    }
}

#[test]
fn pystack_shows_names_and_lines() {
    let stack = paths::venv("tools").join("bin/pystack");
    if !stack.is_file() {
        return tool::skip("pystack", "no virtual environment with it; run ci/setup.sh", Absence::FailsInCi);
    }
    let show = |running: &Running<'_>| {
        snapshot(|| lines_of(Command::new(&stack).args(["remote", "--native", &running.pid().to_string()])))
    };
    let Some(shown) = watch(Preload::Library, "1", show) else { return };
    let shown = shown.expect("one view in twenty shows Python -> Numba -> Python -> Numba");
    let with_line = |name: &str| {
        shown
            .iter()
            .any(|frame| frame.contains("(C) File") && frame.contains("callback.py\", line ") && frame.contains(name))
    };
    assert!(with_line(" in __main__.outer(") && with_line(" in __main__.inner("), "{shown:#?}");
    let stock = watch(Preload::Nothing, "1", |running| {
        let mut views =
            (0..3).map(|_| lines_of(Command::new(&stack).args(["remote", "--native", &running.pid().to_string()])));
        views.any(|view| view.iter().any(|frame| frame.contains("(C) File") && frame.contains("inner(")))
    });
    assert_eq!(stock, Some(false), "the check must be able to say no");
}

/// An object from clang with calls that LLVM has inlined, run by llvmlite: they are frames all the same.
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
    let dump = || lines_of(Command::new(&spy).args(["dump", "--native", "-p", &running.pid().to_string()]));
    let mut last = Vec::new();
    let whole = (0..20).any(|_| {
        last = dump();
        in_turn(&last.iter().map(String::as_str).collect::<Vec<_>>(), &frames)
    });
    assert!(whole, "{last:#?}");
}
