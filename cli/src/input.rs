//! The input of a command: recordings, or a program to record first.
//!
//! `--` before the program may be omitted: the first word decides ([`with_dashes`]).

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::bundle;
use crate::command;
use crate::problem::Problem;
use crate::record::{USUAL_FILE, checked_output};
use crate::recorder::{self, Recorder};
use crate::scratch::{Kind, Scratch};
use crate::sinks::is_writable;

/// See the module's head.
#[derive(Args)]
pub(crate) struct Input {
    /// Recordings, or folders of them; several are added up [default: jitlisten.perf.data, or perf.data]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Record this command first. `--` may be omitted; prog.py and -m MODULE mean this environment's Python
    #[arg(last = true, value_name = "CMD", conflicts_with = "files")]
    command: Vec<OsString>,
    #[command(flatten, next_help_heading = "Options for CMD")]
    recorder: Recorder,
}

/// The recordings to read.
pub(crate) struct Recordings {
    pub(crate) files: Vec<PathBuf>,
    /// That of the command.
    status: u8,
    kept: Option<PathBuf>,
    _scratch: Option<Scratch>,
}

impl Input {
    /// The recordings that are named, or those of the command, which is run now. They stay in `output`, or in the usual
    /// file.
    pub(crate) fn recordings(&self, output: Option<&Path>, event: &mut Option<String>) -> Result<Recordings, Problem> {
        if !self.command.is_empty() {
            // What is counted is the only event of the recording.
            return self.record(output, event.take());
        }
        if output.is_some() || self.recorder != Recorder::default() {
            return Err(Problem::new("options for CMD cannot be used with a recording")
                .help("name a command, as in `jitlisten lines prog.py`"));
        }
        match self.files.first() {
            Some(first) if !first.exists() => {
                Err(Problem::new(format!("{} is neither a recording nor a command", first.display())))
            }
            _ => Ok(Recordings { files: self.files.clone(), status: 0, kept: None, _scratch: None }),
        }
    }

    fn record(&self, output: Option<&Path>, event: Option<String>) -> Result<Recordings, Problem> {
        let scratch =
            (output.is_none() && !is_writable(Path::new("."))).then(|| Scratch::new(Kind::Lines)).transpose()?;
        let path = match &scratch {
            Some(scratch) => scratch.path.join(USUAL_FILE),
            None => checked_output(output.unwrap_or(Path::new(USUAL_FILE)), false, None)?,
        };
        let before = seen(&path);
        let mut recorder = self.recorder.command(&path, &[("-e", event)])?;
        // What was recorded up to a signal is still to be shown.
        let (status, waiting) = recorder::record(&mut recorder, &self.command)?;
        waiting.end();
        if !status.success() {
            let _ = writeln!(std::io::stderr(), "jitlisten: the program {}", command::ending(status));
        }
        // An earlier recording may have got another name.
        let new = seen(&path).into_iter().filter(|(_, identity)| !before.values().any(|before| before == identity));
        let mut files: Vec<PathBuf> = new.map(|(path, _)| path).filter(|path| bundle::is_recording(path)).collect();
        files.sort();
        let status = command::exit_code(status);
        if files.is_empty() {
            let problem = Problem::new("nothing was recorded").help("see above, or try jitlisten doctor");
            return Err(problem.after(status));
        }
        let kept = match &scratch {
            Some(_) => None,
            None => Some(output.map_or_else(|| PathBuf::from(USUAL_FILE), Path::to_owned)),
        };
        Ok(Recordings { files, status, kept, _scratch: scratch })
    }
}

impl Recordings {
    /// Shows them; the exit status is that of the command, also if it has failed and then this fails.
    pub(crate) fn show(&self, show: impl FnOnce(&Recordings) -> Result<(), Problem>) -> Result<ExitCode, Problem> {
        show(self).map_err(|problem| problem.after(self.status))?;
        Ok(ExitCode::from(self.status))
    }

    /// Where the recording is, and what else shows it.
    pub(crate) fn say_kept(&self) {
        let Some(kept) = &self.kept else { return };
        let name = if kept == Path::new(USUAL_FILE) { String::new() } else { format!(" {}", kept.display()) };
        let _ = writeln!(
            std::io::stderr(),
            "jitlisten: kept in {}: jitlisten lines --html page.html{name}, flamegraph{name}, compiles{name}",
            kept.display()
        );
    }
}

