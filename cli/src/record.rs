//! `jitlisten record`: samples a command or a running process from inside.
//!
//! A command is executed as by `jitlisten run`, with `JITLISTEN_RECORD` in its environment
//! (`sampler/src/recording/options.rs`). In a process that is already running, injected Python code or an injected
//! thread starts and stops the sampler (`inject/mod.rs`).

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use jitlisten_sampler::{Clock, Counter, Options, Rank};
use wire::recording::{FILE_OWNER_VARIABLE, RECORD_VARIABLE};

use crate::bundle;
use crate::command;
use crate::hint::as_argument;
use crate::inject::{self, Request, Start};
use crate::installation::Installation;
use crate::problem::Problem;
use crate::process::{self, Process};
use crate::recorder::{self, Recorder};
use crate::run::exec_command;
use crate::sinks::is_writable;
use crate::system::BlockedSignals;

const EXAMPLES: &str = "Examples:
  jitlisten record -- python prog.py && jitlisten lines
  jitlisten record -o f.data -r 99 -- python prog.py
  jitlisten record -p 4711 -d 10
  jitlisten record -e cache-misses -- python prog.py

`jitlisten lines`, `flamegraph` and `export` read the file, and so does perf report -i FILE. Needs no perf, no root \
and no ptrace (-p needs ptrace, or Python 3.14).";

/// Record samples of every thread: a perf.data, without perf
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Record {
    /// Output file; %p is the process ID, %h the host name, %r the rank, %q{VAR} a variable. The ranks of a launcher
    /// get .rankN in their names [default: jitlisten.perf.data, or jitlisten.bundle]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Do not add the rank to the name
    #[arg(long, hide = true)]
    no_rank: bool,
    /// Make a folder that another machine can read: recording, images, libraries, sources
    #[arg(long)]
    bundle: bool,
    /// Stop recording after this time; the command continues
    #[arg(short, long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    duration: Option<u32>,
    /// Count this event of `perf list` instead of time: cycles, cache-misses, page-faults, ...; :u excludes the kernel.
    /// May interrupt the program's system calls
    #[arg(short, long, value_name = "EVENT", conflicts_with = "wall", value_parser = Counter::named)]
    event: Option<Counter>,
    /// Running process to record, instead of a command
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// End the recording of this process
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "pid", "output", "bundle"])]
    stop: Option<u32>,
    /// With -p and --stop: time limit for the process to reach a point where it can be changed
    #[arg(long, value_name = "SECONDS", default_value_t = 20, conflicts_with = "command")]
    timeout: u64,
    #[command(flatten)]
    recorder: Recorder,
    /// The command and its arguments; prog.py and -m MODULE mean this environment's Python
    #[arg(required_unless_present_any = ["pid", "stop"], value_name = "CMD")]
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Default output file of a recording.
pub(crate) const DEFAULT_OUTPUT: &str = "jitlisten.perf.data";

/// Prints that a recording was written, and the command that shows it.
fn announce(recording: &Path) {
    let _ = writeln!(io::stderr(), "jitlisten: wrote {}: {}", recording.display(), lines_command(recording));
}

/// Returns the command that shows a recording.
fn lines_command(recording: &Path) -> String {
    let is_default = recording.file_name() == Some(OsStr::new(DEFAULT_OUTPUT))
        && std::env::current_dir().is_ok_and(|directory| recording.parent() == Some(&directory));
    if is_default { "jitlisten lines".to_owned() } else { format!("jitlisten lines {}", as_argument(recording)) }
}

/// Identity of this process, passed to the recorded process, which stops recording when this process exits. `None` if
/// the two are in different PID namespaces, where our PID would be wrong.
fn own_identity(process: &Process) -> Option<jitlisten_sampler::Process> {
    let pid = std::process::id();
    let start = process::start_time(pid)?;
    (process::pid_namespace("self") == Some(process.namespace())).then_some(jitlisten_sampler::Process { pid, start })
}

/// Output of a recorder.
pub(crate) struct Output {
    /// Absolute file name. The recorded process replaces `%p`, `%h`, `%r` and `%q{VAR}` in it.
    pub(crate) pattern: OsString,
    /// The file of a process with the PID of this one, or of the process to record.
    pub(crate) path: PathBuf,
}

impl Output {
    /// Returns true if the name does not depend on the process. Child processes append their PID to it.
    fn has_fixed_name(&self) -> bool {
        self.pattern == self.path
    }
}

