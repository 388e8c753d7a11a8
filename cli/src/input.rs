//! Input of a report command: existing recordings, or a program to record first.
//!
//! The user may omit `--` before the program; the first positional argument then decides ([`insert_dashes`]).

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jitlisten_sampler::{Origin, exact_pattern};

use crate::bundle;
use crate::command;
use crate::hint::{as_argument, as_pattern};
use crate::problem::Problem;
use crate::record::{DEFAULT_OUTPUT, Output, resolve_output};
use crate::recorder::{self, Recorded, Recorder};
use crate::recording::{default_file, is_page};
use crate::scratch::{Kind, Scratch};
use crate::sinks::is_writable;

/// Arguments of a command that reads recordings or records a program first.
#[derive(Args)]
pub(crate) struct Input {
    /// Recordings, or folders of them; several are merged [default: jitlisten.perf.data, or perf.data]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Record this command first. `--` may be omitted; prog.py and -m MODULE mean this environment's Python
    #[arg(last = true, value_name = "CMD", conflicts_with = "files")]
    command: Vec<OsString>,
    #[command(flatten, next_help_heading = "Options for CMD")]
    recorder: Recorder,
}

/// Recordings to read, and the exit status of the program that was recorded.
pub(crate) struct Recordings {
    pub(crate) files: Vec<PathBuf>,
    /// Exit status of the recorded command; 0 if no command was run.
    status: u8,
    /// How the recorded command ended, if it failed.
    failure: Option<String>,
    kept_path: Option<PathBuf>,
    _scratch: Option<Scratch>,
}

impl Input {
    /// Returns the recordings that the user named, or runs the command and returns its recordings. New recordings are
    /// written to `output`, or to the default file.
    pub(crate) fn recordings(&self, output: Option<&Path>, event: &mut Option<String>) -> Result<Recordings, Problem> {
        if !self.command.is_empty() {
            // A new recording contains only this event, so no event needs to be selected when it is read.
            return self.record(output, event.take());
        }
        if output.is_some() || self.recorder != Recorder::default() {
            return Err(Problem::new("options for CMD cannot be used with a recording")
                .help("name a command, as in `jitlisten lines prog.py`"));
        }
        match self.files.first() {
            Some(first) if !first.exists() => {
                Err(Problem::new(format!("there is no file or command {}", first.display())))
            }
            _ => {
                let files = recordings_among(&self.files);
                Ok(Recordings { files, status: 0, failure: None, kept_path: None, _scratch: None })
            }
        }
    }

    fn record(&self, output: Option<&Path>, event: Option<String>) -> Result<Recordings, Problem> {
        let scratch =
            (output.is_none() && !is_writable(Path::new("."))).then(|| Scratch::new(Kind::Lines)).transpose()?;
        let (name, adds_rank) = match &scratch {
            Some(scratch) => (exact_pattern(&scratch.path.join(DEFAULT_OUTPUT)), false),
            None => (output.unwrap_or(Path::new(DEFAULT_OUTPUT)).into(), true),
        };
        let output = resolve_output(Path::new(&name), false, None, adds_rank)?;
        let old_files = list_recordings(&output);
        let mut recorder = self.recorder.command(&output.pattern, &[("-e", event)])?;
        // Even if a signal ended the recording early, the part recorded until then is shown.
        let Recorded { pid, status, waiting } = recorder::record(&mut recorder, &self.command)?;
        waiting.release();
        if !status.success() {
            let _ = writeln!(std::io::stderr(), "jitlisten: the program {}", command::describe_exit(status));
        }
        // The recorder may have renamed an earlier recording, so compare inode numbers and times rather than names.
        let new_files = list_recordings(&output)
            .into_iter()
            .filter(|(_, identity)| !old_files.values().any(|old_identity| old_identity == identity));
        let mut files: Vec<PathBuf> =
            new_files.map(|(path, _)| path).filter(|path| bundle::is_recording(path)).collect();
        files.sort();
        let failure = match (status.code(), status.signal()) {
            (Some(0), _) => None,
            (Some(code), _) => Some(format!("exit status {code}")),
            (None, signal) => Some(format!("signal {}", signal.unwrap_or_default())),
        };
        // Without -s, other new files are of another recorder that uses the same name.
        let is_own = |path: &PathBuf| {
            Origin::read(path).is_some_and(|origin| origin.pid == pid || origin.run.is_some_and(|run| run.0.pid == pid))
        };
        if !self.recorder.run_environment.subprocesses && files.iter().any(is_own) {
            files.retain(is_own);
        }
        let status = command::exit_code(status);
        if files.is_empty() {
            let problem = Problem::new("nothing was recorded").help("see above, or try jitlisten doctor");
            return Err(problem.with_program_status(status));
        }
        let kept_path = match &scratch {
            Some(_) => None,
            None => Some(display_name(&name, &files)),
        };
        Ok(Recordings { files, status, failure, kept_path, _scratch: scratch })
    }
}

