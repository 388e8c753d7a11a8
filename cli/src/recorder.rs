//! Recording options shared by several commands, and `jitlisten record` as a child process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Command, ExitStatus};

use clap::Args;
use jitlisten_sampler::{DEFAULT_HZ, MAX_HZ};

use crate::command;
use crate::installation::own_executable;
use crate::problem::Problem;
use crate::run::RunEnvironment;
use crate::system::BlockedSignals;

/// Recording options, shared by several commands.
#[derive(Args, Clone, PartialEq)]
pub(crate) struct Recorder {
    /// Samples per second of each thread's CPU time
    #[arg(short, long, value_name = "HZ", default_value_t = DEFAULT_HZ)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_HZ)))]
    pub(crate) rate: u32,
    /// Sample wall-clock time, waiting threads included
    #[arg(long)]
    pub(crate) wall: bool,
    /// Omit Python functions
    #[arg(long)]
    pub(crate) no_python: bool,
    #[command(flatten)]
    pub(crate) run_environment: RunEnvironment,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder { rate: DEFAULT_HZ, wall: false, no_python: false, run_environment: RunEnvironment::default() }
    }
}

impl Recorder {
    /// Builds a `jitlisten record` command with these options and the `extra` ones. `pattern` is the name of the
    /// recording; the recorded process replaces `%p` and others in it.
    pub(crate) fn command(&self, pattern: &OsStr, extra: &[(&str, Option<String>)]) -> Result<Command, Problem> {
        let run_environment = &self.run_environment;
        let sinks = run_environment.sinks.as_ref().map(ToString::to_string);
        let options = [("-r", Some(self.rate.to_string())), ("--sinks", sinks)];
        let flags = [
            ("--wall", self.wall),
            ("--no-python", self.no_python),
            ("--no-lines", run_environment.no_lines),
            ("-s", run_environment.subprocesses),
        ];
        let mut command = Command::new(own_executable()?);
        command.args(["record", "--no-rank", "-o"]).arg(pattern);
        for (option, value) in options.iter().chain(extra) {
            command.args(value.iter().flat_map(|value| [*option, value]));
        }
        command.args(flags.iter().filter(|(_, given)| *given).map(|(flag, _)| flag));
        Ok(command)
    }
}

/// Returns the error for a recorder that could not be started.
pub(crate) fn recorder_problem(error: io::Error) -> Problem {
    Problem::new(format!("cannot start jitlisten record: {error}"))
}

pub(crate) struct Recorded {
    /// PID of the recorder, which became that of the program.
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    pub(crate) waiting: BlockedSignals,
}

/// Runs a recorder until it exits, as [`command::wait`] does.
pub(crate) fn record(recorder: &mut Command, arguments: &[OsString]) -> Result<Recorded, Problem> {
    let arguments = command::resolve_command(arguments)?;
    let mut child = recorder.arg("--").args(arguments).spawn().map_err(recorder_problem)?;
    let (status, waiting) = command::wait(&mut child).map_err(recorder_problem)?;
    Ok(Recorded { pid: child.id(), status, waiting })
}
