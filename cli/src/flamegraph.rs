//! `jitlisten flamegraph`: the stacks of a recording as a picture.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jitlisten_report::to_flamegraph;

use crate::problem::Problem;
use crate::recording::{self, Reading};

/// Draw a flame graph: compiled, Python, C and kernel frames in four colours, inlined calls marked
#[derive(Args)]
#[command(after_help = "Example: jitlisten flamegraph perf.data -o flames.svg")]
pub(crate) struct Flamegraph {
    /// Recordings; several are added up [default: jitlisten.perf.data, or perf.data]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where the SVG goes; - is standard output
    #[arg(short, long, value_name = "OUT.svg", default_value = "flamegraph.svg")]
    output: PathBuf,
    #[command(flatten)]
    reading: Reading,
}

impl Flamegraph {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let report = self.reading.open(&self.files, false, true)?;
        if report.recording.samples.is_empty() {
            return Err(Problem::new(format!("there is nothing to draw: {}", report.notes.join("; "))));
        }
        let mut picture = Vec::new();
        to_flamegraph(&report, &mut picture).map_err(|error| Problem::new(format!("no flame graph: {error}")))?;
        recording::write(Some(&self.output), &picture)?;
        Ok(ExitCode::SUCCESS)
    }
}
