//! Host runner: starts a program that JIT-compiles, with or without the library, and collects its results.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::paths::{self, Scratch};
use crate::perf_map::{self, PerfMap};
use crate::tool::{self, Absence};

/// Timeout of a host, equal to the timeout of [`tool::run`].
const HOST_TIMEOUT: Duration = Duration::from_secs(600);

/// Choice of the library to preload with `LD_PRELOAD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preload {
    /// The library under test.
    Library,
    /// No preloaded library, so that the process runs as it would without jitlisten.
    Nothing,
}

/// A program with its arguments and environment, not yet started.
#[derive(Debug)]
pub struct Host {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(String, OsString)>,
    scratch: Scratch,
    timeout: Duration,
}

/// Result of a host that has exited.
#[derive(Debug)]
pub struct Outcome {
    /// Process id of the host.
    pub pid: u32,
    /// Exit status.
    pub status: ExitStatus,
    /// Complete standard output.
    pub stdout: Vec<u8>,
    /// Complete standard error.
    pub stderr: String,
    /// Contents of the perf map that the host left; the file in `/tmp` is already removed.
    pub map: Option<Vec<u8>>,
}

/// A running host. Dropping it kills the process and removes its perf map.
#[derive(Debug)]
pub struct Running<'host> {
    host: &'host Host,
    child: Child,
    outcome: bool,
}

impl Host {
    /// A host with its own scratch directory, which holds the caches, the log and the files of the library.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, name: &str) -> Self {
        Self::in_scratch(program.into(), Scratch::new(name))
    }

    /// A host that switches to another user, who can access its scratch directory.
    #[must_use]
    pub fn accessible_to_all(program: impl Into<PathBuf>, name: &str) -> Self {
        Self::in_scratch(program.into(), Scratch::accessible_to_all(name))
    }

    fn in_scratch(program: PathBuf, scratch: Scratch) -> Self {
        perf_map::record_host_start();
        let mut host = Self { program, arguments: Vec::new(), environment: Vec::new(), scratch, timeout: HOST_TIMEOUT };
        for (variable, file) in [("NUMBA_CACHE_DIR", "cache"), ("JITLISTEN_DIR", "."), ("JITLISTEN_LOG", "log")] {
            let path = host.scratch.join(file);
            host.environment.push((variable.to_owned(), path.into()));
        }
        // cargo sets LD_LIBRARY_PATH to its own directories, which may contain an outdated debug build of the library.
        let host = host.variable("LD_LIBRARY_PATH", "");
        // By default numpy starts one OpenBLAS thread per core, and a signal could stop a debugger in any of them.
        host.variable("OPENBLAS_NUM_THREADS", "1")
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn arguments(self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        arguments.into_iter().fold(self, Self::argument)
    }

    /// Sets an environment variable; replaces an earlier value.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(existing, _)| existing != name);
        self.environment.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets the timeout, for a host that needs longer than usual.
    #[must_use]
    pub fn timeout_seconds(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    /// A path in the host's scratch directory.
    #[must_use]
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Contents of the library's log; empty if it does not exist.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch("log")).unwrap_or_default()
    }

    /// Arguments for `env` that start this host: variable assignments, the program and its arguments. Tools use them
    /// when they start the host and must not load the library themselves.
    #[must_use]
    pub fn env_arguments(&self, preload: Preload) -> Vec<OsString> {
        let mut words: Vec<OsString> = self
            .variables(preload)
            .into_iter()
            .map(|(name, value)| [OsStr::new(&name), OsStr::new("="), &value].into_iter().collect())
            .collect();
        words.push(self.program.clone().into());
        words.extend(self.arguments.iter().cloned());
        words
    }

    /// Environment variables that are set in addition to the inherited ones.
    #[must_use]
    pub fn variables(&self, preload: Preload) -> Vec<(String, OsString)> {
        let mut variables = self.environment.clone();
        if preload == Preload::Library {
            variables.push(("LD_PRELOAD".to_owned(), paths::library().into()));
        }
        variables
    }

    /// Program and arguments, without the environment.
    #[must_use]
    pub fn command_line(&self) -> Vec<OsString> {
        std::iter::once(self.program.clone().into()).chain(self.arguments.iter().cloned()).collect()
    }

    /// Returns a host that runs in its own mount namespace, after a shell has executed `script` there; `None` after a
    /// skip. If the script mounts over the repository, the repository is bind-mounted back at its path.
    #[must_use]
    pub fn in_mount_namespace(mut self, script: &str) -> Option<Self> {
        let unshare = tool::require("unshare", Absence::FailsInCi)?;
        let trial = tool::run(Command::new(&unshare).args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"]));
        if !trial.status.success() {
            // Containers may forbid mounting, even for root, and no package that CI could install would change that.
            tool::skip("unshare --mount", String::from_utf8_lossy(&trial.stderr).trim(), Absence::IsAllowed);
            return None;
        }
        let script = format!(
            "preload=$LD_PRELOAD; unset LD_PRELOAD; exec 9<'{root}'
            {script}
            [ -e '{root}/Cargo.toml' ] || {{
                mkdir -p '{root}'; mount --no-canonicalize --rbind /proc/self/fd/9 '{root}'
            }}
            exec 9<&-; export LD_PRELOAD=$preload; exec \"$@\"",
            root = paths::root().display()
        );
        let command = ["--mount".into(), "sh".into(), "-ec".into(), OsString::from(script), "sh".into()];
        let command = command.into_iter().chain([self.program.into()]);
        self.arguments = command.chain(self.arguments).collect();
        self.program = unshare;
        Some(self)
    }

    /// Starts the host.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(&self, preload: Preload) -> Running<'_> {
        let file =
            |name: &str| File::create(self.scratch(name)).unwrap_or_else(|error| panic!("create {name}: {error}"));
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            // Run in the scratch directory, so that files which the host or the library write to relative paths are
            // removed with it.
            .current_dir(self.scratch("."))
            .envs(self.variables(preload))
            .stdin(Stdio::piped())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let child =
            tool::spawn(&mut command).unwrap_or_else(|error| panic!("start {}: {error}", self.program.display()));
        Running { host: self, child, outcome: false }
    }

    /// Runs the host until it exits.
    #[must_use]
    pub fn run(&self, preload: Preload) -> Outcome {
        self.start(preload).wait()
    }
}

