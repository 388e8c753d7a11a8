//! The Python interpreter of a process: its flags and build options, read from `/proc` and from the interpreter's file.
//! No code of the interpreter is executed.

use std::fs;
use std::path::Path;

use jitlisten::Machine;
use jitlisten::plumbing::cfi;
use jitlisten::plumbing::{RUN_VARIABLE, RunRequest, Word};

use crate::process::Process;
use crate::process::symbols::Symbols;

/// Initial environment of a process.
pub(super) struct Environment(Vec<(String, String)>);

impl Environment {
    pub(super) fn read(pid: u32) -> Environment {
        let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        Environment(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(variable, value)| variable == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    pub(super) fn enables_lines(&self) -> bool {
        let by_jitlisten =
            self.get(RUN_VARIABLE).is_some_and(|value| RunRequest::parse(value.as_ref()).has(Word::Lines));
        by_jitlisten || self.get("NUMBA_DEBUGINFO").is_some_and(|value| value != "0")
    }
}

/// Command-line flags of a Python interpreter.
#[derive(Default)]
pub(super) struct PythonFlags {
    pub(super) is_isolated: bool,
    pub(super) has_perf: bool,
}

impl PythonFlags {
    pub(super) fn read(pid: u32) -> PythonFlags {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> =
            bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        PythonFlags::parse(&words)
    }

    fn parse(words: &[String]) -> PythonFlags {
        let mut flags = PythonFlags::default();
        let mut words = words.iter().skip(1);
        while let Some(word) = words.next() {
            let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.starts_with('-')) else { break };
            if let Some(at) = letters.find(['X', 'W', 'c', 'm']) {
                let option = match &letters[at + 1..] {
                    "" => words.next().map_or("", String::as_str),
                    joined => joined,
                };
                flags.has_perf |= letters[at..].starts_with('X') && option.starts_with("perf");
                if letters[at..].starts_with(['c', 'm']) {
                    flags.is_isolated |= letters[..at].contains(['I', 'E', 'S']);
                    break;
                }
                continue;
            }
            flags.is_isolated |= letters.contains(['I', 'E', 'S']);
        }
        flags
    }
}

/// Returns true if the interpreter was built with frame pointers, judging by the prologues of functions that make
/// calls.
pub(super) fn keeps_frame_pointers(process: &Process) -> Option<bool> {
    const FUNCTIONS: [&str; 5] =
        ["PyEval_EvalCode", "PyRun_StringFlags", "PyImport_ImportModule", "PyObject_Repr", "PyModule_AddObject"];
    const PROLOGUE_BYTES: usize = 64;
    let is_python = |path: &&Path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("python"));
    let interpreters =
        process.libraries().into_iter().filter(|path| is_python(path) || Some(*path) == process.executable());
    let symbols = interpreters
        .filter_map(|path| Symbols::open(process, path))
        .find(|symbols| symbols.defined(&FUNCTIONS[..1]) == [true])?;
    let code = FUNCTIONS.iter().filter_map(|name| symbols.code(name, PROLOGUE_BYTES));
    let keeps: Vec<bool> = code.map(|(_, code)| cfi::sets_up_frame_pointer(&code, Machine::HERE)).collect();
    (!keeps.is_empty()).then(|| keeps.iter().filter(|keeps| **keeps).count() * 2 > keeps.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_python() {
        let flags = |line: &str| PythonFlags::parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(flags("python -I prog.py").is_isolated);
        assert!(flags("python -uE -m prog").is_isolated);
        assert!(!flags("python prog.py -I").is_isolated);
        assert!(!flags("python -m prog -E").is_isolated);
        assert!(flags("python -X perf prog.py").has_perf && flags("python -Xperf prog.py").has_perf);
        assert!(!flags("python -X dev prog.py").has_perf);
    }
}