impl Recordings {
    /// Calls `show` and returns the command's exit status, which takes precedence over a failure of `show`.
    pub(crate) fn show(&self, show: impl FnOnce(&Recordings) -> Result<(), Problem>) -> Result<ExitCode, Problem> {
        show(self).map_err(|problem| problem.with_program_status(self.status))?;
        Ok(ExitCode::from(self.status))
    }

    /// Returns how the recorded command ended, if it failed.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Returns the commands that show more of the recording. `None` if it is not kept, or if a program reads the report
    /// of an earlier recording.
    pub(crate) fn next_step(&self) -> Option<String> {
        if self.kept_path.is_none() && !std::io::stdout().is_terminal() {
            return None;
        }
        let (path, is_default) = match (&self.kept_path, self.files.as_slice()) {
            (Some(path), _) => (path.clone(), path == Path::new(DEFAULT_OUTPUT)),
            (None, [path]) if self._scratch.is_none() => (path.clone(), false),
            (None, []) => (PathBuf::from(DEFAULT_OUTPUT), true),
            _ => return None,
        };
        let name = if is_default { DEFAULT_OUTPUT.into() } else { as_pattern(&path) };
        let argument = if is_default { String::new() } else { format!(" {}", as_argument(&path)) };
        Some(format!("{name}: jitlisten lines --open{argument} (page) · compiles · flamegraph"))
    }

    /// Returns the path of the page that `--open` writes: beside the recording, with a name of its own.
    pub(crate) fn page_path(&self) -> Result<PathBuf, Problem> {
        let path = match (&self.kept_path, self.files.first()) {
            (Some(path), _) => path.clone(),
            (None, _) if self._scratch.is_some() => {
                return Err(Problem::new("this directory cannot be written").help("name a page: --html FILE"));
            }
            (None, Some(path)) => path.clone(),
            (None, None) => default_file()?,
        };
        let others = if self.kept_path.is_none() { self.files.len().saturating_sub(1) } else { 0 };
        Ok(page_beside(&path, others))
    }

    /// Prints where the recording was kept, and which other commands can show it.
    pub(crate) fn announce_kept(&self) {
        let Some(path) = &self.kept_path else { return };
        let is_default = path == Path::new(DEFAULT_OUTPUT);
        let name = if is_default { String::new() } else { format!(" {}", as_argument(path)) };
        let _ = writeln!(
            std::io::stderr(),
            "jitlisten: kept in {}: jitlisten lines --open{name}, flamegraph{name}, compiles{name}",
            path.display()
        );
    }
}

/// Returns the name of the only new recording in the directory that the user named, or the name as the user wrote it.
fn display_name(name: &OsStr, files: &[PathBuf]) -> PathBuf {
    match files {
        [file] => Path::new(name).with_file_name(file.file_name().unwrap_or_default()),
        _ => name.into(),
    }
}

/// Returns the files without what a pattern such as `prof.data*` matches beside the recordings: the image directories
/// of those, and our pages of several. Pages alone are kept, so that they are refused.
fn recordings_among(files: &[PathBuf]) -> Vec<PathBuf> {
    let is_images = |path: &Path| {
        path.extension().is_some_and(|extension| extension == "images") && files.contains(&path.with_extension(""))
    };
    let is_other = |path: &&PathBuf| !is_images(path) && !is_page(path);
    let recordings: Vec<PathBuf> = files.iter().filter(is_other).cloned().collect();
    if recordings.is_empty() { files.to_vec() } else { recordings }
}

