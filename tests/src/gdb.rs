//! gdb in batch mode: attached to a running host, attached before it compiles, or starting it.
//!
//! To see what it sees:
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

/// The signal a host raises in its hot loop with the word `timer`: by default gdb passes it on without stopping.
const STOP: [&str; 2] = ["-ex", "handle SIGVTALRM stop print nopass"];

/// A static function of every CPython, kept because its address is in a table, and exported by none (some builds export
/// more than they should): known only when the interpreter is not stripped.
const UNEXPORTED: &str = "info address builtin_id";

/// The frames of one thread, innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backtrace {
    /// What gdb prints after number and address: `name (arguments) at file:line`, `?? ()` when it has no name.
    pub frames: Vec<String>,
}

/// What came of a session with gdb.
#[derive(Debug)]
pub struct Session {
    /// The backtrace it printed.
    pub backtrace: Backtrace,
    /// Whether the program has symbols.
    pub symbols: Symbols,
    /// The process, where gdb started it.
    pub pid: Option<u32>,
    /// All it said.
    pub output: String,
}

/// Whether gdb is here; a loud skip if not.
#[must_use]
pub fn is_here() -> Option<()> {
    tool::require("gdb", Absence::FailsInCi).map(drop)
}

/// Attaches to a host in its loop.
#[must_use]
pub fn attach(host: &Running<'_>) -> Session {
    converse(gdb().arg("-p").arg(host.pid().to_string()).args(["-ex", "bt", "-ex", UNEXPORTED]))
}

/// Attaches, lets the host go on to this function, and looks at the thread that gets there.
#[must_use]
pub fn attach_at(function: &str, host: &Running<'_>) -> Session {
    let stop = format!("break {function}");
    let words = ["-ex", &stop, "-ex", "continue", "-ex", "bt", "-ex", "delete"];
    converse(gdb().arg("-p").arg(host.pid().to_string()).args(words))
}

/// Attaches to a host that is in `function` nearly always.
#[must_use]
pub fn attach_in(function: &str, host: &Running<'_>) -> Session {
    look_in(function, || attach(host))
}

/// Looks at a host that is in `function` nearly always. Met elsewhere, as between two calls, it is looked at again, a
/// few times: only the looking is done again, never the judging.
pub fn look_in(function: &str, mut look: impl FnMut() -> Session) -> Session {
    let is_there =
        |session: &Session| session.backtrace.frames.first().is_some_and(|leaf| symbols::names(leaf, function));
    let mut session = look();
    for _ in 0..4 {
        if is_there(&session) {
            break;
        }
        session = look();
    }
    session
}

/// Attaches to a host that waits on its standard input, lets it go on, and looks when it stops itself.
///
/// # Panics
/// When gdb does not attach.
#[must_use]
pub fn attach_early(host: &mut Running<'_>) -> Session {
    let pid = host.pid();
    let mut command = gdb();
    command.arg("-p").arg(pid.to_string()).args(STOP).args(["-ex", "continue", "-ex", "bt", "-ex", UNEXPORTED]);
    let conversation = thread::spawn(move || converse(&mut command));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_traced(pid) {
        assert!(Instant::now() < deadline && !conversation.is_finished(), "gdb does not attach");
        thread::sleep(Duration::from_millis(20));
    }
    // The line waits in the pipe until gdb, with its breakpoints in place, lets the host read it.
    host.nod();
    conversation.join().expect("gdb ends")
}

/// Starts a host, which with the word `timer` stops itself in `gamma`.
#[must_use]
pub fn start(host: &Host, preload: Preload) -> Session {
    if host.words().iter().any(|word| word == "timer") {
        return look_in("gamma", || start_once(host, preload));
    }
    start_once(host, preload)
}

fn start_once(host: &Host, preload: Preload) -> Session {
    let mut command = gdb();
    // Without a shell between, or the library would be loaded into the shell as well.
    command.args(["-ex", "set startup-with-shell off"]).args(STOP);
    for (name, value) in host.variables(preload) {
        command.arg("-ex").arg(format!("set environment {name} {}", value.display()));
    }
    command.args(["-ex", "run", "-ex", "bt", "-ex", UNEXPORTED, "-ex", "info inferiors"]);
    converse(command.arg("--args").args(host.words()))
}

fn gdb() -> Command {
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch"]);
    for setting in ["debuginfod enabled off", "width 0", "print frame-arguments none", "confirm off"] {
        command.arg("-ex").arg(format!("set {setting}"));
    }
    command
}

fn converse(command: &mut Command) -> Session {
    let done = tool::run(command);
    let stdout = String::from_utf8_lossy(&done.stdout);
    let output = format!("{stdout}{}", String::from_utf8_lossy(&done.stderr));
    let symbols = if stdout.contains("Symbol \"builtin_id\" is") { Symbols::Present } else { Symbols::Stripped };
    Session { backtrace: backtrace(&stdout), symbols, pid: inferior(&stdout), output }
}

/// Reads the frames out of gdb's output.
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
        // gdb shows the frame it stopped in before we ask for any: numbers that do not go on start over.
        match number.parse::<usize>() {
            Ok(0) => frames.clear(),
            Ok(number) if number == frames.len() => {}
            _ => continue,
        }
        let rest = rest.trim_start();
        let named = rest.strip_prefix("0x").and_then(|rest| rest.split_once(" in ")).map_or(rest, |(_, named)| named);
        frames.push(named.to_owned());
    }
    Backtrace { frames }
}

/// The process in `info inferiors`: `* 1    process 1234      /usr/bin/python3`.
fn inferior(output: &str) -> Option<u32> {
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
        assert_eq!(inferior(output), Some(1234));
        assert_eq!(inferior("* 1    <null>\n"), None);
    }
}
