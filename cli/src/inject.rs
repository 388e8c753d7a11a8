//! Runs a few lines of Python in a running interpreter, at its next bytecode boundary, in the main thread and with the
//! GIL, like a Python signal handler. The lines call `jitlisten.enable` or `jitlisten.disable`.
//!
//! `trace.rs` maps a page in the process for the text and the result, and calls `Py_AddPendingCall` with
//! `PyRun_SimpleString` and the text. CPython made that function for signal handlers: it takes only its own lock. If
//! the main thread waits for a lock, the wait is interrupted as by a signal, and Python runs its pending calls.
//!
//! No file is written. `sys.remote_exec` (PEP 768) requires the same rights, and a file that the process can read and
//! no other user can change; hence this one mechanism serves every Python.
//!
//! ```text
//!   0      state: WAITING, BEGUN or DONE, written by the lines; CANCELLED, by us
//!   8      length of the result
//!   16     the result: "ok ..." or "failed ..."
//!   4096   the text, a C string
//!   end    the stack for Py_AddPendingCall, downwards
//! ```

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jitlisten_report::printable;

use crate::installation::Installation;
use crate::memory::{self, words};
use crate::problem::Problem;
use crate::process::Process;
use crate::sinks::Sinks;
use crate::symbols;
use crate::system::{Blocked, send_signal};
use crate::trace;

/// How often to look whether the process has done it.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a main thread that runs Python takes at most to look at pending calls, generously.
const SOON: Duration = Duration::from_secs(3);

const PAGE: usize = 4096;
const RESULT: usize = 16;
const STACK: usize = 64 << 10;
const WAITING: u64 = 0;
const BEGUN: u64 = 1;
const DONE: u64 = 2;
const CANCELLED: u64 = 3;

/// Ends a recording, if there is one. In a line of its own, with what follows in the next one.
const STOP_IF_ANY: &str = "\
import contextlib
        with contextlib.suppress(jitlisten.Error): jitlisten.stop_recording()
        ";

/// What is to be done in the process.
pub(crate) enum Request {
    Enable {
        sinks: Sinks,
        lines: bool,
    },
    Disable,
    /// A call of the package's, as Python.
    Call(String),
}

impl Request {
    /// Ends the recording.
    pub(crate) fn stop() -> Request {
        Request::Call("jitlisten.stop_recording()".to_owned())
    }

    fn python(&self) -> String {
        match self {
            Request::Enable { sinks, lines } => {
                let lines = if *lines { "True" } else { "False" };
                format!("jitlisten.enable({:?}, lines={lines})", sinks.to_string())
            }
            Request::Disable => format!("{STOP_IF_ANY}jitlisten.disable()"),
            Request::Call(call) => call.clone(),
        }
    }
}

/// Does it, and returns the words of the process. When it fails, nothing happens in the process later, either; so
/// signals wait.
pub(crate) fn inject(
    process: &Process,
    installation: &Installation,
    request: &Request,
    timeout: Duration,
    signals: &Blocked,
) -> Result<String, Problem> {
    let pid = process.pid;
    let version = process.python().ok_or_else(|| {
        Problem::new(format!("process {pid} is not Python, and only Python can be attached to"))
            .help("start it with jitlisten run, or let it call the functions of jitlisten.h")
    })?;
    if version < (3, 8) {
        return Err(Problem::new(format!(
            "process {pid}: Python {}.{} is too old (3.8 or newer)",
            version.0, version.1
        )));
    }
    if let Some(tracer) = process.tracer() {
        return Err(Problem::new(format!("process {pid} is traced by process {tracer} (a debugger, strace)"))
            .help("end that first"));
    }
    if process.is_stopped() {
        return Err(Problem::new(format!("process {pid} is stopped")).help(format!("kill -CONT {pid}")));
    }
    let package = visible_package(process, installation)?;
    let memory = Memory::arm(process, &package, request).map_err(|problem| match process.is_there() {
        true => Problem::new(format!("process {pid} cannot be changed")).because(&problem),
        false => process.ended(),
    })?;
    let result = memory.wait(timeout, signals);
    if result.is_ok() {
        memory.unmap();
    }
    let result = result?;
    match result.split_once(' ') {
        // The process has written it.
        Some(("ok", words)) => Ok(printable(words)),
        Some((_, words)) => Err(Problem::new(format!("process {pid}: {words}"))),
        None => Err(Problem::new(format!("process {pid} did not report a result"))),
    }
}