/// Returns the name of the page for a recording, or for a directory of recordings, and for `others` merged with it. The
/// whole name is kept, because recordings of processes differ only in their last suffix: `prof.data.12`.
fn page_beside(path: &Path, others: usize) -> PathBuf {
    // `.` and `..` have no name.
    let path = if path.file_name().is_some() { path.to_owned() } else { fs::canonicalize(path).unwrap_or_default() };
    let mut name = path.file_name().unwrap_or(OsStr::new("recordings")).to_owned();
    if others != 0 {
        name.push(format!("+{others}"));
    }
    name.push(".html");
    path.with_file_name(name)
}

/// Lists the files that a recorder may have written: those beside `output` whose names begin like its own. Recordings
/// of children have a numeric suffix (`sampler/src/recording/options.rs`), and `%p` in a name becomes a number. The
/// value of an entry changes whenever its file is written.
fn list_recordings(output: &Output) -> HashMap<PathBuf, (u64, i64, i64)> {
    let name = output.path.file_name().unwrap_or_default().as_bytes();
    let pattern = Path::new(&output.pattern).file_name().unwrap_or_default().as_bytes();
    let names_process = pattern.windows(2).any(|letters| letters == b"%p");
    let prefix = if names_process { pattern.split(|byte| *byte == b'%').next().unwrap_or_default() } else { name };
    let entries = fs::read_dir(output.path.parent().unwrap_or(Path::new("."))).into_iter().flatten().flatten();
    let siblings = entries.filter(|entry| entry.file_name().as_bytes().starts_with(prefix));
    let path_with_identity = |entry: fs::DirEntry| {
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some((entry.path(), (metadata.ino(), metadata.mtime(), metadata.mtime_nsec())))
    };
    siblings.filter_map(path_with_identity).collect()
}

/// Inserts `lines` if a program, a recording or `--` takes the position of the subcommand.
pub(crate) fn insert_default_subcommand(app: &clap::Command, words: Vec<OsString>) -> Vec<OsString> {
    let mut words_with_lines = words.clone();
    words_with_lines.insert(1, "lines".into());
    let is_path = |word: &OsString| {
        let path = Path::new(word);
        path.exists() || path.extension().is_some_and(|extension| extension == "py" || extension == "data")
    };
    let is_subcommand = |word: &OsString| word == "help" || app.find_subcommand(word).is_some();
    let names_input = match (words.get(1), app.find_subcommand("lines")) {
        (Some(word), _) if is_subcommand(word) => false,
        (Some(word), _) if word == "--" => true,
        (_, Some(lines)) => first_word(lines, &words_with_lines)
            .is_some_and(|first| is_command(&words_with_lines[first]) || is_path(&words_with_lines[first])),
        _ => false,
    };
    if names_input { words_with_lines } else { words }
}

/// Inserts a missing `--`. For subcommands with an [`Input`], it goes before the user's command. For other subcommands,
/// it is only inserted before `-m`, which clap would otherwise parse as an option.
pub(crate) fn insert_dashes(app: &clap::Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let subcommand = words.get(1).and_then(|name| app.find_subcommand(name));
    let has_argument =
        |id| subcommand.is_some_and(|subcommand| subcommand.get_arguments().any(|argument| argument.get_id() == id));
    if let Some(first) =
        subcommand.filter(|_| has_argument("command")).and_then(|subcommand| first_word(subcommand, &words))
        && (words[first] == "-m" || (has_argument("files") && is_command(&words[first])))
    {
        words.insert(first, "--".into());
    }
    words
}

