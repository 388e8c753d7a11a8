//! lldb, attached: compiled functions by name, by the JIT interface, and what called them. Where the interpreter's own
//! frames end is lldb's matter.

use std::process::Command;

use jitlisten_tests::host::Preload;
use jitlisten_tests::integration::Integration;
use jitlisten_tests::scenario;
use jitlisten_tests::tool::{self, Absence};

/// Two releases cannot be installed at a time.
const RELEASES: [&str; 3] = ["lldb-19", "lldb-16", "lldb"];

#[test]
fn lldb_names_compiled_functions() {
    let Some(lldb) = RELEASES.into_iter().find_map(tool::find) else {
        return tool::skip("lldb", "not installed; run ci/setup.sh", Absence::FailsInCi);
    };
    for sinks in ["perfmap,unwind", "image,unwind,modules"] {
        let Some(host) = Integration::Numba("numba-0.68.1").chain(300, &[]) else { return };
        let host = host.variable("JITLISTEN", sinks);
        let mut running = host.start(Preload::Library);
        running.wait_for_line("running");
        let backtrace = || {
            let attach = format!("process attach -p {}", running.pid());
            let words = [
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
            let said = tool::run(Command::new(&lldb).args(words)).stdout;
            let said = String::from_utf8_lossy(&said).into_owned();
            said.rsplit_once("* frame #0").map_or(String::new(), |(_, stack)| stack.to_owned())
        };
        let is_whole = |stack: &String| {
            let mut lines = stack.lines();
            ["gamma", "beta", "alpha"].iter().all(|name| lines.any(|line| scenario::names(line, name)))
                && lines.any(|line| line.contains("Dispatcher_call"))
                && lines.any(|line| line.contains("PyEval"))
        };
        // It may stop while the host reads the clock.
        let mut stacks = Vec::new();
        while stacks.len() < 5 && !stacks.last().is_some_and(is_whole) {
            stacks.push(backtrace());
        }
        assert!(stacks.last().is_some_and(is_whole), "{sinks}: {stacks:#?}");
    }
}
