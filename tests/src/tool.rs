//! Lookup and execution of external tools, with timeouts and skips. A test whose tool is missing fails in CI and is
//! skipped elsewhere.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

/// Timeout of a tool. It is generous because the machine may be busy.
const TOOL_TIMEOUT: Duration = Duration::from_secs(600);

/// Consequence of a missing tool when `CI` is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// CI installs the tool, so its absence is a failure there.
    FailsInCi,
    /// Some supported systems lack the tool (an old Python, a new LLVM), so its absence always results in a skip.
    IsAllowed,
}

/// Returns whether the test runs as root, which it needs for `subject`. Otherwise reports it as skipped.
#[must_use]
pub fn require_root(subject: &str) -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
    if !is_root {
        skip(subject, "not root", Absence::IsAllowed);
    }
    is_root
}

/// Reports that a test did not run, and why. `ci/test.sh` counts the lines in `$JITLISTEN_SKIPS`.
///
/// # Panics
/// In CI, unless the absence is allowed.
pub fn skip(subject: &str, reason: &str, absence: Absence) {
    assert!(
        absence == Absence::IsAllowed || env::var_os("CI").is_none_or(|ci| ci.is_empty()),
        "{subject} cannot run: {reason} (CI must have everything `ci/setup.sh` installs)"
    );
    let test = thread::current().name().unwrap_or("?").to_owned();
    let line = format!("SKIPPED {test}: {subject}: {reason}\n");
    // Written directly, because libtest captures the output of the print macros.
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

/// Finds a program in `PATH`, or reports a skip and returns `None`.
#[must_use]
pub fn require(program: &str, absence: Absence) -> Option<PathBuf> {
    let path = find(program);
    if path.is_none() {
        skip(program, "not installed; run ci/setup.sh", absence);
    }
    path
}

/// Starts a program, and retries while its file is busy (`ETXTBSY`): a child that another thread has forked may hold a
/// freshly written program open until the child calls exec.
///
/// # Errors
/// If the program cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let deadline = Instant::now() + TOOL_TIMEOUT;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Runs a tool until it exits and returns its output.
///
/// # Panics
/// If the tool cannot be started or the timeout expires.
#[must_use]
pub fn run(command: &mut Command) -> Output {
    run_with_timeout(TOOL_TIMEOUT, command)
}

/// Runs a tool with a longer timeout than [`run`].
///
/// # Panics
/// If the tool cannot be started or the timeout expires.
#[must_use]
pub fn run_with_timeout(timeout: Duration, command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    let child = spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let child = child.unwrap_or_else(|error| panic!("start {}: {error}", program.display()));
    let pid = child.id();
    let waiter = thread::spawn(move || child.wait_with_output());
    let deadline = Instant::now() + timeout;
    while !waiter.is_finished() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    if !waiter.is_finished() {
        signal(pid, "KILL");
        panic!("{} hangs", program.display());
    }
    waiter.join().expect("waiting does not panic").unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

/// Sends a signal by name, as `kill` does.
pub fn signal(pid: u32, name: &str) {
    // `kill` fails if the process has just exited, which is not an error here.
    let _ = Command::new("kill").arg("-s").arg(name).arg(pid.to_string()).stderr(Stdio::null()).status();
}

/// Compiles a C file.
///
/// # Panics
/// If the compiler is missing or reports an error.
pub fn compile(compiler: &Path, arguments: &[&str], source: &Path, output: &Path) {
    // Before glibc 2.34, dlopen is in libdl.
    let result = run(Command::new(compiler).args(arguments).arg(source).arg("-o").arg(output).arg("-ldl"));
    assert!(result.status.success(), "{}: {}", compiler.display(), String::from_utf8_lossy(&result.stderr));
}
