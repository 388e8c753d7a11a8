//! `jitlisten record`: samples a command or a running process from inside.
//!
//! A command is executed as by `jitlisten run`, with `JITLISTEN_RECORD` in its environment (`sampler/src/options.rs`).
//! In a running process, injected Python or a thread starts and stops the sampler (`inject.rs`).

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use jitlisten_sampler::{Clock, Counter, Options};

use crate::bundle;
use crate::command;
use crate::inject::{self, Request, Start};
use crate::installation::Installation;
use crate::problem::Problem;
use crate::process::{self, Process};
use crate::recorder::{self, Recorder};
use crate::run::become_it;
use crate::sinks::is_writable;
use crate::system::Blocked;

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
    /// The file; %p in it is the process, %h the host [default: jitlisten.perf.data, or jitlisten.bundle]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
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
    /// A process that runs, instead of a command
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// End the recording of this process
    #[arg(long, value_name = "PID", conflicts_with_all = ["command", "pid", "output", "bundle"])]
    stop: Option<u32>,
    /// With -p and --stop: how long to wait until the process reaches a point where it can be changed
    #[arg(long, value_name = "SECONDS", default_value_t = 20, conflicts_with = "command")]
    timeout: u64,
    #[command(flatten)]
    recorder: Recorder,
    /// The command and its arguments; prog.py and -m MODULE mean this environment's Python
    #[arg(required_unless_present_any = ["pid", "stop"], value_name = "CMD")]
    #[arg(trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// Where a recording goes unless -o says so.
pub(crate) const USUAL_FILE: &str = "jitlisten.perf.data";

/// With the process for `%p` and this host for `%h`.
fn expanded(path: &Path, pid: u32) -> PathBuf {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Options::new(path).path(pid, host.trim())
}

/// This process, with which the recording ends, as the other one knows it: in another PID namespace it has another
/// number.
fn recorder(process: &Process) -> Option<jitlisten_sampler::Process> {
    let pid = std::process::id();
    let start = process::start_time(pid)?;
    (process::pid_namespace("self") == Some(process.namespace())).then_some(jitlisten_sampler::Process { pid, start })
}

/// The absolute path of a recording or a bundle, if it can be made. `pid` is a process that is recorded while it runs.
pub(crate) fn checked_output(output: &Path, bundle: bool, pid: Option<u32>) -> Result<PathBuf, Problem> {
    // A recording is named by the process that makes it. A folder is there before a command: it has this one's number,
    // another one for each rank of an mpirun.
    let named_by = pid.unwrap_or_else(std::process::id);
    let output = if bundle { expanded(output, named_by) } else { output.to_owned() };
    let path = std::path::absolute(&output).map_err(|error| Problem::new(format!("{}: {error}", output.display())))?;
    let parent = path.parent().unwrap_or(Path::new("/"));
    if !parent.is_dir() {
        return Err(
            Problem::new(format!("{} is not a directory", parent.display())).help("make it, or choose another -o")
        );
    }
    let is = if bundle { Path::is_dir } else { Path::is_file };
    if path.exists() && !is(&path) {
        let what = if path.is_dir() {
            "a directory"
        } else if bundle {
            "no directory"
        } else {
            "no file"
        };
        return Err(Problem::new(format!("{} is {what}", path.display())).help("choose another -o"));
    }
    // Another process may have other rights, and says so itself.
    if pid.is_none() && !is_writable(parent) {
        return Err(Problem::new(format!("{} cannot be written", parent.display())).help("choose another -o"));
    }
    if pid.is_none() && !bundle {
        let cannot = |error| Problem::new(format!("cannot write {}: {error}", path.display()));
        jitlisten_sampler::check_place(&expanded(&path, named_by))
            .map_err(|error| cannot(error).help("choose another -o"))?;
    }
    Ok(path)
}

/// A timer for each thread; those that there may be are counted for a user (`RLIMIT_SIGPENDING`), and handed on to the
/// command.
fn check_timers() -> Result<(), Problem> {
    let advice = "raise the limit of pending signals (ulimit -i), or count events: -e cpu-clock";
    Clock::Cpu.permitted().map_err(|error| Problem::new(format!("cannot make a timer: {error}: {advice}")))
}

