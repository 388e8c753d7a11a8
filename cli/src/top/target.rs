//! The recorder behind `top`: `jitlisten record` into a file in a private directory.
//!
//! A process of another user can change the recording and the files that it names. Hence `top -p` creates and reads all
//! files with the rights of that user; only the recorder keeps the rights of root.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use jitlisten_files::{OwnDirectory, create_new_in};
use jitlisten_report::{Follower, GrowingCompilations};
use rustix::process::Signal;

use super::Top;
use crate::command;
use crate::problem::Problem;
use crate::process::{ActingAs, Process};
use crate::record::checked_output;
use crate::recorder::no_recorder;
use crate::scratch::{Kind, Scratch};
use crate::system::{Blocked, end_with_parent, punch_hole, send_signal};

/// Bytes of the program's output that are shown at the end.
const MAX_OUTPUT_BYTES: u64 = 256 << 10;
/// How long a program that was asked to end may take, and the recorder of a process: that one completes its file.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(5);
const RECORDER_TIMEOUT: Duration = Duration::from_secs(30);
/// Parts that were read are freed in pieces of this size.
const PAGE: u64 = 4096;

/// Whether it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Running,
    /// The program has ended, in these words.
    Ended(String),
    /// It could not be recorded.
    Failed,
}

impl State {
    pub(crate) fn has_failed(&self) -> bool {
        *self == State::Failed
    }
}

/// See the module's head.
pub(crate) struct Target {
    _directory: Scratch,
    output: Output,
    recorder: Child,
    ended: Option<ExitStatus>,
    recorded: bool,
    /// The process of `-p`, which goes on when this ends.
    process: Option<Process>,
    /// Where the recording goes: into the directory, unless it is kept.
    recording: PathBuf,
    title: String,
    signals: Blocked,
    /// After the directory, which is removed with these rights.
    _rights: Option<ActingAs>,
}

impl Target {
    pub(crate) fn start(top: &Top) -> Result<Target, Problem> {
        // From here on the directory is removed at the end, whoever asks for it.
        let signals = Blocked::ends();
        let process = top.pid.map(Process::open).transpose()?;
        let rights = || {
            let acting = process.as_ref().map(Process::act_as_owner).transpose();
            acting.map_err(|error| Problem::new(format!("cannot act as the user of the process: {error}")))
        };
        let owner = rights()?;
        let directory = Scratch::new(Kind::Top)?;
        let output = Output::new(&directory.path)?;
        drop(owner);
        let pid = [("-p", top.pid.map(|pid| pid.to_string()))];
        let recording = match &top.output {
            Some(path) => {
                let _owner = rights()?;
                kept(path, top.pid)?
            }
            None => directory.path.join("top.perf.data"),
        };
        let mut command = top.recorder.command(&recording, &pid)?;
        if top.pid.is_none() {
            command.arg("--").args(&top.command);
        }
        command.stdin(Stdio::null()).stdout(output.stdio()?).stderr(output.stdio()?);
        end_with_parent(&mut command);
        let recorder = command.spawn().map_err(no_recorder)?;
        let title = match top.pid {
            Some(pid) => format!("process {pid}"),
            None => top.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
        };
        let rights = rights()?;
        Ok(Target {
            _directory: directory,
            output,
            recorder,
            ended: None,
            recorded: false,
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
        if self.ended.is_none() {
            self.ended = self.recorder.try_wait().unwrap_or_default();
        }
        match self.ended {
            Some(_) if !self.recorded && !self.recording.exists() => State::Failed,
            Some(status) if self.process.is_none() => State::Ended(command::ending(status)),
            Some(_) => State::Ended("has ended".to_owned()),
            None if self.recorded => State::Running,
            None => State::Starting,
        }
    }

    /// The recording, when there is one.
    pub(crate) fn recording(&mut self) -> Result<Option<Follower>, jitlisten_report::Error> {
        let follower = Follower::open(&self.recording)?;
        self.recorded |= follower.is_some();
        Ok(follower)
    }

    /// What Numba has compiled since the last look, of such a process.
    pub(crate) fn compilations(&self, so_far: &mut GrowingCompilations, is_recorded: impl Fn(u32) -> bool) {
        so_far.look(&self.recording, is_recorded);
    }

    /// Why there is nothing to see: the last line that was printed.
    pub(crate) fn reason(&self) -> String {
        let said = self.output.text();
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing was recorded");
        last.strip_prefix("jitlisten: ").unwrap_or(last).to_owned()
    }

    /// Ends what was started, at once if a signal comes meanwhile, and shows what it has printed.
    pub(crate) fn finish(&mut self) -> ExitCode {
        let mut asked = false;
        if self.ended.is_none() {
            asked = true;
            send_signal(self.recorder.id(), Signal::TERM);
            let timeout = if self.process.is_none() { PROGRAM_TIMEOUT } else { RECORDER_TIMEOUT };
            let deadline = Instant::now() + timeout;
            while self.ended.is_none() {
                self.ended = self.recorder.try_wait().unwrap_or_default();
                let is_interrupted = self.signals.arrived(Duration::from_millis(10)).is_some();
                if self.ended.is_none() && (is_interrupted || Instant::now() >= deadline) {
                    let _ = self.recorder.kill();
                    self.ended = self.recorder.wait().ok();
                }
            }
        }
        if self.process.is_some() {
            return ExitCode::SUCCESS;
        }
        if self.recorded {
            let _ = std::io::stdout().lock().write_all(self.output.text().as_bytes());
        }
        match self.ended {
            Some(status) if !asked => ExitCode::from(command::exit_code(status)),
            _ => ExitCode::SUCCESS,
        }
    }
}

/// The file that is to be kept; an earlier recording there gets another name, as it could be taken for this one.
fn kept(path: &Path, pid: Option<u32>) -> Result<PathBuf, Problem> {
    let path = checked_output(path, false, pid)?;
    let set_aside = jitlisten_sampler::set_aside(&path);
    set_aside.map_err(|error| Problem::new(format!("cannot write {}: {error}", path.display())))?;
    Ok(path)
}

/// Gives what has been read back to the file system. Where that cannot be done, the file grows.
pub(crate) fn give_back(file: &File, read: u64) {
    // The header stays: it is read at every look.
    if read > PAGE {
        punch_hole(file, PAGE, read / PAGE * PAGE - PAGE);
    }
}

/// Output of the program. The file is read through the descriptor that has made it: the user of the process may put
/// another one in its place.
struct Output(File);

impl Output {
    fn new(directory: &Path) -> Result<Output, Problem> {
        let file = OwnDirectory::open(directory).and_then(|directory| create_new_in(directory, "output"));
        file.map(Output)
            .map_err(|error| Problem::new(format!("cannot make a file in {}: {error}", directory.display())))
    }

    fn stdio(&self) -> Result<Stdio, Problem> {
        let same = self.0.try_clone().map(Stdio::from);
        same.map_err(|error| Problem::new(format!("cannot duplicate a descriptor: {error}")))
    }

    /// The end of the text.
    fn text(&self) -> String {
        let length = self.0.metadata().map_or(0, |data| data.len());
        let mut text = vec![0; length.min(MAX_OUTPUT_BYTES) as usize];
        let read = self.0.read_at(&mut text, length.saturating_sub(MAX_OUTPUT_BYTES)).unwrap_or(0);
        String::from_utf8_lossy(&text[..read]).into_owned()
    }
}
