//! heaptrack attributes allocations to compiled functions, with Python lines and inlined callees. All functions are
//! compiled after heaptrack has started.

use std::fs;
use std::process::Command;

use jitlisten_tests::host::{Host, Preload};
use jitlisten_tests::tool::{self, Absence};
use jitlisten_tests::{integration, paths};

/// Output of `heaptrack_print` for a run recorded with heaptrack.
fn report(sinks: &str, with_lines: bool) -> Option<String> {
    let heaptrack = tool::require("heaptrack", Absence::FailsInCi)?;
    let print = tool::require("heaptrack_print", Absence::FailsInCi)?;
    let python = integration::python("numba-0.60.0")?;
    let host = Host::new(heaptrack, "heaptrack").variable("JITLISTEN", sinks);
    let package = format!("{0}/tests/suites/with_lines:{0}/python", paths::root().display());
    let host = if with_lines { host.variable("PYTHONPATH", package) } else { host };
    let output = host.scratch("recorded");
    let host = host.argument("-o").argument(&output).argument(python).argument(paths::host("allocates.py"));
    // heaptrack's script prepends its own library to `LD_PRELOAD`, only for the program.
    let _ = host.run(Preload::Library).expect_success();
    let is_recorded = |name: &str| name.starts_with("recorded.");
    let files = fs::read_dir(host.scratch("")).expect("there is a directory").flatten();
    let recording = files
        .map(|entry| entry.path())
        .find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_recorded));
    let recording = recording.expect("heaptrack has recorded something");
    Some(String::from_utf8_lossy(&tool::run(Command::new(print).arg(recording)).stdout).into_owned())
}

#[test]
fn allocations_belong_to_compiled_functions() {
    let Some(without_sink) = report("image,unwind", false) else { return };
    let Some(printed) = report("image,unwind,modules", false) else { return };
    assert!(!without_sink.contains("__main__::total"), "it is named without the sink: this proves nothing");
    let mut lines = printed.lines();
    let is_named = lines.any(|line| line.contains("__main__::total") && !line.contains("cpython"));
    assert!(is_named && lines.next().is_some_and(|line| line.contains("/object-")), "{printed}");
    assert!(lines.any(|line| line.contains("Dispatcher_call")), "the stacks end in compiled code");
}

/// The array is allocated in a function that LLVM inlined. The stack has that function with its line, then its caller
/// with another line.
#[test]
fn allocations_have_python_lines_and_inlined_callees() {
    let Some(printed) = report("image,unwind,modules", true) else { return };
    let lines: Vec<&str> = printed.lines().map(str::trim).collect();
    let stack = ["__main__.make(", "/allocates.py:13", "__main__.total(", "/allocates.py:23"];
    let is_stack = |lines: &[&str]| lines.iter().zip(stack).all(|(line, part)| line.contains(part));
    let stack_lines = lines.windows(stack.len()).find(|lines| is_stack(lines)).unwrap_or_else(|| panic!("{printed}"));
    assert!(!stack_lines.concat().contains("cpython::"), "the functions themselves: {stack_lines:?}");
}