impl Running<'_> {
    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the host has printed this line.
    ///
    /// # Panics
    /// If the host exits or the timeout expires first.
    pub fn wait_for_line(&mut self, line: &str) {
        let path = self.host.scratch("stdout");
        let is_printed = || fs::read_to_string(&path).unwrap_or_default().lines().any(|printed| printed == line);
        let deadline = Instant::now() + self.host.timeout;
        while !is_printed() {
            let status = self.child.try_wait().expect("the host is our child");
            assert!(status.is_none() || is_printed(), "the host ended without saying {line:?}:\n{}", self.stderr());
            assert!(Instant::now() < deadline, "the host never said {line:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Writes a newline to the host's standard input, on which the host waits.
    ///
    /// # Panics
    /// If the host has exited.
    pub fn send_newline(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("the host reads");
    }

    /// Waits for the host to exit, then reads and removes its perf map.
    ///
    /// # Panics
    /// If the timeout expires.
    #[must_use]
    pub fn wait(self) -> Outcome {
        let mut outcome = self.wait_and_keep_map();
        outcome.map = perf_map::take(outcome.pid);
        outcome
    }

    /// Waits for the host to exit without touching its perf map. For tests that put another file at the map's path.
    ///
    /// # Panics
    /// If the timeout expires.
    #[must_use]
    pub fn wait_and_keep_map(mut self) -> Outcome {
        let deadline = Instant::now() + self.host.timeout;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the host is our child") {
                break status;
            }
            assert!(Instant::now() < deadline, "the host hangs:\n{}", self.stderr());
            thread::sleep(Duration::from_millis(10));
        };
        self.outcome = true;
        let pid = self.pid();
        let stdout = fs::read(self.host.scratch("stdout")).unwrap_or_default();
        Outcome { pid, status, stdout, stderr: self.stderr(), map: None }
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.host.scratch("stderr")).unwrap_or_default()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.outcome {
            let _ = perf_map::take(self.pid());
        }
    }
}

impl Outcome {
    /// Parses the perf map, which must exist and obey every rule.
    ///
    /// # Panics
    /// If the perf map is missing or breaks a rule.
    #[must_use]
    pub fn perf_map(&self) -> PerfMap {
        let bytes = self.map.as_deref().unwrap_or_else(|| panic!("no perf map of {}:\n{}", self.pid, self.stderr));
        PerfMap::parse(bytes).unwrap_or_else(|fault| panic!("perf map of {}: {fault}", self.pid))
    }

    /// Requires that the host exited successfully.
    ///
    /// # Panics
    /// If the host failed.
    pub fn expect_success(self) -> Self {
        assert!(self.status.success(), "the host failed: {}\n{}", self.status, self.stderr);
        self
    }
}

/// Runs a host with and without the library and requires equal standard output, standard error and exit status.
///
/// # Panics
/// If they differ.
pub fn assert_same_output(host: &Host) -> Outcome {
    let without_library = host.run(Preload::Nothing);
    assert_eq!(without_library.map, None, "a stock process writes no perf map");
    let with_library = host.run(Preload::Library);
    assert_eq!(escape(&without_library.stdout), escape(&with_library.stdout), "standard output");
    assert_eq!(without_library.stderr, with_library.stderr, "standard error");
    assert_eq!(without_library.status, with_library.status, "exit status");
    with_library
}

fn escape(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Names of the files in a directory, except an empty log and the files that this module creates.
#[must_use]
pub fn files_in(directory: &Path) -> Vec<OsString> {
    let is_ours = |entry: &fs::DirEntry| {
        let is_empty_file = entry.metadata().is_ok_and(|metadata| metadata.len() == 0);
        entry.file_name() == "stdout" || entry.file_name() == "stderr" || (entry.file_name() == "log" && is_empty_file)
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<OsString> = entries.filter(|entry| !is_ours(entry)).map(|entry| entry.file_name()).collect();
    names.sort();
    names
}
