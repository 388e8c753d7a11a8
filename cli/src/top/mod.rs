//! `jitlisten top`: a live view of functions and their hottest lines.
//!
//! ```text
//! target.rs    starts `jitlisten record` into a private file
//! table.rs     accumulates samples and selects rows                      pure
//! screen.rs    renders the rows as lines of a terminal                   pure
//! terminal.rs  the alternate screen and keys; always restores the terminal
//! ```
//! The recording is read while it is being written (`jitlisten_report::Follower`). Parts that were read are freed on
//! disk, so a day of recording takes no more space than a second.

mod screen;
mod table;
mod target;
mod terminal;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use jitlisten_report::{Follower, Lookup, Options, Report, Selection, SymbolCache};

use crate::hint::as_argument;
use crate::problem::Problem;
use crate::recorder::Recorder;
use screen::{Screen, View};
use table::Table;
use target::Target;
use terminal::{Input, Terminal};

/// Interval at which the recording is read and the screen refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "Examples:
  jitlisten top -- python prog.py
  jitlisten top -p 4711

What a command prints is kept, and shown when top ends. q ends top, and a command that it has started; a process given \
with -p goes on as before. ? lists the keys.";

/// Watch functions and their hottest lines in a running program
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// Look here first for images, libraries, perf maps and sources
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,
    /// Keep the recording in this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Running process to watch, instead of a command
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    #[command(flatten)]
    recorder: Recorder,
    /// The command and its arguments; prog.py and -m MODULE mean this environment's Python
    #[arg(required_unless_present = "pid", trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Top {
    pub(crate) fn execute(self) -> Result<ExitCode, Problem> {
        if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
            return Err(Problem::new("top needs a terminal for input and output")
                .help("`jitlisten lines -- CMD` prints a table anywhere"));
        }
        if self.recorder.run_environment.subprocesses {
            return Err(Problem::new("top shows one process, without its children").help("omit -s"));
        }
        let mut target = Target::start(&self)?;
        let table = self.watch(&mut target);
        // By now, the terminal has been restored.
        let status = target.finish();
        let table = table.map_err(|problem| problem.with_program_status(target.program_status()))?;
        let _ = std::io::stdout().lock().write_all(table.as_bytes());
        if let Some(path) = &self.output {
            let (path, argument) = (path.display(), as_argument(path));
            let _ = writeln!(std::io::stderr(), "jitlisten: kept in {path}: jitlisten lines {argument}");
        }
        Ok(status)
    }

    /// Runs the screen until the user quits; returns the final table as text.
    fn watch(&self, target: &mut Target) -> Result<String, Problem> {
        let mut terminal = Terminal::enter()?;
        let mut live = LiveTable::new(&self.root, self.output.is_some());
        let mut screen = Screen::new(target.title(), self.recorder.rate);
        let mut next_refresh = Instant::now();
        loop {
            if Instant::now() >= next_refresh {
                next_refresh = Instant::now() + REFRESH_INTERVAL;
                if !live.is_over {
                    screen.state = target.state();
                    live.refresh(target, &mut screen)?;
                }
                terminal.draw(&screen.lines(&live.table, terminal.size()))?;
            }
            if screen.state.has_failed() {
                return Err(Problem::new(target.reason()));
            }
            match terminal.input(next_refresh.saturating_duration_since(Instant::now()))? {
                Input::Quit => break,
                Input::None => {}
                Input::Resized => terminal.draw(&screen.lines(&live.table, terminal.size()))?,
                Input::Key(key) => {
                    if screen.handle_key(key, &mut live.table, terminal.size()) {
                        break;
                    }
                    terminal.draw(&screen.lines(&live.table, terminal.size()))?;
                }
            }
        }
        Ok(screen.render_final_table(&mut live.table, terminal.size().0))
    }
}

/// A growing recording, and the table accumulated from it.
struct LiveTable {
    follower: Option<Follower>,
    cache: SymbolCache,
    options: Options,
    table: Table,
    /// True if the recording is kept on disk rather than freed after reading.
    is_kept: bool,
    /// True if the program has ended and the whole recording has been read.
    is_over: bool,
}

impl LiveTable {
    fn new(roots: &[PathBuf], is_kept: bool) -> LiveTable {
        let lookup = Lookup { roots: roots.to_vec(), ..Lookup::default() };
        LiveTable {
            follower: None,
            cache: SymbolCache::default(),
            options: Options { lookup, ..Options::default() },
            table: Table::default(),
            is_kept,
            is_over: false,
        }
    }

    /// Reads the new part of the recording and updates the table.
    fn refresh(&mut self, target: &mut Target, screen: &mut Screen) -> Result<(), Problem> {
        if self.follower.is_none() {
            self.follower = target.recording().map_err(Problem::new)?;
        }
        let Some(follower) = &mut self.follower else { return Ok(()) };
        let mut recording = follower.next_part(&Selection::default()).map_err(Problem::new)?;
        let (file, read_bytes) = follower.progress();
        if !self.is_kept {
            target::free_read_part(file, read_bytes);
        }
        if screen.is_paused() {
            return Ok(());
        }
        self.table.add_threads(&recording);
        let threads: Vec<u32> = self.table.thread_rows().iter().map(|(tid, _)| *tid).collect();
        target.compilations(&mut self.table.compilations, |pid| threads.contains(&pid));
        if let Some(tid) = screen.thread() {
            let threads = &recording.threads;
            recording.samples.retain(|sample| threads[sample.thread as usize].tid == tid);
        }
        let report = Report::with_cache(&mut self.cache, recording, None, &self.options);
        self.table.add(&report, matches!(screen.view(), View::Source(_)));
        if screen.has_ended() {
            self.table.end();
            self.is_over = true;
        }
        Ok(())
    }
}
