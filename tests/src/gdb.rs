//! gdb in batch mode: attached to a running host, attached before the host compiles, or starting the host.
//!
//! To reproduce by hand:
//!
//! ```text
//! gdb -nx -batch -p PID -ex bt
//! ```

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::host::{Host, Preload, Running};
use crate::symbols::{self, Symbols};
use crate::tool::{self, Absence};

/// Options that stop gdb at the signal that a host raises in its hot loop if its argument is `timer`. By default gdb
/// passes SIGVTALRM on without stopping.
const STOP_AT_TIMER_OPTIONS: [&str; 2] = ["-ex", "handle SIGVTALRM stop print nopass"];

/// gdb command that looks up a static function of CPython, to detect a stripped interpreter. Every build keeps this
/// function because a table holds its address. No build exports it, although some builds export more symbols than they
/// should.
const STATIC_FUNCTION_LOOKUP: &str = "info address builtin_id";

/// The frames of one thread, innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backtrace {
    /// Frames as gdb prints them after number and address: `name (arguments) at file:line`, or `?? ()` without a name.
    pub frames: Vec<String>,
}

/// Result of a gdb session.
#[derive(Debug)]
pub struct Session {
    /// Backtrace that gdb printed.
    pub backtrace: Backtrace,
    /// Symbols to expect in the backtrace.
    pub symbols: Symbols,
    /// Process that gdb started; `None` if gdb attached.
    pub pid: Option<u32>,
    /// Complete output of gdb, standard error included.
    pub output: String,
}

/// `Some` if gdb is installed; otherwise reports a skip.
#[must_use]
pub fn is_available() -> Option<()> {
    tool::require("gdb", Absence::FailsInCi).map(drop)
}

/// Attaches to a host that is in its hot loop.
#[must_use]
pub fn attach(host: &Running<'_>) -> Session {
    run_session(gdb().arg("-p").arg(host.pid().to_string()).args(["-ex", "bt", "-ex", STATIC_FUNCTION_LOOKUP]))
}

/// Attaches, continues to a breakpoint at `function`, and prints the backtrace of the thread that hit it.
#[must_use]
pub fn attach_at(function: &str, host: &Running<'_>) -> Session {
    let stop = format!("break {function}");
    let options = ["-ex", &stop, "-ex", "continue", "-ex", "bt", "-ex", "delete"];
    run_session(gdb().arg("-p").arg(host.pid().to_string()).args(options))
}

/// Attaches to a host that spends nearly all its time in `function`, and repeats until gdb stops the host there.
#[must_use]
pub fn attach_in(function: &str, host: &Running<'_>) -> Session {
    repeat_until_in(function, || attach(host))
}

/// Repeats a session, at most five times, until gdb stops the host in `function` rather than between two calls. Only
/// the session is repeated, never the check of its result.
pub fn repeat_until_in(function: &str, mut run_session: impl FnMut() -> Session) -> Session {
    let is_in_function = |session: &Session| {
        session.backtrace.frames.first().is_some_and(|leaf| symbols::names_function(leaf, function))
    };
    let mut session = run_session();
    for _ in 0..4 {
        if is_in_function(&session) {
            break;
        }
        session = run_session();
    }
    session
}

/// Attaches to a host that waits on its standard input, lets it continue, and prints a backtrace when it stops itself.
///
/// # Panics
/// If gdb does not attach.
#[must_use]
pub fn attach_early(host: &mut Running<'_>) -> Session {
    let pid = host.pid();
    let mut command = gdb();
    command.arg("-p").arg(pid.to_string()).args(STOP_AT_TIMER_OPTIONS).args([
        "-ex",
        "continue",
        "-ex",
        "bt",
        "-ex",
        STATIC_FUNCTION_LOOKUP,
    ]);
    let gdb_session = thread::spawn(move || run_session(&mut command));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_traced(pid) {
        assert!(Instant::now() < deadline && !gdb_session.is_finished(), "gdb does not attach");
        thread::sleep(Duration::from_millis(20));
    }
    // The newline stays in the pipe until gdb has set its breakpoints and lets the host read it.
    host.send_newline();
    gdb_session.join().expect("gdb ends")
}

