//! lldb attached to a process: the GDB JIT interface provides the names of compiled functions, and the stack continues
//! to their callers. How much of the interpreter's own stack is shown depends on lldb.

use std::process::Command;

use jitlisten_tests::host::Preload;
use jitlisten_tests::integration::Integration;
use jitlisten_tests::scenario;
use jitlisten_tests::tool::{self, Absence};

/// Possible names of the lldb executable. No two releases can be installed side by side.
const LLDB_PROGRAMS: [&str; 3] = ["lldb-19", "lldb-16", "lldb"];

#[test]
fn lldb_names_compiled_functions() {
    let Some(lldb) = LLDB_PROGRAMS.into_iter().find_map(tool::find) else {
        return tool::skip("lldb", "not installed; run ci/setup.sh", Absence::FailsInCi);
    };
    for sinks in ["perfmap,unwind", "image,unwind,modules"] {
        let Some(host) = Integration::Numba("numba-0.68.1").chain(300, &[]) else { return };
        let host = host.variable("JITLISTEN", sinks);
        let mut running = host.start(Preload::Library);
        running.wait_for_line("running");
        let backtrace = || {
            let attach = format!("process attach -p {}", running.pid());
            let args = [
                "--batch",
                "-o",
                "settings set plugin.jit-loader.gdb.enable on",
                "-o",
                &attach,
                "-o",
                "bt",
                "-o",
                "detach",
            ];
            let output = tool::run(Command::new(&lldb).args(args)).stdout;
            let output = String::from_utf8_lossy(&output).into_owned();
            output.rsplit_once("* frame #0").map_or(String::new(), |(_, stack)| stack.to_owned())
        };
        let is_whole = |stack: &String| {
            let mut lines = stack.lines();
            ["gamma", "beta", "alpha"].iter().all(|name| lines.any(|line| scenario::names_function(line, name)))
                && lines.any(|line| line.contains("Dispatcher_call"))
                && lines.any(|line| line.contains("PyEval"))
        };
        // lldb may stop the host while the host reads the clock.
        let mut stacks = Vec::new();
        while stacks.len() < 5 && !stacks.last().is_some_and(is_whole) {
            stacks.push(backtrace());
        }
        assert!(stacks.last().is_some_and(is_whole), "{sinks}: {stacks:#?}");
    }
}
