//! What tools inside the process see of compiled code: the lists of modules, and those who read them.

use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const VENVS: [&str; 2] = ["numba-0.68.1", "numba-0.60.0"];
const ABSL: [&str; 3] = ["-std=c++17", "-labsl_failure_signal_handler", "-labsl_symbolize"];

/// A host in which compiled code calls the library that this source is compiled to; `None` after a loud skip.
fn asks(venv: &str, source: &str, flags: &[&str]) -> Option<Host> {
    of_library(venv, "asks.py", source, flags)
}

fn of_library(venv: &str, program: &str, source: &str, flags: &[&str]) -> Option<Host> {
    let host = Host::new(integration::python(venv)?, venv).argument(paths::host("asks").join(program));
    let library = host.scratch("asks.so");
    build(source, flags, &library)?;
    Some(host.argument(library).variable("JITLISTEN", "image,unwind,modules"))
}

fn build(source: &str, flags: &[&str], library: &PathBuf) -> Option<()> {
    let compiler = if source.ends_with("cpp") { "c++" } else { "cc" };
    let compiler = tool::require(compiler, Absence::FailsInCi)?;
    // The libraries come after the source.
    let always = ["-O1", "-g", "-shared", "-fPIC"].map(str::to_owned);
    let source = paths::host("asks").join(source).display().to_string();
    let flags = flags.iter().map(|&flag| flag.to_owned());
    let output = tool::run(Command::new(compiler).args(always).arg(source).arg("-o").arg(library).args(flags));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

/// The lines that begin with this word, without it.
fn lines<'a>(said: &'a str, word: &str) -> Vec<&'a str> {
    said.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')).collect()
}

/// Requires the compiled functions, one in each of these lines, the innermost first.
#[track_caller]
fn has_chain(lines: &[&str]) {
    let mut left = lines.iter();
    for name in ["gamma", "beta", "cpython"] {
        assert!(left.any(|line| line.contains(name)), "{name} is not in its place: {lines:#?}");
    }
}

#[test]
fn every_way_to_ask_has_the_compiled_functions() {
    for venv in VENVS {
        let Some(host) = asks(venv, "asks.c", &["-lunwind"]) else { return };
        let stock = host.run(Preload::Nothing).well();
        assert!(!stock.stderr.contains("gamma"), "it is named without us: {}", stock.stderr);
        let ours = host.run(Preload::Library).well();
        assert_eq!(stock.stdout, ours.stdout, "the same result");
        let said = &ours.stderr;
        for way in ["dladdr", "symbol", "symbols", "symbols_fd", "libunwind"] {
            has_chain(&lines(said, way));
        }
        for (way, least) in [("mapped", 3), ("find", 3)] {
            let found = lines(said, way).into_iter().filter(|line| line.contains("/object-")).count();
            assert!(found >= least || lines(said, "find").is_empty(), "{way}: {said}");
        }
        assert!(!said.contains("WRONG") && !said.contains("torn"), "{said}");
        assert!(lines(said, "symbol").iter().all(|line| line.ends_with(" 1")), "symbols lie elsewhere: {said}");
        assert!(lines(said, "libunwind").contains(&"_start"), "{said}");
        let frames = |said: &str| lines(said, "libunwind").len();
        assert!(frames(said) > frames(&stock.stderr), "stock libunwind walks as far: this proves nothing");
    }
}

#[test]
fn nothing_changes_while_the_sink_is_off() {
    let Some(host) = asks(VENVS[0], "asks.c", &["-lunwind"]) else { return };
    let said = host.variable("JITLISTEN", "image,unwind").run(Preload::Library).well().stderr;
    assert!(lines(&said, "mapped").is_empty() && lines(&said, "dladdr").iter().all(|line| !line.contains("gamma")));
}

/// (records, adds, subs) of each time it was asked.
fn counts(said: &str) -> Vec<(u64, u64, u64)> {
    let counts = lines(said, "phdr").into_iter().map(|line| {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        (numbers[0], numbers[1], numbers[2])
    });
    counts.collect()
}

