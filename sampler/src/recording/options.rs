//! Options of a recording, and their encoding in the environment.
//!
//! ```text
//! JITLISTEN_RECORD=FILE[,hz=N][,wall][,children][,no-images][,no-python][,event=NAME][,seconds=N][,pid=N]
//!                  [,recorder=PID:START]
//! ```
//! Options are parsed from the end of the value until an unknown one is found, so a file name may contain commas. An
//! empty option ends the list, so a file name may end with text that looks like an option: `bench,wall,,hz=99`.
//!
//! ```text
//! in FILE:  %p  PID    %h  host    %r  rank, or 0    %q{VAR}  environment variable    %%  percent sign
//! ```

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::recording::event_name::Counter;
use crate::recording::launcher::Rank;
use crate::recording::process::{Process, host_and_release};

/// Default number of samples per second: a prime, so that samples do not run in step with timer ticks.
pub const DEFAULT_HZ: u32 = 199;
/// Maximum number of samples per second.
pub const MAX_HZ: u32 = 10_000;

/// The clock that measures sample periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// CPU time of the thread. Waiting threads are not disturbed.
    #[default]
    Cpu,
    /// Elapsed time, including the time that threads spend waiting (`wall_clock`).
    Wall,
}

/// Options of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// File name as the user wrote it, with `%p`, `%h`, `%r` and `%q{VAR}`.
    pub pattern: OsString,
    /// Samples per second.
    pub hz: u32,
    /// Clock to sample on.
    pub clock: Clock,
    /// Event to count instead of time.
    pub counter: Option<Counter>,
    /// True if fork children write their own files.
    pub children: bool,
    /// True if compiled code gets images, so that its names and lines outlive it.
    pub images: bool,
    /// True if functions that CPython interprets are shown as frames.
    pub python: bool,
    /// Duration after which the recording ends by itself.
    pub seconds: Option<u32>,
    /// The process to record; other processes ignore the environment variable.
    pub pid: Option<u32>,
    /// The process that requested the recording, which ends when that process exits.
    pub recorder: Option<Process>,
    /// Rank of the process, known once the options are [resolved](Options::resolve).
    pub rank: Option<Rank>,
    /// True for a child, whose file name ends with its PID unless the pattern has a `%p`.
    pub is_child: bool,
}

impl Options {
    /// Default options, with this file name.
    pub fn new(pattern: impl Into<OsString>) -> Self {
        Options {
            pattern: pattern.into(),
            hz: DEFAULT_HZ,
            clock: Clock::Cpu,
            counter: None,
            children: false,
            images: true,
            python: true,
            seconds: None,
            pid: None,
            recorder: None,
            rank: None,
            is_child: false,
        }
    }

    /// Parses the value of `JITLISTEN_RECORD`.
    ///
    /// # Errors
    /// If the name is missing, or a value is invalid.
    pub fn parse(value: &OsStr) -> Result<Self, String> {
        let mut rest = value.as_bytes();
        let mut words = Vec::new();
        while let Some(comma) = rest.iter().rposition(|&byte| byte == b',') {
            let Ok(word) = std::str::from_utf8(&rest[comma + 1..]) else { break };
            if word.is_empty() && !words.is_empty() {
                rest = &rest[..comma];
                break;
            }
            if !is_word(word) {
                break;
            }
            words.push(word.to_owned());
            rest = &rest[..comma];
        }
        if rest.is_empty() {
            return Err("JITLISTEN_RECORD: no file is named".to_owned());
        }
        let mut options = Options::new(OsStr::from_bytes(rest));
        for word in words.iter().rev() {
            options.apply_word(word)?;
        }
        Ok(options)
    }

