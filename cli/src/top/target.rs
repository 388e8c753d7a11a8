//! The recorder behind `top`: `jitlisten record` into a file in a private directory.
//!
//! A process of another user can change the recording and the files that it names. Hence `top -p` creates and reads all
//! files with the rights of that user; only the recorder keeps the rights of root.

use std::fs::{self, DirBuilder, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use jitlisten_report::{Follower, GrowingCompilations};
use rustix::process::Signal;

use super::Top;
use crate::command;
use crate::problem::Problem;
use crate::process::{ActingAs, Process};
use crate::record::checked_output;
use crate::recorder::no_recorder;
use crate::system::{end_with_parent, punch_hole, send_signal};

/// Of what the program printed so much is shown at the end.
const MOST_OUTPUT: u64 = 256 << 10;
/// A program that was asked to end has so long. A recorder may be in the middle of a call in a process, which takes
/// seconds at most (`trace.rs`): it must not be killed there.
const PATIENCE: Duration = Duration::from_secs(30);
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
    directory: Scratch,
    recorder: Child,
    ended: Option<ExitStatus>,
    recorded: bool,
    /// The process of `-p`, which goes on when this ends.
    process: Option<Process>,
    /// Where the recording goes: into the directory, unless it is kept.
    recording: PathBuf,
    title: String,
    /// Behind the directory, which is removed with them.
    _rights: Option<ActingAs>,
}

impl Target {
    pub(crate) fn start(top: &Top) -> Result<Target, Problem> {
        let process = top.pid.map(Process::open).transpose()?;
        let rights = || {
            let acting = process.as_ref().map(Process::act_as_owner).transpose();
            acting.map_err(|error| Problem::new(format!("cannot act as the user of the process: {error}")))
        };
        let owner = rights()?;
        let directory = Scratch::new()?;
        let output = directory.output()?;
        drop(owner);
        let pid = [("-p", top.pid.map(|pid| pid.to_string()))];
        let recording = match &top.output {
            Some(path) => {
                let _owner = rights()?;
                kept(path, top.pid)?
            }
            None => directory.0.join("top.perf.data"),
        };
        let mut command = top.recorder.command(&recording, &pid)?;
        if top.pid.is_none() {
            command.arg("--").args(&top.command);
        }
        let same =
            output.try_clone().map_err(|error| Problem::new(format!("cannot duplicate a descriptor: {error}")))?;
        command.stdin(Stdio::null()).stdout(output).stderr(same);
        end_with_parent(&mut command);
        let recorder = command.spawn().map_err(no_recorder)?;
        let title = match top.pid {
            Some(pid) => format!("process {pid}"),
            None => top.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
        };
        let rights = rights()?;
        Ok(Target { directory, recorder, ended: None, recorded: false, process, recording, title, _rights: rights })
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
            Some(status) if self.process.is_none() => State::Ended(words(status)),
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
        let said = self.directory.said();
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing was recorded");
        last.strip_prefix("jitlisten: ").unwrap_or(last).to_owned()
    }

    /// Ends what was started, and shows what it has printed.
    pub(crate) fn finish(&mut self) -> ExitCode {
        let mut asked = false;
        if self.ended.is_none() {
            asked = true;
            send_signal(self.recorder.id(), Signal::TERM);
            let deadline = Instant::now() + PATIENCE;
            while self.ended.is_none() {
                self.ended = self.recorder.try_wait().unwrap_or_default();
                if self.ended.is_none() && Instant::now() >= deadline {
                    let _ = self.recorder.kill();
                    self.ended = self.recorder.wait().ok();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        if self.process.is_some() {
            return ExitCode::SUCCESS;
        }
        if self.recorded {
            let _ = std::io::stdout().lock().write_all(self.directory.said().as_bytes());
        }
        match self.ended {
            Some(status) if !asked => command::exit_code(status),
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

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(0), _) => "has ended".to_owned(),
        (Some(code), _) => format!("has ended with status {code}"),
        (_, Some(signal)) => format!("was ended by signal {signal}"),
        _ => "has ended".to_owned(),
    }
}

/// Gives what has been read back to the file system. Where that cannot be done, the file grows.
pub(crate) fn give_back(file: &File, read: u64) {
    // The header stays: it is read at every look.
    if read > PAGE {
        punch_hole(file, PAGE, read / PAGE * PAGE - PAGE);
    }
}

/// A directory that only its user can enter; removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Problem> {
        let path = std::env::temp_dir().join(format!("jitlisten-top-{}", std::process::id()));
        let problem = |error| Problem::new(format!("cannot make {}: {error}", path.display()));
        DirBuilder::new().mode(0o700).create(&path).map_err(problem)?;
        Ok(Scratch(path))
    }

    fn output(&self) -> Result<File, Problem> {
        let path = self.0.join("output");
        let file = File::options().create_new(true).append(true).open(&path);
        file.map_err(|error| Problem::new(format!("cannot make {}: {error}", path.display())))
    }

    /// The end of what was printed.
    fn said(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut file) = File::open(self.0.join("output")) {
            let length = file.metadata().map_or(0, |data| data.len());
            let _ = file.seek(SeekFrom::Start(length.saturating_sub(MOST_OUTPUT)));
            let _ = file.take(MOST_OUTPUT).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
