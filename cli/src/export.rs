//! `jitlisten export`: a recording in the format of another tool.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use jitlisten_report::{to_callgrind, to_collapsed, to_firefox, to_speedscope};

use crate::problem::Problem;
use crate::recording::{self, Reading};

/// Write a recording in the format of another tool
#[derive(Args)]
#[command(after_help = "Example: jitlisten export perf.data -f speedscope -o profile.speedscope.json")]
pub(crate) struct Export {
    /// Recordings; several are added up [default: jitlisten.perf.data, or perf.data]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// For profiler.firefox.com, speedscope.app, flame graph scripts, or KCachegrind and callgrind_annotate
    #[arg(short, long)]
    format: Format,
    /// Where it goes [default: standard output]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Firefox,
    Speedscope,
    Collapsed,
    Callgrind,
}

impl Export {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let report = self.reading.open(&self.files, false, true)?;
        let text = match self.format {
            Format::Firefox => to_firefox(&report).to_string(),
            Format::Speedscope => to_speedscope(&report).to_string(),
            Format::Collapsed => to_collapsed(&report),
            Format::Callgrind => to_callgrind(&report),
        };
        recording::write(self.output.as_deref(), text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}
