//! `jitlisten lines`: shows the cost of each source line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jitlisten_report::{Style, stacks_to_json, to_html, to_json, to_text};

use crate::browser;
use crate::input::{Input, Recordings};
use crate::problem::Problem;
use crate::recording::{self, Colour, Reading, Recognition};

const EXAMPLES: &str = "Examples:
  jitlisten lines prog.py
  jitlisten lines -r 999 -s --processes -- python pool.py
  perf record -g jitlisten run -- python prog.py && jitlisten lines perf.data
  jitlisten lines --open
  jitlisten lines --html report.html perf.data
  jitlisten lines --hosts node*/perf.data
  jitlisten lines --json - perf.data | jq '.files[].lines[] | select(.self > 100)'

self: the program counter was in this line. total: self, and everything the line called. Percents are of all samples.";

/// Show the percentage of samples for each source line of a recording, with inlined calls
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Lines {
    /// File for the recording of CMD [default: jitlisten.perf.data]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a self-contained HTML page
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Write the page beside the recording, or to the file of --html, and open it in a browser. Without a display,
    /// print its address
    #[arg(long)]
    open: bool,
    /// Write JSON, to standard output if OUT is -
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Add the stacks of each thread to the JSON
    #[arg(long, requires = "json")]
    stacks: bool,
    /// Show shares by thread
    #[arg(long)]
    threads: bool,
    /// Show shares by process, and what differs between processes
    #[arg(long)]
    processes: bool,
    /// Show shares by machine
    #[arg(long)]
    hosts: bool,
    /// Show all functions and lines, not only hot ones
    #[arg(short, long)]
    all: bool,
    /// Only functions in files whose path contains PART, hot or not
    #[arg(long, value_name = "PART")]
    file: Option<String>,
    /// Only functions whose name contains PART, hot or not
    #[arg(long, value_name = "PART")]
    function: Option<String>,
    /// When to use colour
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: Colour,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    input: Input,
}

impl Lines {
    pub(crate) fn execute(mut self) -> Result<ExitCode, Problem> {
        let recordings = self.input.recordings(self.output.as_deref(), &mut self.reading.event)?;
        recordings.show(|recordings| {
            self.show(recordings)?;
            if self.html.is_some() || self.open || self.json.as_deref().is_some_and(|out| out != Path::new("-")) {
                recordings.announce_kept();
            }
            Ok(())
        })
    }

    fn show(&self, recordings: &Recordings) -> Result<(), Problem> {
        // Only `--threads` and `--processes` need shares by thread: the HTML page derives them from the samples.
        let report = self.reading.open(&recordings.files, self.threads || self.processes, false)?;
        let page = match &self.html {
            Some(out) => Some(out.clone()),
            None if self.open => Some(recordings.page_path()?),
            None => None,
        };
        if let Some(out) = &page {
            recording::write(Some(out), to_html(&report).as_bytes(), Recognition::ByMark)?;
        }
        if let Some(out) = &self.json {
            let mut value = to_json(&report);
            // Indentation would triple the size of the stacks.
            let text = if self.stacks {
                value["stacks"] = stacks_to_json(&report);
                format!("{value}\n")
            } else {
                format!("{value:#}\n")
            };
            recording::write(Some(out), text.as_bytes(), Recognition::ByMark)?;
        }
        if let Some(page) = page.filter(|_| self.open) {
            browser::open(&page)?;
        }
        if self.html.is_some() || self.open || self.json.is_some() {
            return Ok(());
        }
        let next_step = recordings.next_step();
        let style = Style {
            width: recording::terminal_width(),
            colour: self.color.is_enabled(),
            all: self.all,
            threads: self.threads,
            processes: self.processes,
            hosts: self.hosts,
            file: self.file.as_deref(),
            function: self.function.as_deref(),
            failure: recordings.failure(),
            next_step: next_step.as_deref(),
        };
        let text = to_text(&report, style);
        recording::print(text.as_bytes())
    }
}
