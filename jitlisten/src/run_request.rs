//! Request of `jitlisten run` to the library and to the package: the environment variable `JITLISTEN_RUN`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::str::from_utf8;

use crate::liveness::Run;

/// Name of the variable.
pub const RUN_VARIABLE: &str = "JITLISTEN_RUN";

/// Part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The program is the first Python: it restores the environment.
    Program,
    /// All child processes are programs, too: the environment is never restored.
    Children,
    /// `JITLISTEN` was not set before.
    Sinks,
    /// Our sitecustomize is first in `PYTHONPATH`; it restores `PYTHONPATH` (`python/jitlisten/_site`).
    Lines,
}

impl Word {
    const fn text(self) -> &'static str {
        match self {
            Word::Program => "program",
            Word::Children => "children",
            Word::Sinks => "sinks",
            Word::Lines => "lines",
        }
    }
}

/// Value of the variable: `WORD+run=RUN+WORD..:LIBRARY`.
///
/// The library, when it has restored the environment of the program, leaves `lines:PID` for the sitecustomize, which
/// reads only the first word.
#[derive(Clone, Copy, Debug)]
pub struct RunRequest<'a> {
    words: &'a [u8],
    /// Path of the library, as in `LD_PRELOAD`.
    pub library: &'a [u8],
}

impl<'a> RunRequest<'a> {
    /// Parses the value of the variable. Any value is accepted; without our words, it requests nothing.
    pub fn parse(value: &'a OsStr) -> RunRequest<'a> {
        let mut parts = value.as_bytes().splitn(2, |byte| *byte == b':');
        let mut part = || parts.next().unwrap_or_default();
        RunRequest { words: part(), library: part() }
    }

    /// True if the request has this word.
    pub fn has(&self, word: Word) -> bool {
        self.words().any(|found| found == word.text().as_bytes())
    }

    /// Returns the run that the files of the processes belong to.
    pub fn run(&self) -> Option<Run> {
        self.words().find_map(|word| Run::parse(from_utf8(word).ok()?))
    }

    fn words(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.words.split(|byte| *byte == b'+')
    }

    /// Formats a request.
    pub fn format(first: Word, run: Run, others: &[Word], library: &Path) -> OsString {
        let others: String = others.iter().flat_map(|word| ["+", word.text()]).collect();
        let mut value = OsString::from(format!("{}+{run}{others}:", first.text()));
        value.push(library);
        value
    }

    /// Formats the word that remains for the sitecustomize of the program.
    pub fn remaining(pid: u32) -> OsString {
        format!("{}:{pid}", Word::Lines.text()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_parsed_as_it_was_formatted() {
        let run = Run::parse("run=1-2-3").unwrap();
        let value = RunRequest::format(Word::Program, run, &[Word::Lines], Path::new("/a+run=4-5-6:c/our.so"));
        assert_eq!(value, "program+run=1-2-3+lines:/a+run=4-5-6:c/our.so");
        let request = RunRequest::parse(&value);
        assert_eq!((request.run(), request.library), (Some(run), &b"/a+run=4-5-6:c/our.so"[..]));
        let words = [Word::Program, Word::Children, Word::Sinks, Word::Lines];
        assert_eq!(words.map(|word| request.has(word)), [true, false, false, true]);
    }

    #[test]
    fn other_values_request_nothing() {
        for value in ["", ":", "outlines+programs:/our.so"] {
            let request = RunRequest::parse(OsStr::new(value));
            assert!(!request.has(Word::Program) && !request.has(Word::Lines) && request.run().is_none(), "{value}");
        }
        let remaining = RunRequest::remaining(7);
        assert_eq!(remaining, "lines:7");
        assert!(RunRequest::parse(&remaining).has(Word::Lines));
    }
}