impl Record {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        if let Some(pid) = self.stop {
            return Record::stop(pid, Duration::from_secs(self.timeout));
        }
        let usual = if self.bundle { "jitlisten.bundle" } else { USUAL_FILE };
        let path = checked_output(self.output.as_deref().unwrap_or(Path::new(usual)), self.bundle, self.pid)?;
        self.check_event()?;
        if self.bundle {
            return self.make_bundle(&path);
        }
        match self.pid {
            Some(pid) => self.attach(pid, &path),
            None => self.start(&path),
        }
    }

    /// Records into a folder, by another process of this command, and then copies what the recording names.
    fn make_bundle(&self, folder: &Path) -> Result<ExitCode, Problem> {
        let recording = bundle::recording_in(folder);
        if let Some(pid) = self.pid {
            // The process writes the recording, and may name any file in it: those that its user may read are copied.
            let process = Process::open(pid)?;
            let as_owner = |act: fn(&Path) -> Result<(), Problem>| {
                let rights = process.act_as_owner();
                let _rights =
                    rights.map_err(|error| Problem::new(format!("cannot act as the user of {pid}: {error}")))?;
                act(folder)
            };
            as_owner(bundle::make)?;
            self.attach(pid, &recording)?;
            as_owner(bundle::fill)?;
            return Ok(ExitCode::SUCCESS);
        }
        bundle::make(folder)?;
        // What the program left behind is still to be copied.
        let more =
            [("-d", self.duration.map(|seconds| seconds.to_string())), ("-e", self.event.as_ref().map(Counter::name))];
        let (status, _waiting) = recorder::record(&mut self.recorder.command(&recording, &more)?, &self.command)?;
        let status = command::exit_code(status);
        bundle::fill(folder).map_err(|problem| problem.after(status))?;
        Ok(ExitCode::from(status))
    }

    /// The kernel counts it for us, and so very likely for the command.
    fn check_event(&self) -> Result<(), Problem> {
        let Some(event) = &self.event else { return Ok(()) };
        event.clone().permitted(self.recorder.rate).map(drop).map_err(|error| {
            Problem::new(format!("cannot count {}: {error}: {}", event.name(), Counter::reason(&error)))
        })
    }

    fn start(&self, path: &Path) -> Result<ExitCode, Problem> {
        let mut command = self.recorder.surroundings.command(&self.command)?;
        if self.event.is_none() {
            check_timers()?;
        }
        if io::stderr().is_terminal() {
            let _ = writeln!(io::stderr(), "jitlisten: recording into {}", path.display());
        }
        command.env("JITLISTEN_RECORD", self.variable(path)).env_remove("JITLISTEN_RECORD_BEGUN");
        // Why there is no recording, or why it has stopped, unless it is to be said elsewhere.
        if std::env::var_os("JITLISTEN_LOG").is_none() {
            command.env("JITLISTEN_LOG", "error:stderr");
        }
        Err(become_it(command))
    }

    fn options(&self, path: &Path) -> Options {
        Options {
            hz: self.recorder.rate,
            clock: if self.recorder.wall { Clock::Wall } else { Clock::Cpu },
            counter: self.event.clone(),
            children: self.recorder.surroundings.subprocesses,
            python: !self.recorder.no_python,
            seconds: self.duration,
            ..Options::new(path)
        }
    }

    /// The value of `JITLISTEN_RECORD`.
    fn variable(&self, path: &Path) -> OsString {
        let options = self.options(path);
        let pid = options.children.then(std::process::id);
        Options { pid, ..options }.to_value()
    }

    fn attach(&self, pid: u32, path: &Path) -> Result<ExitCode, Problem> {
        let process = Process::open(pid)?;
        let installation = Installation::find()?;
        let surroundings = &self.recorder.surroundings;
        let start = Start {
            sinks: surroundings.sinks.clone(),
            lines: !surroundings.no_lines,
            options: Options { recorder: recorder(&process), ..self.options(path) },
        };
        // They end the recording and not this process.
        let (until, timeout) = (Blocked::ends(), Duration::from_secs(self.timeout));
        let answer = inject::inject(&process, &installation, &Request::Start(start), timeout, &until)?;
        if process.python().is_some() && answer.is_empty() {
            let _ = writeln!(
                io::stderr(),
                "jitlisten: the main thread is in native code: functions that are compiled from now on get no lines"
            );
        }
        let _ = writeln!(io::stderr(), "jitlisten: recording process {pid} into {}", path.display());
        let deadline = self.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
        let in_time = || deadline.is_none_or(|deadline| Instant::now() < deadline);
        while process.is_there() && in_time() && until.arrived(Duration::from_millis(100)).is_none() {}
        if process.is_there() {
            inject::inject(&process, &installation, &Request::Stop, timeout, &until)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Ends the recording of a process, whoever began it.
    fn stop(pid: u32, timeout: Duration) -> Result<ExitCode, Problem> {
        let process = Process::open(pid)?;
        inject::inject(&process, &Installation::find()?, &Request::Stop, timeout, &Blocked::ends())?;
        Ok(ExitCode::SUCCESS)
    }
}