/// Resolves the name of a new recording or bundle, and checks that it can be created. `pid` is the running process to
/// record, if any. `adds_rank` adds the rank if this process is one of several that a launcher started.
pub(crate) fn resolve_output(
    output: &Path,
    bundle: bool,
    pid: Option<u32>,
    adds_rank: bool,
) -> Result<Output, Problem> {
    let options = Options::new(output).absolute();
    let has_siblings = Rank::of_this_process().is_some_and(Rank::has_siblings);
    let options = if adds_rank && pid.is_none() && has_siblings { options.with_rank() } else { options };
    let pattern = options.pattern.clone();
    let resolved = options.resolve_here().map_err(|problem| Problem::new(problem).help("choose another -o"))?;
    // A bundle's directory exists before the command starts, so its name contains the PID of this process, which
    // differs for each rank of an MPI job.
    let path = resolved.path(pid.unwrap_or_else(std::process::id));
    let parent = path.parent().unwrap_or(Path::new("/"));
    if !parent.is_dir() {
        return Err(
            Problem::new(format!("{} is not a directory", parent.display())).help("make it, or choose another -o")
        );
    }
    if path.extension().is_some_and(|extension| extension == "html") {
        return Err(Problem::new("-o names the recording, not a page").help("--html FILE writes a page"));
    }
    let is_expected_type = if bundle { Path::is_dir } else { Path::is_file };
    if path.exists() && !is_expected_type(&path) {
        let kind = if path.is_dir() {
            "a directory"
        } else if bundle {
            "no directory"
        } else {
            "no file"
        };
        return Err(Problem::new(format!("{} is {kind}", path.display())).help("choose another -o"));
    }
    // A running process may have other permissions, and reports errors itself.
    if pid.is_none() && !is_writable(parent) {
        return Err(Problem::new(format!("{} cannot be written", parent.display())).help("choose another -o"));
    }
    if pid.is_none() && !bundle {
        let write_problem = |error| Problem::new(format!("cannot write {}: {error}", path.display()));
        jitlisten_sampler::check_output(&path).map_err(|error| write_problem(error).help("choose another -o"))?;
    }
    Ok(Output { pattern, path })
}

/// Checks that a timer can be created, because the sampler needs one per thread. `RLIMIT_SIGPENDING` limits the number
/// of timers per user, and the command inherits that limit.
fn check_timers() -> Result<(), Problem> {
    let advice = "raise the limit of pending signals (ulimit -i), or count events: -e cpu-clock";
    Clock::Cpu.permitted().map_err(|error| Problem::new(format!("cannot make a timer: {error}: {advice}")))
}

