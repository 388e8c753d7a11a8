//! `jitlisten compiles`: shows which functions Numba compiled, how long that took, and why.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jitlisten_report::{compilations_to_json, compilations_to_text};

use crate::input::Input;
use crate::problem::Problem;
use crate::recording::{self, Reading, Recognition};

const EXAMPLES: &str = "Examples:
  jitlisten compiles prog.py
  jitlisten compiles jitlisten.perf.data
  jitlisten compiles --json - -- pytest -q | jq '.[] | select(.took > 1e9) | .function'

when is the time since the first sample. took, Numba (its front end) and LLVM are processor time, and include what is \
compiled for this function, which is indented below it.";

/// Show what Numba compiled, how long it took, and why it was not in the cache
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Compiles {
    /// File for the recording of CMD [default: jitlisten.perf.data]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write JSON, to standard output if OUT is -; times are nanoseconds
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Show all compilations, not only long ones
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    input: Input,
}

impl Compiles {
    pub(crate) fn execute(mut self) -> Result<ExitCode, Problem> {
        let recordings = self.input.recordings(self.output.as_deref(), &mut self.reading.event)?;
        recordings.show(|recordings| {
            let report = self.reading.open(&recordings.files, false, false)?;
            match &self.json {
                Some(out) => {
                    let text = format!("{:#}\n", compilations_to_json(&report));
                    recording::write(Some(out), text.as_bytes(), Recognition::ByFormat(is_table))?;
                }
                None => {
                    recording::print(compilations_to_text(&report, recording::terminal_width(), self.all).as_bytes())?
                }
            }
            if self.json.as_deref() != Some(Path::new("-")) {
                recordings.announce_kept();
            }
            Ok(())
        })
    }
}

/// Recognizes our JSON table of compilations by the columns that every row must have, because it lacks a header.
fn is_table(text: &[u8]) -> bool {
    const COLUMNS: [&str; 5] = ["exclusive", "function", "llvm", "signature", "why"];
    let rows = serde_json::from_slice::<Vec<serde_json::Map<String, serde_json::Value>>>(text);
    rows.is_ok_and(|rows| rows.iter().all(|row| COLUMNS.iter().all(|column| row.contains_key(*column))))
}
