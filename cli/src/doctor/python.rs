//! The interpreter in a process: how it was started, and how it was built.

#![forbid(unsafe_code)]

use std::fs;
use std::process::{Command, Stdio};

use crate::process::Process;

/// The environment a process was started with.
pub(super) struct Environment(Vec<(String, String)>);

impl Environment {
    pub(super) fn of(pid: u32) -> Environment {
        let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        Environment(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, value)| known == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    pub(super) fn says_lines(&self) -> bool {
        let ours = self.get("JITLISTEN_RUN").is_some_and(|run| run.split(':').next().unwrap_or(run).contains("lines"));
        ours || self.get("NUMBA_DEBUGINFO").is_some_and(|value| value != "0")
    }
}

/// What its command line says.
#[derive(Default)]
pub(super) struct PythonFlags {
    pub(super) is_isolated: bool,
    pub(super) has_perf: bool,
}

impl PythonFlags {
    pub(super) fn of(pid: u32) -> PythonFlags {
        let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<String> =
            bytes.split(|byte| *byte == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
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

/// Asks the interpreter how it was built.
pub(super) fn keeps_frame_pointers(process: &Process) -> Option<bool> {
    let program = process.program()?;
    let interpreter = if process.sees_another(&program) { process.visible(&program) } else { program };
    let ask = "import sysconfig as s; print(*(str(s.get_config_var(v)) for v in ('CFLAGS', 'PY_CORE_CFLAGS', 'CONFIG_ARGS')))";
    let output = Command::new(interpreter)
        .args(["-I", "-S", "-c", ask])
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (with, without) = (text.rfind("-fno-omit-frame-pointer"), text.rfind("-fomit-frame-pointer"));
    Some(with.is_some() && with > without)
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
