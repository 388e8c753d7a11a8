//! `jitlisten attach`: a process that runs already.

use std::process::ExitCode;

use clap::Args;

use crate::problem::Problem;

/// Makes the code of a running process visible.
#[derive(Args)]
pub(crate) struct Attach {
    /// The process.
    pid: u32,
}

impl Attach {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let _ = &self;
        Err(Problem::new("attach is not there yet"))
    }
}
