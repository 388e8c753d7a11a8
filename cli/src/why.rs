//! `jitlisten why`: explains why a line is slow.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jitlisten_report::{SourceLine, why_to_text};

use crate::input::Input;
use crate::problem::Problem;
use crate::recording::{self, Reading};

const EXAMPLES: &str = "Examples:
  jitlisten why prog.py:16
  jitlisten why prog.py:16 perf.data
  jitlisten why prog.py:16 -r 999 -- prog.py 1000

Loops are known of compiled code for x86-64. Samples say which of the machine loops of a line ran; docs/why.md \
explains the advice.";

/// Show the loops that ran for a line, what helps, and their instructions with samples
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Why {
    /// Source line; the end of the path is enough
    #[arg(value_name = "FILE.py:LINE")]
    place: SourceLine,
    /// File for the recording of CMD [default: jitlisten.perf.data]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    input: Input,
}

impl Why {
    pub(crate) fn execute(mut self) -> Result<ExitCode, Problem> {
        let recordings = self.input.recordings(self.output.as_deref(), &mut self.reading.event)?;
        recordings.show(|recordings| {
            let report = self.reading.open(&recordings.files, false, false)?;
            recordings.announce_kept();
            let text = why_to_text(&report, &self.place).map_err(Problem::new)?;
            recording::print(text.as_bytes())
        })
    }
}
