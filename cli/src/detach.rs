//! `jitlisten detach`: switches the sinks of a process off.

use std::process::ExitCode;

use clap::Args;

use crate::problem::Problem;

/// Switches all sinks of a process off.
#[derive(Args)]
pub(crate) struct Detach {
    /// The process.
    pid: u32,
}

impl Detach {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let _ = &self;
        Err(Problem::new("detach is not there yet"))
    }
}
