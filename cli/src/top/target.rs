//! The recorder behind `top`: `jitlisten record`, writing to a file in a private directory.
//!
//! The recorded process may belong to another user, who can then change the recording and the files that it references.
//! So `top -p` creates and reads all files with the rights of that user. Only the recorder itself keeps root's rights.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use jitlisten_files::{OwnDirectory, create_new_in};
use jitlisten_report::{Follower, GrowingCompilations};
use jitlisten_sampler::exact_pattern;
use rustix::process::Signal;

use super::Top;
use crate::command;
use crate::problem::Problem;
use crate::process::{ActingAs, Process};
use crate::record::resolve_output;
use crate::recorder::recorder_problem;
use crate::scratch::{Kind, Scratch};
use crate::system::{BlockedSignals, end_with_parent, punch_hole, send_signal};

/// Maximum amount of program output that is shown on exit; older output is omitted.
const MAX_OUTPUT_BYTES: u64 = 256 << 10;
/// Time that a program has to exit after SIGTERM. A recorder with `-p` gets longer, because it must complete its file.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);
const RECORDER_TIMEOUT: Duration = Duration::from_secs(30);
/// Granularity at which parts of the recording are freed.
const PAGE_BYTES: u64 = 4096;

/// State of the recorded program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Running,
    /// The program ended; the string describes how.
    Ended(String),
    Failed,
}

impl State {
    pub(crate) fn has_failed(&self) -> bool {
        *self == State::Failed
    }
}

/// The recorder, its files, and the process that it records.
pub(crate) struct Target {
    _directory: Scratch,
    output: Output,
    recorder: Child,
    exit_status: Option<ExitStatus>,
    has_recording: bool,
    /// Process given with `-p`, which keeps running when top exits.
    process: Option<Process>,
    /// Path of the recording, which is in the scratch directory unless the user keeps it.
    recording: PathBuf,
    title: String,
    signals: BlockedSignals,
    /// Declared after `_directory`, because fields are dropped in order and removing the directory needs these rights.
    _rights: Option<ActingAs>,
}

impl Target {
    pub(crate) fn start(top: &Top) -> Result<Target, Problem> {
        // From here on, a signal ends top only after the directory has been removed.
        let signals = BlockedSignals::termination();
        let process = top.pid.map(Process::open).transpose()?;
        let open_rights = || {
            let guard = process.as_ref().map(Process::act_as_owner).transpose();
            guard.map_err(|error| Problem::new(format!("cannot act as the user of the process: {error}")))
        };
        let rights_guard = open_rights()?;
        let directory = Scratch::new(Kind::Top)?;
        let output = Output::new(&directory.path)?;
        drop(rights_guard);
        let pid = [("-p", top.pid.map(|pid| pid.to_string()))];
        let recording = match &top.output {
            Some(path) => {
                let _owner = open_rights()?;
                prepare_kept_file(path, top.pid)?
            }
            None => directory.path.join("top.perf.data"),
        };
        let mut command = top.recorder.command(&exact_pattern(&recording), &pid)?;
        if top.pid.is_none() {
            command.arg("--").args(&top.command);
        }
        command.stdin(Stdio::null()).stdout(output.stdio()?).stderr(output.stdio()?);
        end_with_parent(&mut command);
        let recorder = command.spawn().map_err(recorder_problem)?;
        let title = match top.pid {
            Some(pid) => format!("process {pid}"),
            None => top.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
        };
        let rights = open_rights()?;
        Ok(Target {
            _directory: directory,
            output,
            recorder,
            exit_status: None,
            has_recording: false,
            process,
            recording,
            title,
            signals,
            _rights: rights,
        })
    }

    pub(crate) fn title(&self) -> String {
        self.title.clone()
    }

    pub(crate) fn state(&mut self) -> State {
        if self.exit_status.is_none() {
            self.exit_status = self.recorder.try_wait().unwrap_or_default();
        }
        match self.exit_status {
            Some(_) if !self.has_recording && !self.recording.exists() => State::Failed,
            Some(status) if self.process.is_none() => State::Ended(command::describe_exit(status)),
            Some(_) => State::Ended("has ended".to_owned()),
            None if self.has_recording => State::Running,
            None => State::Starting,
        }
    }