/// The package as the process sees it; it has to be the same one.
fn visible_package(process: &Process, installation: &Installation) -> Result<PathBuf, Problem> {
    let package = installation.package().ok_or_else(|| {
        Problem::new("the Python package is not installed beside this command").help("pip install jitlisten")
    })?;
    let file = package.join("__init__.py");
    if !file.is_file() || process.sees_another(&file) {
        return Err(Problem::new(format!(
            "process {} is in a container, which does not see {}",
            process.pid,
            package.display()
        ))
        .help("install jitlisten there and attach from inside"));
    }
    Ok(package.to_owned())
}

/// What is called in the process.
struct Functions {
    /// `Py_AddPendingCall`
    add: u64,
    /// `PyRun_SimpleString`
    run: u64,
    mmap: u64,
    munmap: u64,
}

impl Functions {
    fn find(process: &Process) -> Result<Functions, Problem> {
        let find = |name: &str| {
            let is_python = |path: &&Path| {
                path.file_name().is_some_and(|file| file.to_string_lossy().contains("python"))
                    || Some(*path) == process.executable()
            };
            let mut libraries = process.libraries().into_iter().filter(is_python);
            let found = libraries.find_map(|path| symbols::function(process, path, name));
            found.ok_or_else(|| Problem::new(format!("the interpreter exports no {name}, or its file was replaced")))
        };
        let libc = process.libraries().into_iter().find(|path| is_libc(path));
        let of_libc = |name| {
            let found = libc.and_then(|libc| symbols::function(process, libc, name));
            found.ok_or_else(|| Problem::new("not a glibc process, or the file of its libc was replaced"))
        };
        Ok(Functions {
            add: find("Py_AddPendingCall")?,
            run: find("PyRun_SimpleString")?,
            mmap: of_libc("mmap")?,
            munmap: of_libc("munmap")?,
        })
    }

    fn are_there(&self, process: &Process) -> io::Result<()> {
        let is_same = process.still_maps(&[self.add, self.run, self.mmap, self.munmap]);
        if is_same { Ok(()) } else { Err(io::Error::other("it executed another program")) }
    }
}

/// The memory in the process: see the module's head.
struct Memory<'a> {
    process: &'a Process,
    functions: Functions,
    at: u64,
    size: usize,
}