#[test]
fn what_is_compiled_later_is_counted() {
    let Some(host) = asks(VENVS[0], "asks.c", &["-lunwind"]) else { return };
    let said = host.argument("again").run(Preload::Library).well().stderr;
    let [first, second] = counts(&said)[..] else { panic!("{said}") };
    assert!(second.1 > first.1, "a new image has to raise dlpi_adds: {first:?} {second:?}");
    for (records, adds, subs) in [first, second] {
        assert_eq!(records, adds - subs, "records and counts: {said}");
    }
    let (_, again) = said.split_once("\nagain\n").expect("it is asked again");
    assert!(lines(again, "dladdr").iter().any(|line| line.contains("delta")), "{again}");
}

/// What was said behind the line that is this word, up to the next of `ends`.
fn part<'a>(said: &'a str, word: &str, end: &str) -> &'a str {
    let begins = said.split_once(&format!("\n{word}\n")).unwrap_or_else(|| panic!("no {word}: {said}")).1;
    begins.split(&format!("\n{end}\n")).next().unwrap_or(begins)
}

#[test]
fn a_child_has_its_own_and_what_it_inherited() {
    let Some(host) = asks(VENVS[0], "asks.c", &["-lunwind"]) else { return };
    let host = host.argument("forked");
    let stock = host.run(Preload::Nothing).well();
    let ours = host.run(Preload::Library).well();
    assert_eq!(stock.stdout, ours.stdout, "the same result");
    let said = &ours.stderr;
    let (child, parent) = (part(said, "child", "parent"), part(said, "parent", "-"));
    for of_process in [child, parent] {
        for way in ["dladdr", "symbols", "libunwind"] {
            has_chain(&lines(of_process, way));
        }
        let [(records, adds, subs)] = counts(of_process)[..] else { panic!("{said}") };
        assert_eq!(records, adds - subs, "records and counts: {said}");
    }
    let has_delta = |said| lines(said, "dladdr").iter().any(|line| line.contains("delta"));
    assert!(has_delta(child) && !has_delta(parent), "{said}");
}

/// As by `jitlisten attach`: code that is compiled already is listed when the sinks are switched on.
#[test]
fn switched_on_late_it_lists_what_is_alive_and_switched_off_nothing() {
    let Some(host) = asks(VENVS[0], "asks.c", &["-lunwind"]) else { return };
    let host = host.argument("switched").variable("JITLISTEN", "perfmap");
    let said = host.run(Preload::Library).well().stderr;
    let (on, off) = (part(&said, "on", "off"), part(&said, "off", "-"));
    let before = said.split("\non\n").next().expect("there is a first part");
    for way in ["dladdr", "symbol", "symbols", "symbols_fd", "libunwind"] {
        has_chain(&lines(on, way));
    }
    assert!(!said.contains("WRONG") && !said.contains("torn"), "{said}");
    for without in [before, off] {
        assert!(lines(without, "mapped").is_empty(), "{without}");
        assert!(lines(without, "dladdr").iter().all(|line| !line.contains("gamma")), "{without}");
    }
    let [first, second, third] = counts(&said)[..] else { panic!("{said}") };
    assert!(second.1 > first.1 && third.2 > second.2, "{first:?} {second:?} {third:?}");
    assert!([first, second, third].iter().all(|(records, adds, subs)| *records == adds - subs), "{said}");
}

/// Compiled code reads where nothing is mapped: no call leads to the handler.
#[test]
fn a_handler_of_a_crash_has_the_compiled_functions() {
    let Some(host) = of_library(VENVS[1], "crashes.py", "asks.c", &["-lunwind"]) else { return };
    let stock = host.run(Preload::Nothing).well();
    assert!(!stock.stderr.contains("gamma"), "it is named without us: {}", stock.stderr);
    let said = host.run(Preload::Library).well().stderr;
    assert!(said.starts_with("crashed\n"), "{said}");
    for way in ["dladdr", "symbol", "symbols", "symbols_fd", "libunwind"] {
        has_chain(&lines(&said, way));
    }
    assert!(lines(&said, "libunwind").contains(&"_start"), "{said}");
}