/// Files beside this one that begin as it does: those of children have a number behind its name
/// (`sampler/src/options.rs`), and `%p` in a name is one. With each what changes when it is written.
fn seen(path: &Path) -> HashMap<PathBuf, (u64, i64, i64)> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let start = name.split(|byte| *byte == b'%').next().unwrap_or_default();
    let entries = fs::read_dir(path.parent().unwrap_or(Path::new("."))).into_iter().flatten().flatten();
    let same_start = entries.filter(|entry| entry.file_name().as_bytes().starts_with(start));
    let file = |entry: fs::DirEntry| {
        let data = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((entry.path(), (data.ino(), data.mtime(), data.mtime_nsec())))
    };
    same_start.filter_map(file).collect()
}

/// Puts `--` in front of a command that is named without, for the subcommands with an [`Input`]; for others in front of
/// `-m`, which would be an option.
pub(crate) fn with_dashes(arguments: &clap::Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let subcommand = words.get(1).and_then(|name| arguments.find_subcommand(name));
    let takes = |wanted| {
        subcommand.is_some_and(|subcommand| subcommand.get_arguments().any(|argument| argument.get_id() == wanted))
    };
    if let Some(first) = subcommand.filter(|_| takes("command")).and_then(|subcommand| first_word(subcommand, &words))
        && (words[first] == "-m" || (takes("files") && is_command(&words[first])))
    {
        words.insert(first, "--".into());
    }
    words
}

/// Where the first word is that is neither an option nor the value of one, nor a word that comes before recordings and
/// commands; none behind a `--`. `-m` is no option of ours.
fn first_word(subcommand: &clap::Command, words: &[OsString]) -> Option<usize> {
    let is_input = |argument: &&clap::Arg| argument.get_id() == "files" || argument.get_id() == "command";
    let mut before = subcommand.get_positionals().take_while(|argument| !is_input(argument)).count();
    let takes_value = |wanted: &dyn Fn(&clap::Arg) -> bool| {
        subcommand.get_arguments().any(|argument| wanted(argument) && argument.get_action().takes_values())
    };
    let mut at = 2;
    while let Some(word) = words.get(at) {
        let text = word.to_string_lossy();
        let value_follows = match text.strip_prefix("--") {
            Some("") => return None,
            Some(long) => takes_value(&|argument| argument.get_long() == Some(long)),
            None => match text.strip_prefix('-').filter(|shorts| !shorts.is_empty() && *shorts != "m") {
                // The rest of a cluster is the value of the first option that takes one.
                Some(shorts) => shorts
                    .char_indices()
                    .find(|(_, short)| takes_value(&|argument| argument.get_short() == Some(*short)))
                    .is_some_and(|(place, short)| place + short.len_utf8() == shorts.len()),
                None if before == 0 => return Some(at),
                None => {
                    before -= 1;
                    false
                }
            },
        };
        at += if value_follows { 2 } else { 1 };
    }
    None
}

/// A recording may have the name of a command, and a folder with none in it, too.
fn is_command(word: &OsStr) -> bool {
    let path = Path::new(word);
    let is_recording = bundle::is_recording(path) || (path.is_dir() && !bundle::opened(path).0.is_empty());
    command::is_for_python(word) || (!is_recording && command::find(word).is_some())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Arguments {
        #[command(subcommand)]
        _command: Subcommands,
    }

    #[derive(clap::Subcommand)]
    enum Subcommands {
        Lines(crate::lines::Lines),
        Record(crate::record::Record),
        Why(crate::why::Why),
    }

    /// The words with `--` where it is put.
    fn separated(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        with_dashes(&Arguments::command(), words).join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn the_first_word_that_is_a_command_ends_our_options() {
        for line in [
            "jitlisten lines | true",
            "jitlisten lines -s --rate 99 --html a.html | true --html b.html",
            "jitlisten lines -sr 99 | true -- x",
            "jitlisten lines -r99 -ao true.data | true",
            "jitlisten lines --json=- | -m pkg.module -x",
            "jitlisten lines -s | /bin/true",
            "jitlisten why true -r 99 | true -x",
            "jitlisten record -r 99 | -m pkg.module -x",
        ] {
            assert_eq!(separated(&line.replace("| ", "")), line.replace('|', "--"));
        }
    }

    #[test]
    fn recordings_and_commands_behind_dashes_stay() {
        for line in [
            "jitlisten lines",
            "jitlisten lines no-such.data",
            "jitlisten lines -r true --html true",
            "jitlisten lines -- true",
            "jitlisten lines src",
            "jitlisten record true",
            "jitlisten no-such true",
            "jitlisten why true",
            "jitlisten why true no-such.data",
        ] {
            assert_eq!(separated(line), line);
        }
    }
}
