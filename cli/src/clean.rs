//! `jitlisten clean`: removes the files of processes that have ended.

use std::process::ExitCode;

use clap::Args;

use crate::problem::Problem;

/// Removes the files of processes that have ended.
#[derive(Args)]
pub(crate) struct Clean {
    /// Only say what would be removed.
    #[arg(long)]
    dry_run: bool,
}

impl Clean {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let _ = &self;
        Err(Problem::new("clean is not there yet"))
    }
}