    /// Applies one parsed option, such as `hz=99`.
    fn apply_word(&mut self, word: &str) -> Result<(), String> {
        match word.split_once('=') {
            Some(("hz", value)) => self.hz = checked_hz(parse_number(word, value)?)?,
            Some(("seconds", value)) => self.seconds = Some(parse_number(word, value)?),
            Some(("event", value)) => self.counter = Some(Counter::named(value)?),
            Some(("recorder", value)) => {
                let process = Process::parse(value);
                self.recorder = Some(process.ok_or_else(|| format!("JITLISTEN_RECORD: {word:?} is not a process"))?);
            }
            Some(("pid", value)) => self.pid = Some(parse_number(word, value)?),
            _ => match word {
                "wall" => self.clock = Clock::Wall,
                "children" => self.children = true,
                "no-images" => self.images = false,
                "no-python" => self.python = false,
                _ => return Err(format!("JITLISTEN_RECORD: unknown option {word:?}")),
            },
        }
        Ok(())
    }

    /// Formats the options as a value that [`Options::parse`] reads back, for any file name.
    pub fn to_value(&self) -> OsString {
        let mut value = self.pattern.clone();
        value.push(format!(",,hz={}", self.hz));
        let flags = [
            (self.clock == Clock::Wall, ",wall"),
            (self.children, ",children"),
            (!self.images, ",no-images"),
            (!self.python, ",no-python"),
        ];
        flags.iter().filter(|(set, _)| *set).for_each(|(_, word)| value.push(word));
        self.counter.iter().for_each(|counter| value.push(format!(",event={}", counter.name())));
        self.seconds.iter().for_each(|seconds| value.push(format!(",seconds={seconds}")));
        self.pid.iter().for_each(|pid| value.push(format!(",pid={pid}")));
        self.recorder.iter().for_each(|process| value.push(format!(",recorder={}:{}", process.pid, process.start)));
        value
    }

    /// Makes the pattern absolute, because the program or a child may change its working directory.
    #[must_use]
    pub fn absolute(mut self) -> Options {
        if self.pattern.as_bytes().first() != Some(&b'/')
            && let Ok(directory) = std::env::current_dir()
        {
            let directory = escape(directory.as_os_str().as_bytes());
            let pattern = directory.chain([b'/']).chain(self.pattern.as_bytes().iter().copied()).collect();
            self.pattern = OsString::from_vec(pattern);
        }
        self
    }

    /// Replaces everything in the pattern but `%p` and `%%`. Children of a fork inherit the result, because they may
    /// not read the environment.
    ///
    /// # Errors
    /// A message, if the pattern has an unknown directive, or one for a variable that is not set.
    pub fn resolve(mut self, host: &str, variable: impl Fn(&str) -> Option<OsString>) -> Result<Options, String> {
        self.rank = Rank::find(&variable);
        let mut resolved = Vec::new();
        for part in parts(self.pattern.as_bytes()) {
            match part? {
                Part::Text(text) => resolved.extend(text),
                Part::Percent => resolved.extend(b"%%"),
                Part::Pid => resolved.extend(b"%p"),
                Part::Host => resolved.extend(escape(host.as_bytes())),
                Part::Rank => {
                    let rank = self.rank.map_or(0, |rank| rank.number);
                    resolved.extend(rank.to_string().bytes());
                }
                Part::Variable(name) => {
                    let value = variable(name);
                    let value = value.ok_or_else(|| format!("%q{{{name}}} in a file name: {name} is not set"))?;
                    resolved.extend(escape(value.as_bytes()));
                }
            }
        }
        self.pattern = OsString::from_vec(resolved);
        Ok(self)
    }

    /// Same as [`resolve`](Options::resolve), for this process.
    ///
    /// # Errors
    /// Same as [`resolve`](Options::resolve).
    pub fn resolve_here(self) -> Result<Options, String> {
        self.resolve(&host_and_release().0, |name| std::env::var_os(name))
    }

