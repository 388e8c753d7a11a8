//! Compiled code in the module lists that in-process tools read.

use std::path::PathBuf;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

const VENVS: [&str; 2] = ["numba-0.68.1", "numba-0.60.0"];
const ABSL: [&str; 3] = ["-std=c++17", "-labsl_failure_signal_handler", "-labsl_symbolize"];

/// Builds a host whose compiled code calls a library built from this source. Returns `None` after reporting a skip.
fn host_that_asks(venv: &str, source: &str, flags: &[&str]) -> Option<Host> {
    host_with_library(venv, "asks.py", source, flags)
}

fn host_with_library(venv: &str, program: &str, source: &str, flags: &[&str]) -> Option<Host> {
    let host = Host::new(integration::python(venv)?, venv).argument(paths::host("asks").join(program));
    let library = host.scratch("asks.so");
    build(source, flags, &library)?;
    Some(host.argument(library).variable("JITLISTEN", "image,unwind,modules"))
}

fn build(source: &str, flags: &[&str], library: &PathBuf) -> Option<()> {
    let compiler = if source.ends_with("cpp") { "c++" } else { "cc" };
    let compiler = tool::require(compiler, Absence::FailsInCi)?;
    // Libraries must follow the source file that uses them.
    let base_flags = ["-O1", "-g", "-shared", "-fPIC"].map(str::to_owned);
    let source = paths::host("asks").join(source).display().to_string();
    let flags = flags.iter().map(|&flag| flag.to_owned());
    let output = tool::run(Command::new(compiler).args(base_flags).arg(source).arg("-o").arg(library).args(flags));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

/// Lines that begin with `word`, without the word itself.
fn lines<'a>(output: &'a str, word: &str) -> Vec<&'a str> {
    output.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')).collect()
}

/// Asserts that these lines name the compiled functions in order, innermost first.
#[track_caller]
fn assert_chain(lines: &[&str]) {
    let mut remaining_lines = lines.iter();
    for name in ["gamma", "beta", "cpython"] {
        assert!(remaining_lines.any(|line| line.contains(name)), "{name} is not in its place: {lines:#?}");
    }
}

#[test]
fn every_way_to_ask_has_the_compiled_functions() {
    for venv in VENVS {
        let Some(host) = host_that_asks(venv, "asks.c", &["-lunwind"]) else { return };
        let stock = host.run(Preload::Nothing).expect_success();
        assert!(!stock.stderr.contains("gamma"), "it is named without us: {}", stock.stderr);
        let preloaded = host.run(Preload::Library).expect_success();
        assert_eq!(stock.stdout, preloaded.stdout, "the same result");
        let output = &preloaded.stderr;
        for query in ["dladdr", "symbol", "symbols", "symbols_fd", "libunwind"] {
            assert_chain(&lines(output, query));
        }
        for (query, min_lines) in [("mapped", 3), ("find", 3)] {
            let listed_count = lines(output, query).into_iter().filter(|line| line.contains("/object-")).count();
            assert!(listed_count >= min_lines || lines(output, "find").is_empty(), "{query}: {output}");
        }
        assert!(!output.contains("WRONG") && !output.contains("torn"), "{output}");
        assert!(lines(output, "symbol").iter().all(|line| line.ends_with(" 1")), "symbols lie elsewhere: {output}");
        assert!(lines(output, "libunwind").contains(&"_start"), "{output}");
        let count_frames = |output: &str| lines(output, "libunwind").len();
        assert!(
            count_frames(output) > count_frames(&stock.stderr),
            "stock libunwind walks as far: this proves nothing"
        );
    }
}

#[test]
fn nothing_changes_while_the_sink_is_off() {
    let Some(host) = host_that_asks(VENVS[0], "asks.c", &["-lunwind"]) else { return };
    let output = host.variable("JITLISTEN", "image,unwind").run(Preload::Library).expect_success().stderr;
    assert!(lines(&output, "mapped").is_empty() && lines(&output, "dladdr").iter().all(|line| !line.contains("gamma")));
}

/// The number of records, `dlpi_adds` and `dlpi_subs`, at each query.
fn query_counts(output: &str) -> Vec<(u64, u64, u64)> {
    let counts = lines(output, "phdr").into_iter().map(|line| {
        let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
        (numbers[0], numbers[1], numbers[2])
    });
    counts.collect()
}

