//! `jitlisten diff`: compares two recordings.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jitlisten_report::diff_to_text;

use crate::problem::Problem;
use crate::recording::{self, Reading};

/// Compare two recordings by function and line, as shares of all samples
#[derive(Args)]
#[command(after_help = "Example: jitlisten diff before.perf.data after.perf.data")]
pub(crate) struct Diff {
    /// Recording from before the change
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Recording from after the change
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Also show the smallest changes
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    reading: Reading,
}

impl Diff {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let before = self.reading.open(&[self.before], false, false)?;
        let after = self.reading.open(&[self.after], false, false)?;
        recording::print(diff_to_text(&before, &after, recording::terminal_width(), self.all).as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
