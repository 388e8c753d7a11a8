//! `jitlisten lines`: which line is slow.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use jitlisten_report::{Style, to_html, to_json, to_text};

use crate::command;
use crate::problem::Problem;
use crate::recording::{self, Colour, Reading};

const EXAMPLES: &str = "Examples:
  jitlisten lines -- python prog.py
  jitlisten lines -r 999 -s --processes -- python pool.py
  perf record -g jitlisten run -- python prog.py && jitlisten lines perf.data
  jitlisten lines --html report.html perf.data
  jitlisten lines --hosts node*/perf.data
  jitlisten lines --json - perf.data | jq '.files[].lines[] | select(.self > 100)'

self is where the program counter was, total with everything that the line called. Percents are of all samples.";

/// Show percent per source line of a recording, with the calls that were inlined there
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Lines {
    /// Recordings of `jitlisten record` or `perf record`; several are added up [default: jitlisten.perf.data, or perf.data]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write one page of HTML that needs no network
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Write JSON, to standard output if OUT is -
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Shares of each thread
    #[arg(long)]
    threads: bool,
    /// Shares of each process
    #[arg(long)]
    processes: bool,
    /// Shares of each machine
    #[arg(long)]
    hosts: bool,
    /// Everything that has a sample, not only what is hot
    #[arg(short, long)]
    all: bool,
    /// Only functions in files whose path contains PART, whatever they take
    #[arg(long, value_name = "PART")]
    file: Option<String>,
    /// Only functions whose name contains PART, whatever they take
    #[arg(long, value_name = "PART")]
    function: Option<String>,
    /// When to use colour
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: Colour,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    recorder: Recorder,
    /// Record this command first, as `jitlisten record` does; the recording is not kept
    #[arg(last = true, value_name = "CMD", conflicts_with = "files")]
    command: Vec<OsString>,
}

/// How a command is recorded: options of `jitlisten record`, which checks them.
#[derive(Args)]
#[command(next_help_heading = "Options for CMD")]
#[group(requires = "command", conflicts_with = "files")]
struct Recorder {
    /// Samples for each second of a thread's time [default: 199]
    #[arg(short, long, value_name = "HZ")]
    rate: Option<String>,
    /// Wall-clock time: threads that wait, too, whose system calls are interrupted
    #[arg(long)]
    wall: bool,
    /// The processes that the program starts, too
    #[arg(short = 's', long)]
    subprocesses: bool,
    /// Leave Numba's code without line tables
    #[arg(long)]
    no_lines: bool,
    /// No frames for functions of Python
    #[arg(long)]
    no_python: bool,
}

impl Lines {
    pub(crate) fn execute(mut self) -> Result<ExitCode, Problem> {
        if !self.command.is_empty() {
            let scratch = Scratch::new()?;
            // What is counted is the only event of the recording.
            let event = self.reading.event.take();
            let status = self.recorder.record(&self.command, event, &scratch)?;
            self.show(&scratch.recordings())?;
            return Ok(status);
        }
        self.show(&self.files)?;
        Ok(ExitCode::SUCCESS)
    }

    fn show(&self, files: &[PathBuf]) -> Result<(), Problem> {
        // The page can choose a thread.
        let report = self.reading.open(files, self.threads || self.html.is_some(), false)?;
        if let Some(out) = &self.html {
            recording::write(Some(out), to_html(&report).as_bytes())?;
        }
        if let Some(out) = &self.json {
            recording::write(Some(out), format!("{:#}\n", to_json(&report)).as_bytes())?;
        }
        if self.html.is_some() || self.json.is_some() {
            return Ok(());
        }
        let style = Style {
            width: recording::width(),
            colour: self.color.wanted(),
            all: self.all,
            threads: self.threads,
            processes: self.processes,
            hosts: self.hosts,
            file: self.file.as_deref(),
            function: self.function.as_deref(),
        };
        let text = to_text(&report, style);
        recording::write(None, text.as_bytes())
    }
}

impl Recorder {
    /// `jitlisten record` of a command; returns the command's own status.
    fn record(&self, words: &[OsString], event: Option<String>, scratch: &Scratch) -> Result<ExitCode, Problem> {
        let options = [("-r", self.rate.clone()), ("-e", event)];
        let flags = [
            ("--wall", self.wall),
            ("-s", self.subprocesses),
            ("--no-lines", self.no_lines),
            ("--no-python", self.no_python),
        ];
        let mut recorder = command::recorder(&scratch.recording(), &options, &flags)?;
        // What was recorded up to a signal is still to be shown.
        let (status, waiting) = command::record(&mut recorder, words)?;
        waiting.end();
        if !scratch.recording().exists() {
            return Err(Problem::new("nothing was recorded: see above, or try jitlisten doctor"));
        }
        Ok(command::exit_code(status))
    }
}

/// A directory of this process that only its user can enter, for a recording and those of child processes; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Problem> {
        let directory = std::env::temp_dir().join(format!("jitlisten-lines-{}", std::process::id()));
        DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(|error| Problem::new(format!("cannot make {}: {error}", directory.display())))?;
        Ok(Scratch(directory))
    }

    fn recording(&self) -> PathBuf {
        self.0.join("jitlisten.perf.data")
    }

    /// The command's, and those of its children, which have its name and their number (`sampler/src/options.rs`).
    fn recordings(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        files.sort();
        files
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
