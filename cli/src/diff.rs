//! `jitlisten diff`: compares two recordings.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jitlisten_report::{Change, Report, diff, diff_to_json, diff_to_text, sanitize};

use crate::problem::Problem;
use crate::recording::{self, Reading, Recognition};

const EXAMPLES: &str = "Examples:
  jitlisten diff before.perf.data after.perf.data
  jitlisten diff --fail-over 5 before.perf.data after.perf.data   for CI

Exit status: 0, or 1 if something has grown by more than --fail-over; 2 if a recording cannot be read.";

/// Exit status if something has grown by more than `--fail-over`.
const REGRESSION: u8 = 1;
const MAX_SHOWN_REGRESSIONS: usize = 10;

/// Compare two recordings by activity, function and line
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Diff {
    /// Recording from before the change, or a folder of recordings
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Recording from after the change, or a folder of recordings
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Also show the smallest changes, and those within the noise of sampling
    #[arg(short, long)]
    all: bool,
    /// Write JSON, to standard output if OUT is -
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Exit with status 1 if the program, an activity, a function or a line needs more time: by more than this
    /// percentage of the whole time before, and by more than the noise of sampling
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    fail_over: Option<f64>,
    #[command(flatten)]
    reading: Reading,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse().ok().filter(|percent| (0.0..=1e6).contains(percent));
    percent.ok_or_else(|| "not a percentage".to_owned())
}

impl Diff {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        let [before, after] = self.reading.open_both([self.before, self.after])?;
        if self.fail_over.is_some() && before.event() != after.event() {
            return Err(Problem::new("the recordings count different events").help("omit --fail-over, or choose -e"));
        }
        match &self.json {
            Some(out) => {
                let text = format!("{:#}\n", diff_to_json(&before, &after, self.fail_over));
                recording::write(Some(out), text.as_bytes(), Recognition::ByMark)?;
            }
            None => {
                recording::print(diff_to_text(&before, &after, recording::terminal_width(), self.all).as_bytes())?;
            }
        }
        let regressions = self.fail_over.map(|percent| diff(&before, &after).regressions(percent)).unwrap_or_default();
        if self.json.as_deref() != Some(Path::new("-")) {
            print_regressions(&before, &regressions);
        }
        Ok(if regressions.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(REGRESSION) })
    }
}

fn print_regressions(before: &Report, regressions: &[Change]) {
    for change in regressions.iter().take(MAX_SHOWN_REGRESSIONS) {
        let percent = |amount: f64| amount * 100.0 / before.profile.all.weight.max(1) as f64;
        let (growth, noise) = change.growth();
        let (name, growth, noise) = (sanitize(&change.name), percent(growth), percent(noise));
        let _ = writeln!(
            std::io::stderr(),
            "jitlisten: {name} needs {growth:.1} % more (noise {noise:.1} %) of the whole time before"
        );
    }
}
