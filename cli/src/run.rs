//! `jitlisten run`: sets the environment and becomes the command.

use std::process::ExitCode;

use clap::Args;

use crate::problem::Problem;

/// Runs a command, and whatever it starts, so that tools see the code it compiles.
#[derive(Args)]
pub(crate) struct Run {
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<std::ffi::OsString>,
}

impl Run {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let _ = &self;
        Err(Problem::new("run is not there yet"))
    }
}