/// `faulthandler` of Python 3.14 and newer writes the C stack of a crash, from its signal handler.
#[test]
fn the_report_of_a_crash_in_python_names_compiled_functions() {
    let Some(python) = integration::python(VENVS[0]) else { return };
    let has_it = "import faulthandler, sys; sys.exit(not hasattr(faulthandler, 'dump_c_stack'))";
    if !tool::run(Command::new(&python).args(["-c", has_it])).status.success() {
        return tool::skip("the C stack of faulthandler", "Python 3.14 brings it", Absence::IsAllowed);
    }
    let host = Host::new(python, "crashes").argument(paths::host("asks/crashes.py"));
    let host = host.variable("JITLISTEN", "image,unwind,modules");
    let stack_of = |preload| {
        let said = host.run(preload).stderr;
        said.split_once("C stack trace").unwrap_or_else(|| panic!("no stack: {said}")).1.to_owned()
    };
    let (stock, ours) = (stack_of(Preload::Nothing), stack_of(Preload::Library));
    assert!(!stock.contains("gamma("), "{stock}");
    has_chain(&ours.lines().collect::<Vec<_>>());
    assert_eq!(ours.lines().count(), stock.lines().count(), "as many frames: {ours}");
}

#[test]
fn boost_stacktrace_names_compiled_functions() {
    if !PathBuf::from("/usr/include/boost/stacktrace.hpp").exists() {
        return tool::skip("boost::stacktrace", "its headers are not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    let Some(host) = asks(VENVS[0], "boost.cpp", &["-ldl"]) else { return };
    let said = host.run(Preload::Library).well().stderr;
    has_chain(&said.lines().filter(|line| line.contains(".so")).collect::<Vec<_>>());
}

#[test]
fn absl_names_compiled_functions() {
    if !PathBuf::from("/usr/include/absl/debugging/symbolize.h").exists() {
        return tool::skip("absl", "its headers are not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    let Some(host) = asks(VENVS[0], "absl.cpp", &ABSL) else { return };
    has_chain(&lines(&host.run(Preload::Library).well().stderr, "absl"));
    let stock = host.run(Preload::Nothing).well().stderr;
    assert!(!stock.contains("gamma"), "{stock}");
}

/// The handler's own walk ends at once in Debian's build, whose functions have no frame pointers; where the program
/// was, it says.
#[test]
fn the_report_of_a_crash_by_absl_names_the_compiled_function() {
    if !PathBuf::from("/usr/include/absl/debugging/failure_signal_handler.h").exists() {
        return tool::skip("absl", "its headers are not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    let Some(host) = of_library(VENVS[0], "crashes.py", "absl.cpp", &ABSL) else { return };
    let place = |preload| {
        let ended = host.run(preload);
        assert!(ended.stderr.starts_with("*** SIGSEGV received") && !ended.status.success(), "{}", ended.stderr);
        ended.stderr.lines().find(|line| line.starts_with("PC: @")).expect("it says where").to_owned()
    };
    let (stock, ours) = (place(Preload::Nothing), place(Preload::Library));
    assert!(ours.contains("__main__.gamma(") && !stock.contains("gamma"), "{stock}\n{ours}");
}

#[test]
fn a_backtrace_of_rust_names_compiled_functions() {
    let Some(rustc) = tool::require("rustc", Absence::FailsInCi) else { return };
    let Some(python) = integration::python(VENVS[0]) else { return };
    let host = Host::new(python, "panics").argument(paths::host("asks/asks.py"));
    let library = host.scratch("panics.so");
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "-o"]).arg(&library);
    let output = tool::run(command.arg(paths::host("asks/panics.rs")));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let host = host.argument(library).variable("JITLISTEN", "image,unwind,modules").variable("RUST_BACKTRACE", "full");
    let said = host.run(Preload::Library).well().stderr;
    has_chain(&said.lines().collect::<Vec<_>>());
    let stock = host.run(Preload::Nothing).well().stderr;
    assert!(!stock.contains("gamma"), "{stock}");
}