    /// Opens the recording, if it exists already.
    pub(crate) fn recording(&mut self) -> Result<Option<Follower>, jitlisten_report::Error> {
        let follower = Follower::open(&self.recording)?;
        self.has_recording |= follower.is_some();
        Ok(follower)
    }

    /// Reads Numba's new compilations in the processes for which `is_recorded` returns true.
    pub(crate) fn compilations(&self, compilations: &mut GrowingCompilations, is_recorded: impl Fn(u32) -> bool) {
        compilations.read_new(&self.recording, is_recorded);
    }

    /// Reason why nothing was recorded: the last line that the recorder printed.
    pub(crate) fn reason(&self) -> String {
        let output = self.output.text();
        let last_line = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing was recorded");
        last_line.strip_prefix("jitlisten: ").unwrap_or(last_line).to_owned()
    }

    /// Exit status of a command that has ended; 0 for other programs.
    pub(crate) fn program_status(&self) -> u8 {
        self.exit_status.filter(|_| self.process.is_none()).map_or(0, command::exit_code)
    }

    /// Ends the recorder and prints the program's output. If a signal arrives meanwhile, the recorder is killed.
    pub(crate) fn finish(&mut self) -> ExitCode {
        let mut was_terminated = false;
        if self.exit_status.is_none() {
            was_terminated = true;
            send_signal(self.recorder.id(), Signal::TERM);
            let timeout = if self.process.is_none() { PROGRAM_TIMEOUT } else { RECORDER_TIMEOUT };
            let deadline = Instant::now() + timeout;
            while self.exit_status.is_none() {
                self.exit_status = self.recorder.try_wait().unwrap_or_default();
                let is_interrupted = self.signals.wait_signal(Duration::from_millis(10)).is_some();
                if self.exit_status.is_none() && (is_interrupted || Instant::now() >= deadline) {
                    let _ = self.recorder.kill();
                    self.exit_status = self.recorder.wait().ok();
                }
            }
        }
        if self.process.is_some() {
            return ExitCode::SUCCESS;
        }
        if self.has_recording {
            let _ = std::io::stdout().lock().write_all(self.output.text().as_bytes());
        }
        match self.exit_status {
            Some(status) if !was_terminated => ExitCode::from(command::exit_code(status)),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// Prepares the path of a recording that the user keeps. An earlier recording there is renamed, because it could be
/// mistaken for the new one.
fn prepare_kept_file(path: &Path, pid: Option<u32>) -> Result<PathBuf, Problem> {
    let path = resolve_output(path, false, pid, true)?.path;
    let result = jitlisten_sampler::rename_existing(&path);
    result.map_err(|error| Problem::new(format!("cannot write {}: {error}", path.display())))?;
    Ok(path)
}

/// Frees the part of the recording that was read. If the file system does not support that, the file keeps its size on
/// disk.
pub(crate) fn free_read_part(file: &File, read_bytes: u64) {
    // Keep the first page, because every refresh reads the header.
    if read_bytes > PAGE_BYTES {
        punch_hole(file, PAGE_BYTES, read_bytes / PAGE_BYTES * PAGE_BYTES - PAGE_BYTES);
    }
}

/// Output of the program. It is read through the original descriptor, because the recorded process's user could replace
/// the file.
struct Output(File);

impl Output {
    fn new(directory: &Path) -> Result<Output, Problem> {
        let file = OwnDirectory::open(directory).and_then(|directory| create_new_in(directory, "output"));
        file.map(Output)
            .map_err(|error| Problem::new(format!("cannot make a file in {}: {error}", directory.display())))
    }

    fn stdio(&self) -> Result<Stdio, Problem> {
        let stdio = self.0.try_clone().map(Stdio::from);
        stdio.map_err(|error| Problem::new(format!("cannot duplicate a descriptor: {error}")))
    }

    /// Returns the end of the output.
    fn text(&self) -> String {
        let length = self.0.metadata().map_or(0, |metadata| metadata.len());
        let mut text = vec![0; length.min(MAX_OUTPUT_BYTES) as usize];
        let read = self.0.read_at(&mut text, length.saturating_sub(MAX_OUTPUT_BYTES)).unwrap_or(0);
        String::from_utf8_lossy(&text[..read]).into_owned()
    }
}
