//! Finds tools. A test without its tool fails in CI and skips loudly elsewhere.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

/// A tool that needs longer hangs; the machine may have much else to do.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether the absence of something fails the suite when `CI` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// CI installs it: there, its absence is a failure.
    FailsInCi,
    /// Not every supported system has it (an old Python, a new LLVM): always a skip.
    IsAllowed,
}

/// Says loudly that a test did not run, and why; `ci/test.sh` counts the lines in `$JITLISTEN_SKIPS`.
///
/// # Panics
/// In CI, unless the absence is allowed.
pub fn skip(what: &str, why: &str, absence: Absence) {
    assert!(
        absence == Absence::IsAllowed || env::var_os("CI").is_none_or(|ci| ci.is_empty()),
        "{what} cannot run: {why} (CI must have everything `ci/setup.sh` installs)"
    );
    let test = thread::current().name().unwrap_or("?").to_owned();
    let line = format!("SKIPPED {test}: {what}: {why}\n");
    // libtest captures the print macros only: a skip has to be seen.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = env::var_os("JITLISTEN_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// The absolute path of a program in `PATH`.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|directory| directory.join(program)).find(|path| path.is_file())
}

/// The program, or `None` after a loud skip.
#[must_use]
pub fn require(program: &str, absence: Absence) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        skip(program, "not installed; run ci/setup.sh", absence);
    }
    found
}

/// Starts a program. One that a test has just written is busy while the child of another thread's fork, which has it
/// open for writing too, has not executed its own program yet: that is waited for.
///
/// # Errors
/// When it cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Runs a tool to its end and returns its output.
///
/// # Panics
/// When it cannot be started or hangs.
#[must_use]
pub fn run(command: &mut Command) -> Output {
    run_within(PATIENCE, command)
}

/// The same for a tool that needs longer.
///
/// # Panics
/// When it cannot be started or hangs.
#[must_use]
pub fn run_within(patience: Duration, command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    let child = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let child = child.unwrap_or_else(|error| panic!("start {}: {error}", program.display()));
    let pid = child.id();
    let waiting = thread::spawn(move || child.wait_with_output());
    let deadline = Instant::now() + patience;
    while !waiting.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    if !waiting.is_finished() {
        signal(pid, "KILL");
        panic!("{} hangs", program.display());
    }
    waiting.join().expect("waiting does not panic").unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Sends a signal by name, as `kill` does.
pub fn signal(pid: u32, name: &str) {
    // The process may just have ended by itself.
    let _ = Command::new("kill").arg("-s").arg(name).arg(pid.to_string()).stderr(Stdio::null()).status();
}

/// Compiles a C file.
///
/// # Panics
/// When the compiler is missing or refuses.
pub fn compile(compiler: &Path, arguments: &[&str], source: &Path, output: &Path) {
    // Before glibc 2.34, dlopen is in a library of its own.
    let done = run(Command::new(compiler).args(arguments).arg(source).arg("-o").arg(output).arg("-ldl"));
    assert!(done.status.success(), "{}: {}", compiler.display(), String::from_utf8_lossy(&done.stderr));
}