/// Returns the index of the first recording or command among the arguments, after our options, their values and any
/// other positional arguments. `None` if `--` comes first. `-m` does not count as an option of ours.
fn first_word(subcommand: &clap::Command, words: &[OsString]) -> Option<usize> {
    let is_input = |argument: &&clap::Arg| argument.get_id() == "files" || argument.get_id() == "command";
    let mut skipped_positionals = subcommand.get_positionals().take_while(|argument| !is_input(argument)).count();
    let takes_value = |predicate: &dyn Fn(&clap::Arg) -> bool| {
        subcommand.get_arguments().any(|argument| predicate(argument) && argument.get_action().takes_values())
    };
    let mut index = 2;
    while let Some(word) = words.get(index) {
        let text = word.to_string_lossy();
        let value_follows = match text.strip_prefix("--") {
            Some("") => return None,
            Some(long) => takes_value(&|argument| argument.get_long() == Some(long)),
            None => match text.strip_prefix('-').filter(|shorts| !shorts.is_empty() && *shorts != "m") {
                // In a cluster of short options, the first that takes a value consumes the rest of the cluster as its
                // value.
                Some(shorts) => shorts
                    .char_indices()
                    .find(|(_, short)| takes_value(&|argument| argument.get_short() == Some(*short)))
                    .is_some_and(|(offset, short)| offset + short.len_utf8() == shorts.len()),
                None if skipped_positionals == 0 => return Some(index),
                None => {
                    skipped_positionals -= 1;
                    false
                }
            },
        };
        index += if value_follows { 2 } else { 1 };
    }
    None
}

/// Returns true if the argument is a command to run. A recording, or a directory of recordings, takes precedence over a
/// command of the same name.
fn is_command(word: &OsStr) -> bool {
    let path = Path::new(word);
    let is_recording = bundle::is_recording(path) || (path.is_dir() && !bundle::resolve_recordings(path).is_empty());
    !is_recording && (command::needs_python(word) || command::find(word).is_some())
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

    /// Applies `insert_dashes` to a command line.
    fn run_insert_dashes(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        insert_dashes(&Arguments::command(), words).join(OsStr::new(" ")).into_string().unwrap()
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
            assert_eq!(run_insert_dashes(&line.replace("| ", "")), line.replace('|', "--"));
        }
    }

    #[test]
    fn a_program_or_a_recording_without_a_subcommand_means_lines() {
        let complete = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            insert_default_subcommand(&Arguments::command(), words).join(OsStr::new(" ")).into_string().unwrap()
        };
        for line in [
            "jitlisten | true",
            "jitlisten | /bin/true -x",
            "jitlisten | no-such.py",
            "jitlisten | no-such.data",
            "jitlisten | -m pkg.module -x",
            "jitlisten | -r 99 --html a.html true",
            "jitlisten | -- true",
            "jitlisten | src",
        ] {
            assert_eq!(complete(&line.replace("| ", "")), line.replace('|', "lines"));
        }
        for line in [
            "jitlisten lines true",
            "jitlisten help true",
            "jitlisten no-such",
            "jitlisten --help",
            "jitlisten -V",
            "jitlisten -r 99",
        ] {
            assert_eq!(complete(line), line);
        }
    }

    #[test]
    fn a_pattern_may_match_image_directories_and_pages() {
        let scratch = Scratch::new(Kind::Lines).unwrap();
        let file = |name: &str| scratch.path.join(name);
        fs::write(file("p.data.12"), "PERFILE2 jitlisten").unwrap();
        fs::write(file("p.data.12+3.html"), "<!doctype html><title>jitlisten</title>").unwrap();
        fs::write(file("p.data.1.html"), "<!doctype html>").unwrap();
        let names = ["p.data", "p.data.12", "p.data.12.images", "p.data.12+3.html", "p.data.1.html", "other.images"];
        let left = ["p.data", "p.data.12", "p.data.1.html", "other.images"].map(file);
        assert_eq!(recordings_among(&names.map(file)), left);
        assert_eq!(recordings_among(&[file("p.data.12+3.html")]), [file("p.data.12+3.html")]);
    }

    #[test]
    fn each_recording_has_a_page_of_its_own() {
        for (path, others, page) in [
            ("jitlisten.perf.data", 0, "jitlisten.perf.data.html"),
            ("out/prof.data.12", 0, "out/prof.data.12.html"),
            ("out/prof.data.34", 0, "out/prof.data.34.html"),
            ("prof.data.12", 2, "prof.data.12+2.html"),
            ("runs/", 0, "runs.html"),
            ("/", 0, "/recordings.html"),
        ] {
            assert_eq!(page_beside(Path::new(path), others), Path::new(page), "{path}");
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
            assert_eq!(run_insert_dashes(line), line);
        }
    }
}
