//! The options of every command that records a program, and `jitlisten record` as a child process.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};

use clap::Args;

use crate::command;
use crate::installation::itself;
use crate::problem::Problem;
use crate::run::RunEnvironment;
use crate::system::Blocked;

/// See the module's head.
#[derive(Args, Clone, PartialEq)]
pub(crate) struct Recorder {
    /// Samples per second of each thread's CPU time
    #[arg(short, long, value_name = "HZ", default_value_t = USUAL_HZ)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    /// Sample wall-clock time, waiting threads included
    #[arg(long)]
    pub(crate) wall: bool,
    /// Omit Python functions
    #[arg(long)]
    pub(crate) no_python: bool,
    #[command(flatten)]
    pub(crate) surroundings: RunEnvironment,
}

const USUAL_HZ: u32 = 199;

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder { rate: USUAL_HZ, wall: false, no_python: false, surroundings: RunEnvironment::default() }
    }
}

impl Recorder {
    /// `jitlisten record` into a file, with these options and more.
    pub(crate) fn command(&self, recording: &Path, more: &[(&str, Option<String>)]) -> Result<Command, Problem> {
        let surroundings = &self.surroundings;
        let sinks = surroundings.sinks.as_ref().map(ToString::to_string);
        let options = [("-r", Some(self.rate.to_string())), ("--sinks", sinks)];
        let flags = [
            ("--wall", self.wall),
            ("--no-python", self.no_python),
            ("--no-lines", surroundings.no_lines),
            ("-s", surroundings.subprocesses),
        ];
        let mut command = Command::new(itself()?);
        command.arg("record").arg("-o").arg(recording);
        for (option, value) in options.iter().chain(more) {
            command.args(value.iter().flat_map(|value| [*option, value]));
        }
        command.args(flags.iter().filter(|(_, given)| *given).map(|(flag, _)| flag));
        Ok(command)
    }
}

/// Why a recorder has not started.
pub(crate) fn no_recorder(error: io::Error) -> Problem {
    Problem::new(format!("cannot start jitlisten record: {error}"))
}

/// Runs a recorder of this command to its end, as [`command::wait`].
pub(crate) fn record(recorder: &mut Command, words: &[OsString]) -> Result<(ExitStatus, Blocked), Problem> {
    let words = command::checked(words)?;
    let mut child = recorder.arg("--").args(words).spawn().map_err(no_recorder)?;
    command::wait(&mut child).map_err(no_recorder)
}
