//! Requests, as a Python script or as text for a new thread.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use jitlisten_sampler::{Clock, Options};
use wire::mailbox::{self, LENGTH_OFFSET, MAX_RESULT_BYTES, RESULT_OFFSET, STATE_OFFSET, State};

use crate::process::Process;
use crate::sinks::Sinks;

/// Python statements that end a recording if there is one, with the line break and indentation for the code that
/// follows.
const STOP_IF_ANY: &str = "\
import contextlib
        with contextlib.suppress(jitlisten.Error): jitlisten.stop_recording()
        ";

/// Request to execute in the process.
pub(crate) enum Request {
    Enable {
        sinks: Sinks,
        lines: bool,
    },
    Disable,
    Start(Start),
    /// Ends the recording.
    Stop,
}

pub(crate) struct Start {
    pub(crate) sinks: Option<Sinks>,
    pub(crate) lines: bool,
    pub(crate) options: Options,
}

impl Start {
    /// Encodes the request for `jitlisten_attached`.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let sinks = self.sinks.as_ref().map(ToString::to_string).unwrap_or_default();
        encode(sinks.as_bytes(), self.options.to_value().as_bytes())
    }

    fn to_python(&self) -> String {
        let python_bool = |flag: bool| if flag { "True" } else { "False" };
        let lines = python_bool(self.lines);
        let enable = self.sinks.as_ref().map(|sinks| {
            let sinks = quoted(&sinks.to_string());
            format!("jitlisten.enable({sinks}, lines={lines}); ")
        });
        let options = &self.options;
        let event = options.counter.as_ref().map_or_else(|| "None".to_owned(), |event| quoted(&event.name()));
        let recorder = options.recorder.map(|process| format!(", recorder='{}:{}'", process.pid, process.start));
        format!(
            "{}jitlisten.start_recording({}, hz={}, wall={}, children={}, python={}, lines={lines}, seconds={}, \
             event={event}{})",
            enable.unwrap_or_default(),
            quoted(&options.pattern),
            options.hz,
            python_bool(options.clock == Clock::Wall),
            python_bool(options.children),
            python_bool(options.python),
            options.seconds.unwrap_or(0),
            recorder.unwrap_or_default(),
        )
    }
}

pub(crate) fn encode(sinks: &[u8], options: &[u8]) -> Vec<u8> {
    mailbox::Request { version: env!("CARGO_PKG_VERSION").as_bytes(), sinks, options }.encode()
}

impl Request {
    fn to_python(&self) -> String {
        match self {
            Request::Enable { sinks, lines } => {
                let lines = if *lines { "True" } else { "False" };
                format!("jitlisten.enable({:?}, lines={lines})", sinks.to_string())
            }
            Request::Disable => format!("{STOP_IF_ANY}jitlisten.disable()"),
            Request::Start(start) => start.to_python(),
            Request::Stop => "jitlisten.stop_recording()".to_owned(),
        }
    }
}

/// Builds the script for `PyRun_SimpleString`. The script leaves no name in `__main__`.
pub(crate) fn inject_script(
    process: &Process,
    package: &Path,
    request: &Request,
    address: u64,
    in_new_thread: bool,
) -> String {
    let numbers = [
        ("@IN_NEW_THREAD@", in_new_thread.into()),
        ("@PID@", process.inner_pid().into()),
        ("@STATE@", address + STATE_OFFSET as u64),
        ("@LENGTH@", address + LENGTH_OFFSET as u64),
        ("@RESULT@", address + RESULT_OFFSET as u64),
        ("@MAX_RESULT_BYTES@", MAX_RESULT_BYTES as u64),
        ("@WAITING@", State::Waiting as u64),
        ("@STARTED@", State::Started as u64),
        ("@SUCCEEDED@", State::Succeeded as u64),
        ("@FAILED@", State::Failed as u64),
    ];
    let script = include_str!("request.py").to_owned();
    let script = numbers.iter().fold(script, |script, (name, number)| script.replace(name, &number.to_string()));
    let packages = quoted(package.parent().unwrap_or(package));
    let script = quoted(&script.replace("@PACKAGES@", &packages).replace("@CALL@", &request.to_python()));
    format!("try:\n exec(compile({script}, 'jitlisten', 'exec'), {{}})\nexcept BaseException: pass\n\0")
}

/// Formats a path or text as a Python string literal in ASCII, because the decoding of source bytes depends on the
/// program's locale. Bytes that are not UTF-8 become surrogates, as with `os.fsdecode`.
fn quoted(text: &(impl AsRef<OsStr> + ?Sized)) -> String {
    let mut quoted = "\"".to_owned();
    for part in text.as_ref().as_bytes().utf8_chunks() {
        for character in part.valid().chars() {
            let _ = match character {
                '"' | '\\' => write!(quoted, "\\{character}"),
                ' '..='~' => write!(quoted, "{character}"),
                other => write!(quoted, "\\U{:08x}", u32::from(other)),
            };
        }
        for byte in part.invalid() {
            let _ = write!(quoted, "\\udc{byte:02x}");
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Checks that Python evaluates the literal to the original path.
    #[test]
    fn a_quoted_path_is_the_path() {
        let hostile = b"/a \"b\"'\\n\n\x7f/e\xcc\x81 \xe2\x80\xae\xf0\x9f\x90\x8d \xff\xc3\x28.data";
        let quoted = quoted(OsStr::from_bytes(hostile));
        assert!(quoted.is_ascii() && !quoted.contains('\n'), "{quoted}");
        let print = format!("import os, sys; sys.stdout.buffer.write(os.fsencode({quoted}))");
        let output = Command::new("python3").args(["-X", "utf8", "-c", &print]).output().expect("python3");
        assert_eq!(output.stdout, hostile, "{quoted}");
    }
}
