//! `jitlisten export`: a recording in the format of another tool.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use jitlisten_report::{to_callgrind, to_collapsed, to_firefox, to_speedscope};

use crate::input::Input;
use crate::problem::Problem;
use crate::recording::{self, Reading};

/// Write a recording in the format of another tool
#[derive(Args)]
#[command(after_help = "Examples:\n  jitlisten export perf.data -o profile.speedscope.json\n  jitlisten export -o \
        profile.json prog.py      for profiler.firefox.com")]
pub(crate) struct Export {
    /// For profiler.firefox.com, speedscope.app, flame graph scripts, or KCachegrind and callgrind_annotate [default:
    /// by the name of OUT]
    #[arg(short, long)]
    format: Option<Format>,
    /// Where it goes [default: standard output]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    input: Input,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Firefox,
    Speedscope,
    Collapsed,
    Callgrind,
}

impl Format {
    /// By the names that the tools give such files, and those of the documentation.
    fn of_name(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?.to_lowercase();
        let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
        match () {
            () if name.contains("callgrind") => Some(Format::Callgrind),
            () if name.contains("speedscope") => Some(Format::Speedscope),
            () if ends(&[".json"]) => Some(Format::Firefox),
            () if ends(&[".collapsed", ".folded", ".txt"]) => Some(Format::Collapsed),
            () => None,
        }
    }
}

impl Export {
    pub(crate) fn execute(mut self) -> Result<ExitCode, Problem> {
        let format = self.format.or_else(|| Format::of_name(self.output.as_deref()?)).ok_or_else(|| {
            Problem::new("no format is given")
                .help("-f firefox, speedscope, collapsed or callgrind, or -o with the usual name of one")
        })?;
        let recordings = self.input.recordings(None, &mut self.reading.event)?;
        let report = self.reading.open(&recordings.files, false, true)?;
        let text = match format {
            Format::Firefox => to_firefox(&report).to_string(),
            Format::Speedscope => to_speedscope(&report).to_string(),
            Format::Collapsed => to_collapsed(&report),
            Format::Callgrind => to_callgrind(&report),
        };
        recording::write(self.output.as_deref(), text.as_bytes())?;
        recordings.say_kept();
        Ok(recordings.status)
    }
}