    /// Adds the rank before the extension, unless the pattern already distinguishes processes.
    #[must_use]
    pub fn with_rank(mut self) -> Options {
        let names_process = |part: Result<Part<'_>, String>| match part {
            Ok(Part::Pid | Part::Rank) => true,
            Ok(Part::Variable(name)) => Rank::is_in_variable(name),
            _ => false,
        };
        if !parts(self.pattern.as_bytes()).any(names_process) {
            let mut pattern = self.pattern.into_vec();
            let name = pattern.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
            let dot = pattern[name..].iter().rposition(|byte| *byte == b'.').filter(|dot| *dot != 0);
            let extension = dot.map_or(pattern.len(), |dot| name + dot);
            pattern.splice(extension..extension, *b".rank%r");
            self.pattern = OsString::from_vec(pattern);
        }
        self
    }

    /// Returns the path of a process's file. The pattern must be [resolved](Options::resolve).
    pub fn path(&self, pid: u32) -> PathBuf {
        let mut path = Vec::new();
        let mut names_process = false;
        for part in parts(self.pattern.as_bytes()).flatten() {
            match part {
                Part::Text(text) => path.extend(text),
                Part::Pid => {
                    names_process = true;
                    path.extend(pid.to_string().bytes());
                }
                _ => path.push(b'%'),
            }
        }
        if self.is_child && !names_process {
            path.extend(format!(".{pid}").bytes());
        }
        OsString::from_vec(path).into()
    }

    /// Returns the options for a child, which writes its own file.
    pub fn for_child(&self) -> Options {
        Options { pid: None, is_child: true, ..self.clone() }
    }
}

/// Part of a file name.
enum Part<'a> {
    Text(&'a [u8]),
    Percent,
    Pid,
    Host,
    Rank,
    Variable(&'a str),
}

/// Splits a file name into its parts.
fn parts(pattern: &[u8]) -> impl Iterator<Item = Result<Part<'_>, String>> {
    let mut rest = pattern;
    std::iter::from_fn(move || {
        let (part, length) = match rest {
            [] => return None,
            [b'%', b'%', ..] => (Ok(Part::Percent), 2),
            [b'%', b'p', ..] => (Ok(Part::Pid), 2),
            [b'%', b'h', ..] => (Ok(Part::Host), 2),
            [b'%', b'r', ..] => (Ok(Part::Rank), 2),
            [b'%', b'q', b'{', name @ ..] => match name.iter().position(|byte| *byte == b'}') {
                Some(end) => {
                    let name = std::str::from_utf8(&name[..end]);
                    (name.map(Part::Variable).map_err(|error| format!("%q{{...}} in a file name: {error}")), end + 4)
                }
                None => (Err("%q{VAR} in a file name has no closing brace".to_owned()), rest.len()),
            },
            [b'%', other @ ..] => {
                let other = String::from_utf8_lossy(other).chars().next().map(String::from).unwrap_or_default();
                let known = "use %p (process), %h (host), %r (rank), %q{VAR}, or %% for a percent sign";
                (Err(format!("%{other} in a file name is unknown: {known}")), rest.len())
            }
            _ => {
                let length = rest.iter().position(|byte| *byte == b'%').unwrap_or(rest.len());
                (Ok(Part::Text(&rest[..length])), length)
            }
        };
        rest = &rest[length..];
        Some(part)
    })
}

/// Escapes percent signs, which are not part of the pattern.
fn escape(text: &[u8]) -> impl Iterator<Item = u8> {
    text.iter().flat_map(|&byte| std::iter::repeat_n(byte, if byte == b'%' { 2 } else { 1 }))
}

/// Returns a pattern that names exactly this file.
pub fn exact_pattern(path: &Path) -> OsString {
    OsString::from_vec(escape(path.as_os_str().as_bytes()).collect())
}

/// Checks that the rate is supported.
///
/// # Errors
/// A message, if it is out of range.
pub(crate) fn checked_hz(hz: u32) -> Result<u32, String> {
    (1..=MAX_HZ).contains(&hz).then_some(hz).ok_or_else(|| format!("sampling rate {hz}: use 1 to {MAX_HZ} per second"))
}

fn is_word(word: &str) -> bool {
    matches!(word, "wall" | "children" | "no-images" | "no-python")
        || word.split_once('=').is_some_and(|(name, _)| matches!(name, "hz" | "event" | "seconds" | "pid" | "recorder"))
}