impl Record {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        if let Some(pid) = self.stop {
            return Record::stop(pid, Duration::from_secs(self.timeout));
        }
        let default_output = if self.bundle { bundle::DEFAULT_BUNDLE } else { DEFAULT_OUTPUT };
        let output = self.output.as_deref().unwrap_or(Path::new(default_output));
        let output = resolve_output(output, self.bundle, self.pid, !self.no_rank)?;
        self.check_event()?;
        if self.bundle {
            return self.make_bundle(&output.path);
        }
        match self.pid {
            Some(pid) => self.attach(pid, &output),
            None => self.start(&output),
        }
    }

    /// Records into a bundle's directory, then copies the files that the recording references. A command runs in a
    /// child process.
    fn make_bundle(&self, folder: &Path) -> Result<ExitCode, Problem> {
        let folder = &bundle::free_name(folder);
        let output = |path: PathBuf| Output { pattern: jitlisten_sampler::exact_pattern(&path), path };
        if let Some(pid) = self.pid {
            // The recorded process writes the recording and could make it reference any file. Files are therefore
            // copied with the rights of that process's user.
            let process = Process::open(pid)?;
            let act_as_owner = || {
                let rights = process.act_as_owner();
                rights.map_err(|error| Problem::new(format!("cannot act as the user of {pid}: {error}")))
            };
            let rights = act_as_owner()?;
            let recording = bundle::Recording::create(folder)?;
            drop(rights);
            self.attach(pid, &output(recording.path()))?;
            let rights = act_as_owner()?;
            recording.fill()?;
            drop(rights);
            announce(folder);
            return Ok(ExitCode::SUCCESS);
        }
        // A command that cannot be started must not replace an earlier bundle.
        let words = command::resolve_command(&self.command)?;
        let recording = bundle::Recording::create(folder)?;
        // Signals stay blocked until the program's files have been copied.
        let options =
            [("-d", self.duration.map(|seconds| seconds.to_string())), ("-e", self.event.as_ref().map(Counter::name))];
        let mut recorder = self.recorder.command(&output(recording.path()).pattern, &options)?;
        let recorded = recorder::record(&mut recorder, &words)?;
        let status = command::exit_code(recorded.status);
        recording.fill().map_err(|problem| problem.with_program_status(status))?;
        announce(folder);
        Ok(ExitCode::from(status))
    }

    /// Checks that the kernel counts the event for this process. If so, it very likely also counts it for the command.
    fn check_event(&self) -> Result<(), Problem> {
        let Some(event) = &self.event else { return Ok(()) };
        event.clone().permitted(self.recorder.rate).map(drop).map_err(|error| {
            Problem::new(format!("cannot count {}: {error}: {}", event.name(), Counter::reason(&error)))
        })
    }

    fn start(&self, output: &Output) -> Result<ExitCode, Problem> {
        let mut command = self.recorder.run_environment.command(&self.command)?;
        if self.event.is_none() {
            check_timers()?;
        }
        if io::stderr().is_terminal() {
            // Other commands, which show the recording themselves, start this one with `--no-rank`.
            let next = if self.no_rank { String::new() } else { format!("; then: {}", lines_command(&output.path)) };
            let path = output.path.display();
            let has_children = self.recorder.run_environment.subprocesses && output.has_fixed_name();
            let children = if has_children { format!(", child processes into {path}.PID") } else { String::new() };
            let _ = writeln!(io::stderr(), "jitlisten: recording into {path}{children}{next}");
        }
        command.env(RECORD_VARIABLE, self.encode_options(&output.pattern)).env_remove(FILE_OWNER_VARIABLE);
        // Without a configured log, errors of the recorder go to standard error.
        if std::env::var_os("JITLISTEN_LOG").is_none() {
            command.env("JITLISTEN_LOG", "error:stderr");
        }
        Err(exec_command(command))
    }

    fn options(&self, pattern: &OsStr) -> Options {
        Options {
            hz: self.recorder.rate,
            clock: if self.recorder.wall { Clock::Wall } else { Clock::Cpu },
            counter: self.event.clone(),
            children: self.recorder.run_environment.subprocesses,
            python: !self.recorder.no_python,
            seconds: self.duration,
            ..Options::new(pattern)
        }
    }

    /// Value of [`RECORD_VARIABLE`].
    fn encode_options(&self, pattern: &OsStr) -> OsString {
        let options = self.options(pattern);
        let pid = options.children.then(std::process::id);
        Options { pid, ..options }.to_value()
    }

    fn attach(&self, pid: u32, output: &Output) -> Result<ExitCode, Problem> {
        let process = Process::open(pid)?;
        let installation = Installation::find()?;
        let run_environment = &self.recorder.run_environment;
        let start = Start {
            sinks: run_environment.sinks.clone(),
            lines: !run_environment.no_lines,
            options: Options { recorder: own_identity(&process), ..self.options(&output.pattern) },
        };
        // A termination signal must end the recording, not this process.
        let (signals, timeout) = (BlockedSignals::termination(), Duration::from_secs(self.timeout));
        let reply = inject::inject(&process, &installation, &Request::Start(start), timeout, &signals)?;
        if process.python().is_some() && reply.is_empty() {
            let _ = writeln!(
                io::stderr(),
                "jitlisten: the main thread is in native code: functions that are compiled from now on get no lines"
            );
        }
        let _ = writeln!(io::stderr(), "jitlisten: recording process {pid} into {}", output.path.display());
        let deadline = self.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
        let has_time = || deadline.is_none_or(|deadline| Instant::now() < deadline);
        while process.is_alive() && has_time() && signals.wait_signal(Duration::from_millis(100)).is_none() {}
        if process.is_alive() {
            inject::inject(&process, &installation, &Request::Stop, timeout, &signals)?;
        }
        if !self.bundle {
            announce(&output.path);
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Ends the recording of a process, regardless of which command started it.
    fn stop(pid: u32, timeout: Duration) -> Result<ExitCode, Problem> {
        let process = Process::open(pid)?;
        inject::inject(&process, &Installation::find()?, &Request::Stop, timeout, &BlockedSignals::termination())?;
        Ok(ExitCode::SUCCESS)
    }
}
