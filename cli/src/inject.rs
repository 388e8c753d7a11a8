//! Has a running process do something with the library.
//!
//! **Python** runs a few lines at its next bytecode boundary, in the main thread and with the GIL, like a signal handler
//! of Python's. The lines call `jitlisten.enable` or `jitlisten.disable`. `trace.rs` maps a page in the process for the
//! text and the result, and calls `Py_AddPendingCall` with `PyRun_SimpleString` and the text. CPython made that
//! function for signal handlers: it takes only its own lock. If the main thread waits for a lock, the wait is
//! interrupted as by a signal, and Python runs its pending calls.
//!
//! **Any other process**, and a Python whose main thread stays in compiled code, gets a thread, which starts the
//! recording (`capi/src/attached.rs`). The main thread makes it with `pthread_create`, after a `dlopen` of the library
//! where that is missing, when it is found where it may call these (`safe_point.rs`).
//!
//! No file is written. `sys.remote_exec` (PEP 768) requires the same rights, and a file that the process can read and
//! no other user can change; hence this one mechanism serves every Python.
//!
//! ```text
//!   0      state: WAITING, BEGUN or DONE, written by the lines; CANCELLED, by us
//!   8      length of the result
//!   16     the result: "ok ..." or "failed ..."
//!   4096   the text, a C string
//!   end    the stack for what is called, downwards, below 64 bytes for results
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
use jitlisten_sampler::{Clock, Options};

use crate::installation::{Installation, LIBRARY};
use crate::memory::{self, words};
use crate::problem::Problem;
use crate::process::{Process, is_libc};
use crate::safe_point::{SafePoints, Stacks};
use crate::signal_frame::WayBack;
use crate::sinks::Sinks;
use crate::symbols;
use crate::system::{Blocked, send_signal};
use crate::trace::{self, Stopped};

/// How often to look whether the process has done it.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a main thread that runs Python takes at most to look at pending calls, generously.
const SOON: Duration = Duration::from_secs(3);

/// A main thread of Python that is longer in native code than that is taken for one without Python.
const NATIVE_AFTER: Duration = Duration::from_secs(5);

/// Between two looks whether the main thread may start a thread.
const RETRY: Duration = Duration::from_millis(10);

const PAGE: usize = 4096;
const RESULT: usize = 16;
const STACK: usize = 256 << 10;
const RESULTS: u64 = 64;
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
    Start(Start),
    /// Ends the recording.
    Stop,
}

/// A recording that is to begin.
pub(crate) struct Start {
    pub(crate) sinks: Option<Sinks>,
    pub(crate) lines: bool,
    pub(crate) options: Options,
}

impl Start {
    /// As `jitlisten_attached` reads it.
    fn native(&self) -> Vec<u8> {
        let sinks = self.sinks.as_ref().map(ToString::to_string).unwrap_or_default();
        let begin = format!("{}\n{sinks}\n", env!("CARGO_PKG_VERSION")).into_bytes();
        [&begin, self.options.to_value().as_bytes(), b"\0"].concat()
    }

    fn python(&self) -> String {
        let python = |flag: bool| if flag { "True" } else { "False" };
        let lines = python(self.lines);
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
            python(options.clock == Clock::Wall),
            python(options.children),
            python(options.python),
            options.seconds.unwrap_or(0),
            recorder.unwrap_or_default(),
        )
    }
}

