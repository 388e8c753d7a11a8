//! `jitlisten doctor`: what will be seen here, and what to do about the rest.

use std::process::ExitCode;

use clap::Args;

use crate::problem::Problem;

/// Says which tools will see what, and what to do about the rest.
#[derive(Args)]
pub(crate) struct Doctor {
    /// The table for machines.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let _ = &self;
        Err(Problem::new("doctor is not there yet"))
    }
}