#[test]
fn what_is_compiled_later_is_counted() {
    let Some(host) = host_that_asks(VENVS[0], "asks.c", &["-lunwind"]) else { return };
    let output = host.argument("again").run(Preload::Library).expect_success().stderr;
    let [first, second] = query_counts(&output)[..] else { panic!("{output}") };
    assert!(second.1 > first.1, "a new image has to raise dlpi_adds: {first:?} {second:?}");
    for (records, adds, subs) in [first, second] {
        assert_eq!(records, adds - subs, "records and counts: {output}");
    }
    let (_, second_part) = output.split_once("\nagain\n").expect("it is asked again");
    assert!(lines(second_part, "dladdr").iter().any(|line| line.contains("delta")), "{second_part}");
}

/// Output between the lines `start` and `end`.
fn output_between<'a>(output: &'a str, start: &str, end: &str) -> &'a str {
    let rest = output.split_once(&format!("\n{start}\n")).unwrap_or_else(|| panic!("no {start}: {output}")).1;
    rest.split(&format!("\n{end}\n")).next().unwrap_or(rest)
}

#[test]
fn a_child_has_its_own_and_inherited_functions() {
    let Some(host) = host_that_asks(VENVS[0], "asks.c", &["-lunwind"]) else { return };
    let host = host.argument("forked");
    let stock = host.run(Preload::Nothing).expect_success();
    let preloaded = host.run(Preload::Library).expect_success();
    assert_eq!(stock.stdout, preloaded.stdout, "the same result");
    let output = &preloaded.stderr;
    let (child, parent) = (output_between(output, "child", "parent"), output_between(output, "parent", "-"));
    for process_output in [child, parent] {
        for query in ["dladdr", "symbols", "libunwind"] {
            assert_chain(&lines(process_output, query));
        }
        let [(records, adds, subs)] = query_counts(process_output)[..] else { panic!("{output}") };
        assert_eq!(records, adds - subs, "records and counts: {output}");
    }
    let has_delta = |output| lines(output, "dladdr").iter().any(|line| line.contains("delta"));
    assert!(has_delta(child) && !has_delta(parent), "{output}");
}

/// Code compiled before the sinks were enabled is listed, too, as after `jitlisten attach`.
#[test]
fn switched_on_late_it_lists_what_is_alive_and_switched_off_nothing() {
    let Some(host) = host_that_asks(VENVS[0], "asks.c", &["-lunwind"]) else { return };
    let host = host.argument("switched").variable("JITLISTEN", "perfmap");
    let output = host.run(Preload::Library).expect_success().stderr;
    let (on, off) = (output_between(&output, "on", "off"), output_between(&output, "off", "-"));
    let before_switch = output.split("\non\n").next().expect("there is a first part");
    for query in ["dladdr", "symbol", "symbols", "symbols_fd", "libunwind"] {
        assert_chain(&lines(on, query));
    }
    assert!(!output.contains("WRONG") && !output.contains("torn"), "{output}");
    for without_sink in [before_switch, off] {
        assert!(lines(without_sink, "mapped").is_empty(), "{without_sink}");
        assert!(lines(without_sink, "dladdr").iter().all(|line| !line.contains("gamma")), "{without_sink}");
    }
    let [first, second, third] = query_counts(&output)[..] else { panic!("{output}") };
    assert!(second.1 > first.1 && third.2 > second.2, "{first:?} {second:?} {third:?}");
    assert!([first, second, third].iter().all(|(records, adds, subs)| *records == adds - subs), "{output}");
}

/// Compiled code reads unmapped memory, so the signal handler is not entered through a call instruction.
#[test]
fn a_handler_of_a_crash_has_the_compiled_functions() {
    let Some(host) = host_with_library(VENVS[1], "crashes.py", "asks.c", &["-lunwind"]) else { return };
    let stock = host.run(Preload::Nothing).expect_success();
    assert!(!stock.stderr.contains("gamma"), "it is named without us: {}", stock.stderr);
    let output = host.run(Preload::Library).expect_success().stderr;
    assert!(output.starts_with("crashed\n"), "{output}");
    for query in ["dladdr", "symbol", "symbols", "symbols_fd", "libunwind"] {
        assert_chain(&lines(&output, query));
    }
    assert!(lines(&output, "libunwind").contains(&"_start"), "{output}");
}