impl Request {
    fn python(&self) -> String {
        match self {
            Request::Enable { sinks, lines } => {
                let lines = if *lines { "True" } else { "False" };
                format!("jitlisten.enable({:?}, lines={lines})", sinks.to_string())
            }
            Request::Disable => format!("{STOP_IF_ANY}jitlisten.disable()"),
            Request::Start(start) => start.python(),
            Request::Stop => "jitlisten.stop_recording()".to_owned(),
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
    if let Some(version) = process.python().filter(|version| *version < (3, 8)) {
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
    let without_python = |timeout| match request {
        Request::Start(start) => {
            let way = Way::Thread(visible_library(process, installation)?, start);
            attempt(process, &way, request, timeout, signals)?
                .ok_or_else(|| Problem::new(format!("timed out: process {pid} did not run a new thread")))
        }
        Request::Stop => end_recording(process, timeout, signals),
        Request::Enable { .. } | Request::Disable => Err(not_python(pid)),
    };
    if process.python().is_none() {
        return without_python(timeout);
    }
    let began = Instant::now();
    let has_other_way = cfg!(target_arch = "x86_64") && matches!(request, Request::Start(_) | Request::Stop);
    let python_timeout = if has_other_way { NATIVE_AFTER.min(timeout / 2) } else { timeout };
    let way = Way::Python(visible_package(process, installation)?);
    match attempt(process, &way, request, python_timeout, signals)? {
        Some(result) => Ok(result),
        None if has_other_way => without_python(timeout.saturating_sub(began.elapsed())),
        None => Err(Problem::new(format!(
            "timed out: the main thread of process {pid} has not been in Python for {} s",
            timeout.as_secs()
        ))),
    }
}

/// Does it in one way. Nothing if the process has not begun in time, and never will.
fn attempt(
    process: &Process,
    way: &Way,
    request: &Request,
    timeout: Duration,
    signals: &Blocked,
) -> Result<Option<String>, Problem> {
    let pid = process.pid;
    let memory = Memory::arm(process, way, request, timeout, signals).map_err(|problem| match process.is_there() {
        true => Problem::new(format!("process {pid} cannot be changed")).because(&problem),
        false => process.ended(),
    })?;
    // Without a result, the interpreter still has the text among its pending calls, and the memory stays.
    let Some(result) = memory.wait(timeout, signals)? else { return Ok(None) };
    memory.unmap();
    match result.split_once(' ') {
        // The process has written it.
        Some(("ok", words)) => Ok(Some(printable(words))),
        Some((_, words)) => Err(Problem::new(format!("process {pid}: {words}"))),
        None => Err(Problem::new(format!("process {pid} did not report a result"))),
    }
}

/// See the module's head.
enum Way<'a> {
    /// With the package.
    Python(PathBuf),
    /// With the library, for a recording.
    Thread(PathBuf, &'a Start),
}

fn not_python(pid: u32) -> Problem {
    Problem::new(format!("process {pid} is not Python, and only Python can be attached to"))
        .help("start it with jitlisten run, or let it call the functions of jitlisten.h")
}

/// Ends the recording of a process without Python. Its main thread, wherever it is, only wakes the writer.
fn end_recording(process: &Process, timeout: Duration, signals: &Blocked) -> Result<String, Problem> {
    let none = || Problem::new(format!("process {}: not recording", process.pid));
    // It may have been opened for this recording.
    let process = &Process::open(process.pid)?;
    let library = process.library_named(LIBRARY).ok_or_else(none)?;
    let end = entry(process, library, "jitlisten_record_end").map_err(Problem::new)?;
    let way_back = way_back(process)?;
    let began = Instant::now();
    loop {
        let answer = trace::with_main_thread(process.pid, |stopped| {
            if !process.still_maps(&[end]) {
                return Err(executed_another());
            }
            stopped.call(end, [0; 6], None, way_back)
        });
        match answer.map(|answer| answer as u32) {
            Ok(1) if began.elapsed() < timeout => {}
            Ok(1) => return Err(Problem::new(format!("timed out: process {} did not end it", process.pid))),
            Ok(2) => return Ok(String::new()),
            Ok(_) => return Err(none()),
            Err(_) if !process.is_there() => return Ok(String::new()),
            Err(error) => return Err(refused(error)),
        }
        let _ = signals.arrived(PAUSE);
    }
}

fn executed_another() -> io::Error {
    io::Error::other("it executed another program")
}

/// Why the main thread was not traced.
fn refused(error: io::Error) -> Problem {
    match error.raw_os_error() {
        Some(libc::EPERM) => rights(),
        _ if error.kind() == io::ErrorKind::TimedOut => Problem::new("its main thread could not be stopped in time"),
        _ => Problem::new(error),
    }
}

/// The library that the process has, or the one that it can open.
fn visible_library(process: &Process, installation: &Installation) -> Result<PathBuf, Problem> {
    let pid = process.pid;
    if !cfg!(target_arch = "x86_64") {
        return Err(not_python(pid));
    }
    if let Some(library) = process.library_named(LIBRARY) {
        return Ok(library.to_owned());
    }
    let library = installation.library();
    if !library.is_file() || process.sees_another(library) {
        return Err(Problem::new(format!("process {pid} is in a container, which does not see {}", library.display()))
            .help("install jitlisten there and attach from inside"));
    }
    Ok(library.to_owned())
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
    mmap: u64,
    munmap: u64,
    start: StartFunctions,
    way_back: WayBack,
    stacks: Stacks,
}

enum StartFunctions {
    /// `Py_AddPendingCall` and `PyRun_SimpleString`
    Python { add: u64, run: u64 },
    /// `pthread_create`, and `dlopen` where the library is missing.
    Thread { create: u64, open: Option<u64>, library: PathBuf, safe: SafePoints },
}

impl Functions {
    fn find(process: &Process, way: &Way) -> Result<Functions, Problem> {
        let find = |name: &str| {
            let is_python = |path: &&Path| {
                path.file_name().is_some_and(|file| file.to_string_lossy().contains("python"))
                    || Some(*path) == process.executable()
            };
            let mut libraries = process.libraries().into_iter().filter(is_python);
            let found = libraries.find_map(|path| symbols::function(process, path, name));
            found.ok_or_else(|| Problem::new(format!("the interpreter exports no {name}, or its file was replaced")))
        };
        // Before glibc 2.34, threads and the loader have libraries of their own.
        let of_libc = |name| {
            let libraries = process.libraries();
            let mut libraries = libraries.iter().filter(|path| is_libc(path));
            let found = libraries.find_map(|path| symbols::function(process, path, name));
            found.ok_or_else(|| Problem::new("not a glibc process, or the file of its libc was replaced"))
        };
        let start = match way {
            Way::Python(_) => {
                StartFunctions::Python { add: find("Py_AddPendingCall")?, run: find("PyRun_SimpleString")? }
            }
            Way::Thread(library, _) => {
                let has_library = process.library_named(LIBRARY).is_some();
                let open = if has_library { None } else { Some(of_libc("dlopen")?) };
                let (create, safe) = (of_libc("pthread_create")?, SafePoints::of(process));
                StartFunctions::Thread { create, open, library: library.clone(), safe }
            }
        };
        let (mmap, munmap, way_back) = (of_libc("mmap")?, of_libc("munmap")?, way_back(process)?);
        Ok(Functions { mmap, munmap, start, way_back, stacks: Stacks::of(process) })
    }

    fn are_there(&self, process: &Process) -> io::Result<()> {
        let mut addresses = vec![self.mmap, self.munmap];
        match &self.start {
            StartFunctions::Python { add, run } => addresses.extend([*add, *run]),
            StartFunctions::Thread { create, open, .. } => addresses.extend(open.iter().chain([create])),
        }
        let is_same = process.still_maps(&addresses);
        if is_same { Ok(()) } else { Err(executed_another()) }
    }

    /// Maps the memory, and has the process begin with what is in it.
    fn hand_over(
        &self,
        process: &Process,
        stopped: &mut Stopped,
        size: usize,
        text_of: impl Fn(u64) -> Vec<u8>,
    ) -> io::Result<u64> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let at = stopped.call(self.mmap, [0, size as u64, protection, flags, u64::MAX, 0], None, self.way_back)?;
        if at == 0 || !at.is_multiple_of(PAGE as u64) {
            return Err(io::Error::other("it is out of memory"));
        }
        let begun = self.begin(process, stopped, at, at + size as u64 - RESULTS, &text_of(at));
        if begun.is_err() {
            let _ = stopped.call(self.munmap, [at, size as u64, 0, 0, 0, 0], None, self.way_back);
        }
        begun.map(|()| at)
    }

    fn begin(&self, process: &Process, stopped: &mut Stopped, at: u64, results: u64, text: &[u8]) -> io::Result<()> {
        let string = at + PAGE as u64;
        match &self.start {
            StartFunctions::Python { add, run } => {
                memory::write(process.pid, string, text)?;
                match stopped.call(*add, [*run, string, 0, 0, 0, 0], Some(results), self.way_back)? as i32 {
                    0 => Ok(()),
                    _ => Err(io::Error::other("too many pending calls")),
                }
            }
            StartFunctions::Thread { create, open, library, .. } => {
                if let Some(open) = open {
                    memory::write(process.pid, string, &[library.as_os_str().as_bytes(), b"\0"].concat())?;
                    let flags = (libc::RTLD_NOW | libc::RTLD_LOCAL) as u64;
                    if stopped.call(*open, [string, flags, 0, 0, 0, 0], Some(results), self.way_back)? == 0 {
                        return Err(io::Error::other(format!("it cannot open {}", library.display())));
                    }
                }
                // With the mapping that is new.
                let now = Process::open(process.pid).map_err(|_| io::ErrorKind::NotFound)?;
                let entry = entry(&now, library, "jitlisten_attached")?;
                memory::write(process.pid, string, text)?;
                match stopped.call(*create, [results, 0, entry, at, 0, 0], Some(results), self.way_back)? as i32 {
                    0 => Ok(()),
                    number => Err(io::Error::other(format!("it cannot start a thread: error {number}"))),
                }
            }
        }
    }
}

fn way_back(process: &Process) -> Result<WayBack, Problem> {
    WayBack::find(process).ok_or_else(|| Problem::new("its libc has no code by which a call could return"))
}

/// Where the library has a function for us.
fn entry(process: &Process, library: &Path, name: &str) -> io::Result<u64> {
    let problem = || format!("it has another version of jitlisten, {}, or its file was replaced", library.display());
    symbols::function(process, library, name).ok_or_else(|| io::Error::other(problem()))
}

/// The memory in the process: see the module's head.
struct Memory<'a> {
    process: &'a Process,
    functions: Functions,
    at: u64,
    size: usize,
}

impl Memory<'_> {
    /// Maps it, and hands the text to the interpreter or to a thread.
    fn arm<'a>(
        process: &'a Process,
        way: &Way,
        request: &Request,
        timeout: Duration,
        signals: &Blocked,
    ) -> Result<Memory<'a>, Problem> {
        let functions = Functions::find(process, way)?;
        let text_of = |at: u64| match way {
            Way::Python(package) => text(process, package, request, at).into_bytes(),
            Way::Thread(_, start) => start.native(),
        };
        // An address has at most 20 digits.
        let size = (PAGE + text_of(u64::MAX).len() + 1).next_multiple_of(PAGE) + STACK;
        let began = Instant::now();
        let at = loop {
            let mut refusal = None;
            let at = trace::with_main_thread(process.pid, |stopped| {
                functions.are_there(process)?;
                refusal = match &functions.start {
                    StartFunctions::Thread { safe, .. } => safe.refuse(process, stopped)?,
                    StartFunctions::Python { .. } => functions.stacks.refuse(process, stopped),
                };
                if refusal.is_some() { Ok(0) } else { functions.hand_over(process, stopped, size, text_of) }
            });
            let Some(place) = refusal else { break at };
            if began.elapsed() >= timeout {
                let seconds = timeout.as_secs();
                let problem =
                    Problem::new(format!("timed out: its main thread was {place} whenever looked at in {seconds} s"));
                return Err(problem.help("start it with jitlisten record, or let it call jitlisten_record_start"));
            }
            if signals.arrived(RETRY).is_some() {
                return Err(Problem::new("interrupted"));
            }
        };
        Ok(Memory { process, functions, at: at.map_err(refused)?, size })
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

    /// Waits for the result. A request that has not begun in time never does: then there is none.
    fn wait(&self, timeout: Duration, signals: &Blocked) -> Result<Option<String>, Problem> {
        let pid = self.process.pid;
        let began = Instant::now();
        let (mut is_woken, mut interrupt) = (false, None);
        loop {
            if let Some(result) = self.result() {
                // The caller asks for it, too.
                interrupt.into_iter().for_each(|signal| send_signal(std::process::id(), signal));
                return Ok(Some(result));
            }
            if !self.process.is_there() {
                return Err(self.process.ended());
            }
            let state = self.state();
            if state.is_none() && self.process.has_memory() {
                return Err(Problem::new(format!("process {pid} executed another program")));
            }
            let is_python = matches!(self.functions.start, StartFunctions::Python { .. });
            if is_python && !is_woken && began.elapsed() >= SOON.min(timeout) {
                is_woken = true;
                // Where that cannot be, the main thread comes back by itself, or does not.
                let _ = trace::with_main_thread(pid, |stopped| {
                    self.functions.are_there(self.process)?;
                    stopped.interrupt_lock()
                });
            }
            if (interrupt.is_some() || began.elapsed() >= timeout) && state != Some(BEGUN) && self.cancel() {
                return if interrupt.is_some() { Err(Problem::new("interrupted")) } else { Ok(None) };
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
            let Functions { munmap, way_back, .. } = self.functions;
            stopped.call(munmap, [self.at, self.size as u64, 0, 0, 0, 0], None, way_back)
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
