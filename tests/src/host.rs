//! Runs a host, a program that JIT-compiles something, with or without the library, and collects the results.

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

/// As [`tool::run`]'s.
const PATIENCE: Duration = Duration::from_secs(600);

/// What `LD_PRELOAD` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preload {
    /// The library under test.
    Library,
    /// Nothing: the stock process.
    Nothing,
}

/// A program with its arguments and its environment, not started yet.
#[derive(Debug)]
pub struct Host {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(String, OsString)>,
    scratch: Scratch,
    patience: Duration,
}

/// A host that has run to its end.
#[derive(Debug)]
pub struct Ended {
    /// The process id it had.
    pub pid: u32,
    /// How it ended.
    pub status: ExitStatus,
    /// Everything it wrote to standard output.
    pub stdout: Vec<u8>,
    /// Everything it wrote to standard error.
    pub stderr: String,
    /// The perf map it left behind, already taken away from `/tmp`.
    pub map: Option<Vec<u8>>,
}

/// A host that runs. Killed, and its perf map removed, when dropped.
#[derive(Debug)]
pub struct Running<'host> {
    host: &'host Host,
    child: Child,
    ended: bool,
}

impl Host {
    /// A host that has a scratch directory of its own; caches, logs and files of the library go there.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, name: &str) -> Self {
        Self::in_scratch(program.into(), Scratch::new(name))
    }

    /// The same for a program that becomes another user, who has to get at what is in the scratch directory.
    #[must_use]
    pub fn open_to_others(program: impl Into<PathBuf>, name: &str) -> Self {
        Self::in_scratch(program.into(), Scratch::open_to_others(name))
    }

    fn in_scratch(program: PathBuf, scratch: Scratch) -> Self {
        perf_map::begin();
        let mut host = Self { program, arguments: Vec::new(), environment: Vec::new(), scratch, patience: PATIENCE };
        for (variable, file) in [("NUMBA_CACHE_DIR", "cache"), ("JITLISTEN_DIR", "."), ("JITLISTEN_LOG", "log")] {
            let path = host.scratch.join(file);
            host.environment.push((variable.to_owned(), path.into()));
        }
        // cargo leads programs to its own directories, where a debug build of the library may lie, however old.
        let host = host.variable("LD_LIBRARY_PATH", "");
        // Without this, numpy alone starts a thread per core, and a signal may stop a debugger in any of them.
        host.variable("OPENBLAS_NUM_THREADS", "1")
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Sets an environment variable, the last value counts.
    #[must_use]
    pub fn variable(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.retain(|(existing, _)| existing != name);
        self.environment.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Gives a host that has much to do more time than usual.
    #[must_use]
    pub fn patience(mut self, seconds: u64) -> Self {
        self.patience = Duration::from_secs(seconds);
        self
    }

    /// A path in the host's scratch directory.
    #[must_use]
    pub fn scratch(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// What the library wrote to its log; empty when it wrote none.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.scratch("log")).unwrap_or_default()
    }

    /// The words after `env` that start this host: assignments, program, arguments. For tools that start the host
    /// themselves and must not load the library into themselves.
    #[must_use]
    pub fn env_words(&self, preload: Preload) -> Vec<OsString> {
        let mut words: Vec<OsString> = self
            .variables(preload)
            .into_iter()
            .map(|(name, value)| [OsStr::new(&name), OsStr::new("="), &value].into_iter().collect())
            .collect();
        words.push(self.program.clone().into());
        words.extend(self.arguments.iter().cloned());
        words
    }

    /// The environment this host runs in, beyond the inherited one.
    #[must_use]
    pub fn variables(&self, preload: Preload) -> Vec<(String, OsString)> {
        let mut variables = self.environment.clone();
        if preload == Preload::Library {
            variables.push(("LD_PRELOAD".to_owned(), paths::library().into()));
        }
        variables
    }

    /// Program and arguments without the environment.
    #[must_use]
    pub fn words(&self) -> Vec<OsString> {
        std::iter::once(self.program.clone().into()).chain(self.arguments.iter().cloned()).collect()
    }

    /// The same host in a mount namespace of its own, in which `script` was run by a shell; `None` after a loud skip.
    /// What the script mounts may lie over the repository, which then gets its place back.
    #[must_use]
    pub fn in_mount_namespace(mut self, script: &str) -> Option<Self> {
        let unshare = tool::require("unshare", Absence::FailsInCi)?;
        let tried = tool::run(Command::new(&unshare).args(["--mount", "mount", "-t", "tmpfs", "none", "/mnt"]));
        if !tried.status.success() {
            // Containers may not, even as root; nothing that CI installs would help.
            tool::skip("unshare --mount", String::from_utf8_lossy(&tried.stderr).trim(), Absence::IsAllowed);
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
        let words = ["--mount".into(), "sh".into(), "-ec".into(), OsString::from(script), "sh".into()];
        let words = words.into_iter().chain([self.program.into()]);
        self.arguments = words.chain(self.arguments).collect();
        self.program = unshare;
        Some(self)
    }

    /// Starts the host.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(&self, preload: Preload) -> Running<'_> {
        let file =
            |name: &str| File::create(self.scratch(name)).unwrap_or_else(|error| panic!("create {name}: {error}"));
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            // What a host or the library leaves at a relative path is gone with everything else.
            .current_dir(self.scratch("."))
            .envs(self.variables(preload))
            .stdin(Stdio::piped())
            .stdout(file("stdout"))
            .stderr(file("stderr"));
        let child =
            tool::spawn(&mut command).unwrap_or_else(|error| panic!("start {}: {error}", self.program.display()));
        Running { host: self, child, ended: false }
    }

    /// Runs the host to its end.
    #[must_use]
    pub fn run(&self, preload: Preload) -> Ended {
        self.start(preload).end()
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
    /// When the host ends or the patience does before.
    pub fn wait_for_line(&mut self, line: &str) {
        let path = self.host.scratch("stdout");
        let printed = || fs::read_to_string(&path).unwrap_or_default().lines().any(|printed| printed == line);
        let deadline = Instant::now() + self.host.patience;
        while !printed() {
            let ended = self.child.try_wait().expect("the host is our child");
            assert!(ended.is_none() || printed(), "the host ended without saying {line:?}:\n{}", self.stderr());
            assert!(Instant::now() < deadline, "the host never said {line:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Writes an empty line to the host's standard input.
    ///
    /// # Panics
    /// When the host is gone.
    pub fn nod(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("the host reads");
    }

    /// Waits for the end.
    ///
    /// # Panics
    /// When it does not come.
    #[must_use]
    pub fn end(self) -> Ended {
        let mut ended = self.end_without_map();
        ended.map = perf_map::take(ended.pid);
        ended
    }

    /// The same, where what lies at the place of the perf map is not the library's.
    ///
    /// # Panics
    /// When the end does not come.
    #[must_use]
    pub fn end_without_map(mut self) -> Ended {
        let deadline = Instant::now() + self.host.patience;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("the host is our child") {
                break status;
            }
            assert!(Instant::now() < deadline, "the host hangs:\n{}", self.stderr());
            thread::sleep(Duration::from_millis(10));
        };
        self.ended = true;
        let pid = self.pid();
        let stdout = fs::read(self.host.scratch("stdout")).unwrap_or_default();
        Ended { pid, status, stdout, stderr: self.stderr(), map: None }
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.host.scratch("stderr")).unwrap_or_default()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !self.ended {
            let _ = perf_map::take(self.pid());
        }
    }
}

impl Ended {
    /// The perf map, which has to exist and to obey every rule.
    ///
    /// # Panics
    /// When it does not.
    #[must_use]
    pub fn perf_map(&self) -> PerfMap {
        let bytes = self.map.as_deref().unwrap_or_else(|| panic!("no perf map of {}:\n{}", self.pid, self.stderr));
        PerfMap::parse(bytes).unwrap_or_else(|fault| panic!("perf map of {}: {fault}", self.pid))
    }

    /// Requires a host that ended well.
    ///
    /// # Panics
    /// When it did not.
    pub fn well(self) -> Self {
        assert!(self.status.success(), "the host failed: {}\n{}", self.status, self.stderr);
        self
    }
}

/// Runs a host with and without the library and requires the same standard output, standard error and status.
///
/// # Panics
/// When they differ.
pub fn same_output(host: &Host) -> Ended {
    let stock = host.run(Preload::Nothing);
    assert_eq!(stock.map, None, "a stock process writes no perf map");
    let ours = host.run(Preload::Library);
    assert_eq!(text(&stock.stdout), text(&ours.stdout), "standard output");
    assert_eq!(stock.stderr, ours.stderr, "standard error");
    assert_eq!(stock.status, ours.status, "exit status");
    ours
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// The files in a directory, without the ones this module makes and without an empty log.
#[must_use]
pub fn files_in(directory: &Path) -> Vec<OsString> {
    let ours = |entry: &fs::DirEntry| {
        let empty = entry.metadata().is_ok_and(|about| about.len() == 0);
        entry.file_name() == "stdout" || entry.file_name() == "stderr" || (entry.file_name() == "log" && empty)
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<OsString> = entries.filter(|entry| !ours(entry)).map(|entry| entry.file_name()).collect();
    names.sort();
    names
}