fn parse_number(word: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("JITLISTEN_RECORD: {word:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(OsStr::new(text))
    }

    #[test]
    fn options_are_parsed_from_the_end() {
        let options = parse("/tmp/a,b,wall,hz=997").unwrap();
        assert_eq!((options.pattern.to_str(), options.hz, options.clock), (Some("/tmp/a,b"), 997, Clock::Wall));
        assert_eq!(parse("file").unwrap(), Options::new("file"));
        assert!(parse(",wall").is_err() && parse("f,hz=0").is_err() && parse("f,hz=x").is_err() && parse("").is_err());
    }

    #[test]
    fn every_file_name_survives() {
        let names =
            [&b"bench,wall"[..], b"a,hz=1,children", b"a,", b"a,,hz=3", b",wall", b"a\nb,pid=1", b"\xff,%p,\xfe"];
        for name in names.map(OsStr::from_bytes) {
            let options = Options { clock: Clock::Wall, pid: Some(7), ..Options::new(name) };
            assert_eq!(Options::parse(&options.to_value()).unwrap(), options);
        }
        assert_eq!(parse("f,,wall,hz=9").unwrap(), Options { hz: 9, clock: Clock::Wall, ..Options::new("f") });
    }

    #[test]
    fn a_formatted_value_parses_to_the_same_options() {
        let text = "f%p,,hz=10,wall,children,no-images,no-python,event=page-faults:u,seconds=3,pid=7,recorder=8:9";
        let options = parse(text).unwrap();
        assert_eq!(Options::parse(&options.to_value()).unwrap(), options);
        assert_eq!(options.to_value(), text);
    }

    #[test]
    fn file_names_may_contain_pid_host_rank_and_variables() {
        let variable = |name: &str| match name {
            "PMI_RANK" => Some(OsString::from("3")),
            "JOB" => Some(OsString::from("50%p")),
            _ => None,
        };
        let resolve = |pattern: &str| Options::new(pattern).resolve("node", variable);
        let options = resolve("p-%h-%p-%%-%r-%q{JOB}").unwrap();
        assert_eq!(options.path(12).to_str(), Some("p-node-12-%-3-50%p"));
        for (pattern, problem) in [
            ("a-%x", "%x in a file name is unknown: use %p (process)"),
            ("a-%", "% in a file name is unknown"),
            ("a-%q{NONE}", "%q{NONE} in a file name: NONE is not set"),
            ("a-%q{JOB", "no closing brace"),
        ] {
            let error = resolve(pattern).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
        let child_options = |pattern: &str| resolve(pattern).unwrap().for_child();
        assert_eq!(child_options("f").path(5).to_str(), Some("f.5"));
        assert_eq!(child_options("f").for_child().path(6).to_str(), Some("f.6"), "a grandchild");
        assert_eq!(child_options("f-%p").path(5).to_str(), Some("f-5"));
        assert_eq!(child_options("f-%%p").path(5).to_str(), Some("f-%p.5"));
        let exact = Options { pattern: exact_pattern(Path::new("a%p%x")), ..Options::new("") };
        assert_eq!(exact.resolve("h", variable).unwrap().path(5).to_str(), Some("a%p%x"));
    }

    #[test]
    fn the_rank_is_added_to_a_name_without_one() {
        for (pattern, expected) in [
            ("jitlisten.perf.data", "jitlisten.perf.rank%r.data"),
            ("/a.b/prof", "/a.b/prof.rank%r"),
            (".data", ".data.rank%r"),
            ("a-%h.data", "a-%h.rank%r.data"),
            ("a-%p.data", "a-%p.data"),
            ("a-%r", "a-%r"),
            ("a-%q{SLURM_PROCID}", "a-%q{SLURM_PROCID}"),
            ("a-%q{USER}", "a-%q{USER}.rank%r"),
        ] {
            assert_eq!(Options::new(pattern).with_rank().pattern, expected);
        }
    }
}
