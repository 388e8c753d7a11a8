//! `jitlisten flamegraph`: draws the stacks of a recording as an SVG flame graph.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jitlisten_report::to_flamegraph;

use crate::input::Input;
use crate::problem::Problem;
use crate::recording::{self, Reading, Recognition};

/// Draw a flame graph: compiled, Python, C and kernel frames in four colours, inlined calls marked
#[derive(Args)]
#[command(after_help = "Examples:\n  jitlisten flamegraph prog.py\n  jitlisten flamegraph perf.data -o flames.svg")]
pub(crate) struct Flamegraph {
    /// SVG file; - is standard output
    #[arg(short, long, value_name = "OUT.svg", default_value = "flamegraph.svg")]
    output: PathBuf,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    input: Input,
}

impl Flamegraph {
    pub(crate) fn execute(mut self) -> Result<ExitCode, Problem> {
        let recordings = self.input.recordings(None, &mut self.reading.event)?;
        recordings.show(|recordings| {
            let report = self.reading.open(&recordings.files, false, true)?;
            if report.recording.samples.is_empty() {
                return Err(Problem::new(format!("there is nothing to draw: {}", report.notes.join("; "))));
            }
            let mut picture = Vec::new();
            to_flamegraph(&report, &mut picture).map_err(|error| Problem::new(format!("no flame graph: {error}")))?;
            recording::write(Some(&self.output), &picture, Recognition::ByMark)?;
            recordings.announce_kept();
            Ok(())
        })
    }
}