/// Starts a host under gdb. A host with the argument `timer` stops itself in `gamma`.
#[must_use]
pub fn start(host: &Host, preload: Preload) -> Session {
    if host.command_line().iter().any(|word| word == "timer") {
        return repeat_until_in("gamma", || start_once(host, preload));
    }
    start_once(host, preload)
}

fn start_once(host: &Host, preload: Preload) -> Session {
    let mut command = gdb();
    // With `startup-with-shell on`, the shell that starts the host would also load the library.
    command.args(["-ex", "set startup-with-shell off"]).args(STOP_AT_TIMER_OPTIONS);
    for (name, value) in host.variables(preload) {
        command.arg("-ex").arg(format!("set environment {name} {}", value.display()));
    }
    command.args(["-ex", "run", "-ex", "bt", "-ex", STATIC_FUNCTION_LOOKUP, "-ex", "info inferiors"]);
    run_session(command.arg("--args").args(host.command_line()))
}

fn gdb() -> Command {
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch"]);
    for setting in ["debuginfod enabled off", "width 0", "print frame-arguments none", "confirm off"] {
        command.arg("-ex").arg(format!("set {setting}"));
    }
    command
}

fn run_session(command: &mut Command) -> Session {
    let outcome = tool::run(command);
    let stdout = String::from_utf8_lossy(&outcome.stdout);
    let output = format!("{stdout}{}", String::from_utf8_lossy(&outcome.stderr));
    let symbols = if stdout.contains("Symbol \"builtin_id\" is") { Symbols::Present } else { Symbols::Stripped };
    Session { backtrace: backtrace(&stdout), symbols, pid: parse_inferior_pid(&stdout), output }
}

/// Parses the frames in gdb's output.
///
/// ```text
/// #0  0x00007ffff7461048 in __main__::gamma[abi:v3](long long, double) ()
/// #1  main (argc=1) at main.c:3
/// ```
#[must_use]
pub fn backtrace(output: &str) -> Backtrace {
    let mut frames: Vec<String> = Vec::new();
    for line in output.lines() {
        let Some((number, rest)) = line.strip_prefix('#').and_then(|line| line.split_once(' ')) else { continue };
        // gdb shows the frame where it stopped before it runs our commands: a number out of sequence begins a new
        // backtrace.
        match number.parse::<usize>() {
            Ok(0) => frames.clear(),
            Ok(number) if number == frames.len() => {}
            _ => continue,
        }
        let rest = rest.trim_start();
        let frame_text =
            rest.strip_prefix("0x").and_then(|rest| rest.split_once(" in ")).map_or(rest, |(_, frame_text)| frame_text);
        frames.push(frame_text.to_owned());
    }
    Backtrace { frames }
}

/// Parses the process id from gdb's `info inferiors` output, for example `* 1    process 1234      /usr/bin/python3`.
fn parse_inferior_pid(output: &str) -> Option<u32> {
    let line = output.lines().find(|line| line.starts_with("* 1 "))?;
    line.split_whitespace().skip_while(|&word| word != "process").nth(1)?.parse().ok()
}

fn is_traced(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|tracer| tracer.trim() != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_backtrace() {
        let output = "Program received signal SIGVTALRM, Virtual timer expired.\n\
            0x00007ffff7461048 in __main__::gamma ()\n\
            #0  0x00007ffff7461048 in __main__::gamma[abi:v3](long long, double) ()\n\
            #1  0x0000000000000000 in ?? ()\n\
            #2  main (argc=1) at main.c:3\n\
            #3  <signal handler called>\n\
            # a comment\n\
            #7  out of order\n";
        let frames = backtrace(output).frames;
        assert_eq!(
            frames,
            [
                "__main__::gamma[abi:v3](long long, double) ()",
                "?? ()",
                "main (argc=1) at main.c:3",
                "<signal handler called>"
            ]
        );
        assert_eq!(backtrace("#0  early ()\n#0  late ()\n#1  main ()\n").frames, ["late ()", "main ()"]);
        assert!(backtrace("No stack.\n").frames.is_empty());
    }

    #[test]
    fn finds_the_process() {
        let output = "  Num  Description       Connection           Executable        \n\
            * 1    process 1234      1 (native)           /usr/bin/python3 \n";
        assert_eq!(parse_inferior_pid(output), Some(1234));
        assert_eq!(parse_inferior_pid("* 1    <null>\n"), None);
    }
}