impl Memory<'_> {
    /// Maps it, and hands the text to the interpreter.
    fn arm<'a>(process: &'a Process, package: &Path, request: &Request) -> Result<Memory<'a>, Problem> {
        let functions = Functions::find(process)?;
        let text_of = |at: u64| text(process, package, request, at);
        // An address has at most 20 digits.
        let size = (PAGE + text_of(u64::MAX).len() + 1).next_multiple_of(PAGE) + STACK;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let at = trace::with_main_thread(process.pid, |stopped| {
            functions.are_there(process)?;
            let at = stopped.call(functions.mmap, [0, size as u64, protection, flags, u64::MAX, 0], None)?;
            if at == u64::MAX || at == 0 {
                return Err(io::Error::other("it is out of memory"));
            }
            let string = at + PAGE as u64;
            memory::write(process.pid, string, text_of(at).as_bytes())?;
            let stack = Some(at + size as u64);
            match stopped.call(functions.add, [functions.run, string, 0, 0, 0, 0], stack)? as i32 {
                0 => Ok(at),
                _ => Err(io::Error::other("too many pending calls")),
            }
        });
        let at = at.map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => rights(),
            _ if error.kind() == io::ErrorKind::TimedOut => {
                Problem::new("its main thread could not be stopped in time")
            }
            _ => Problem::new(error),
        })?;
        Ok(Memory { process, functions, at, size })
    }

    fn state(&self) -> Option<u64> {
        let [state] = words(&memory::read(self.process.pid, self.at, 8).ok()?);
        Some(state)
    }

    /// What the process has written as the result.
    fn result(&self) -> Option<String> {
        let bytes = memory::read(self.process.pid, self.at, PAGE).ok()?;
        let [state, length] = words(&bytes);
        let length = usize::try_from(length).ok()?.min(PAGE - RESULT);
        (state == DONE).then(|| String::from_utf8_lossy(&bytes[RESULT..][..length]).into_owned())
    }

    /// Waits for the result. A request that has not begun in time never does.
    fn wait(&self, timeout: Duration, signals: &Blocked) -> Result<String, Problem> {
        let pid = self.process.pid;
        let began = Instant::now();
        let (mut is_woken, mut interrupt) = (false, None);
        loop {
            if let Some(result) = self.result() {
                // The caller asks for it, too.
                interrupt.into_iter().for_each(|signal| send_signal(std::process::id(), signal));
                return Ok(result);
            }
            if !self.process.is_there() {
                return Err(self.process.ended());
            }
            let state = self.state();
            if state.is_none() && self.process.has_memory() {
                return Err(Problem::new(format!("process {pid} executed another program")));
            }
            if !is_woken && began.elapsed() >= SOON.min(timeout) {
                is_woken = true;
                // Where that cannot be, the main thread comes back by itself, or does not.
                let _ = trace::with_main_thread(pid, |stopped| {
                    self.functions.are_there(self.process)?;
                    stopped.interrupt_lock()
                });
            }
            if (interrupt.is_some() || began.elapsed() >= timeout) && state != Some(BEGUN) && self.cancel() {
                return Err(match interrupt {
                    Some(_) => Problem::new("interrupted"),
                    None => Problem::new(format!(
                        "timed out: the main thread of process {pid} has not been in Python for {} s",
                        timeout.as_secs()
                    )),
                });
            }
            // It has begun, and hangs in an import, say.
            if began.elapsed() >= 2 * timeout + SOON {
                return Err(Problem::new(format!("timed out: process {pid} started the request but did not finish")));
            }
            interrupt = signals.arrived(PAUSE).or(interrupt);
        }
    }

    /// Takes the text back; false if the process has begun. Its main thread, which runs the text, stands meanwhile.
    fn cancel(&self) -> bool {
        let take_back = || {
            if self.functions.are_there(self.process).is_err() || self.state() != Some(WAITING) {
                return false;
            }
            let pid = self.process.pid;
            let _ = memory::write(pid, self.at + PAGE as u64, &[0]);
            memory::write(pid, self.at, &CANCELLED.to_le_bytes()).is_ok()
        };
        // Where it cannot be stopped, it does not run either.
        trace::with_main_thread(self.process.pid, |_| Ok(take_back())).unwrap_or_else(|_| take_back())
    }

    fn unmap(&self) {
        let _ = trace::with_main_thread(self.process.pid, |stopped| {
            self.functions.are_there(self.process)?;
            stopped.call(self.functions.munmap, [self.at, self.size as u64, 0, 0, 0, 0], None)
        });
    }
}

/// What `PyRun_SimpleString` is given. It leaves no name behind in `__main__`.
fn text(process: &Process, package: &Path, request: &Request, at: u64) -> String {
    let script = include_str!("inject.py")
        .replace("@PACKAGES@", &quoted(package.parent().unwrap_or(package)))
        .replace("@PID@", &process.inner_pid().to_string())
        .replace("@MEMORY@", &at.to_string())
        .replace("@ROOM@", &(PAGE - RESULT).to_string())
        .replace("@CALL@", &request.python());
    let script = quoted(&script);
    format!("try:\n exec(compile({script}, 'jitlisten', 'exec'), {{}})\nexcept BaseException: pass\n\0")
}

/// The kernel refused ptrace: why, probably.
fn rights() -> Problem {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let refused = |why: &str| Problem::new(format!("ptrace is not permitted ({why})"));
    match scope.trim() {
        "" | "0" => refused("a seccomp filter, or privileges of the process"),
        "3" => refused("kernel.yama.ptrace_scope is 3").help("start the program with `jitlisten run`"),
        _ => refused("kernel.yama.ptrace_scope").help("use sudo, or start the program with `jitlisten run`"),
    }
}

fn is_libc(path: &Path) -> bool {
    path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name == "libc.so.6" || name.starts_with("libc-2.")
    })
}

/// As a string of Python, in ASCII: what the interpreter takes a file's bytes for is up to the program's locale. Bytes
/// that are no UTF-8 are as `os.fsdecode` makes them.
pub(crate) fn quoted(text: &(impl AsRef<OsStr> + ?Sized)) -> String {
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

    /// Python itself reads it, in the C locale.
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