/// From Python 3.14 on, the signal handler of `faulthandler` prints the C stack of a crash.
#[test]
fn the_report_of_a_crash_in_python_names_compiled_functions() {
    let Some(python) = integration::python(VENVS[0]) else { return };
    let check_script = "import faulthandler, sys; sys.exit(not hasattr(faulthandler, 'dump_c_stack'))";
    if !tool::run(Command::new(&python).args(["-c", check_script])).status.success() {
        return tool::skip("the C stack of faulthandler", "Python 3.14 brings it", Absence::IsAllowed);
    }
    let host = Host::new(python, "crashes").argument(paths::host("asks/crashes.py"));
    let host = host.variable("JITLISTEN", "image,unwind,modules");
    let crash_stack = |preload| {
        let output = host.run(preload).stderr;
        output.split_once("C stack trace").unwrap_or_else(|| panic!("no stack: {output}")).1.to_owned()
    };
    let (stock, preloaded) = (crash_stack(Preload::Nothing), crash_stack(Preload::Library));
    assert!(!stock.contains("gamma("), "{stock}");
    assert_chain(&preloaded.lines().collect::<Vec<_>>());
    assert_eq!(preloaded.lines().count(), stock.lines().count(), "as many frames: {preloaded}");
}

#[test]
fn boost_stacktrace_names_compiled_functions() {
    if !PathBuf::from("/usr/include/boost/stacktrace.hpp").exists() {
        return tool::skip("boost::stacktrace", "its headers are not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    let Some(host) = host_that_asks(VENVS[0], "boost.cpp", &["-ldl"]) else { return };
    let output = host.run(Preload::Library).expect_success().stderr;
    assert_chain(&output.lines().filter(|line| line.contains(".so")).collect::<Vec<_>>());
}

#[test]
fn absl_names_compiled_functions() {
    if !PathBuf::from("/usr/include/absl/debugging/symbolize.h").exists() {
        return tool::skip("absl", "its headers are not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    let Some(host) = host_that_asks(VENVS[0], "absl.cpp", &ABSL) else { return };
    assert_chain(&lines(&host.run(Preload::Library).expect_success().stderr, "absl"));
    let stock = host.run(Preload::Nothing).expect_success().stderr;
    assert!(!stock.contains("gamma"), "{stock}");
}

/// In Debian's build, absl's own stack walk ends immediately, because its functions keep no frame pointers. The report
/// still names the function that crashed.
#[test]
fn the_report_of_a_crash_by_absl_names_the_compiled_function() {
    if !PathBuf::from("/usr/include/absl/debugging/failure_signal_handler.h").exists() {
        return tool::skip("absl", "its headers are not installed; run ci/setup.sh", Absence::FailsInCi);
    }
    let Some(host) = host_with_library(VENVS[0], "crashes.py", "absl.cpp", &ABSL) else { return };
    let crash_line = |preload| {
        let outcome = host.run(preload);
        assert!(outcome.stderr.starts_with("*** SIGSEGV received") && !outcome.status.success(), "{}", outcome.stderr);
        outcome.stderr.lines().find(|line| line.starts_with("PC: @")).expect("it says where").to_owned()
    };
    let (stock, preloaded) = (crash_line(Preload::Nothing), crash_line(Preload::Library));
    assert!(preloaded.contains("__main__.gamma(") && !stock.contains("gamma"), "{stock}\n{preloaded}");
}

#[test]
fn a_backtrace_of_rust_names_compiled_functions() {
    let Some(rustc) = tool::require("rustc", Absence::FailsInCi) else { return };
    let Some(python) = integration::python(VENVS[0]) else { return };
    let host = Host::new(python, "panics").argument(paths::host("asks/asks.py"));
    let library = host.scratch("panics.so");
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "-o"]).arg(&library);
    let compile_run = tool::run(command.arg(paths::host("asks/panics.rs")));
    assert!(compile_run.status.success(), "{}", String::from_utf8_lossy(&compile_run.stderr));
    let host = host.argument(library).variable("JITLISTEN", "image,unwind,modules").variable("RUST_BACKTRACE", "full");
    let output = host.run(Preload::Library).expect_success().stderr;
    assert_chain(&output.lines().collect::<Vec<_>>());
    let stock = host.run(Preload::Nothing).expect_success().stderr;
    assert!(!stock.contains("gamma"), "{stock}");
}
