//! Runs a request in another process: enables or disables the library, or starts or stops a recording.
//!
//! **Python** runs a short script at its next bytecode boundary, in the main thread and with the GIL held, as it does
//! for its own signal handlers. The script calls `jitlisten.enable` or `jitlisten.disable`. `trace.rs` maps memory in
//! the process for the script and the result, and makes the main thread call `Py_AddPendingCall` with
//! `PyRun_SimpleString` and the script. CPython designed `Py_AddPendingCall` for signal handlers, so the function takes
//! only its own lock. A main thread that is waiting for a lock is interrupted, as if by a signal, and Python then runs
//! its pending calls. If the main thread waits for anything else, a new thread runs the script.
//!
//! **Any other process**, or a Python process whose main thread stays in compiled code, gets a new thread that starts
//! the recording (`capi/src/attached.rs`). The main thread creates the new thread with `pthread_create`, after a
//! `dlopen` of the library if necessary. Both calls wait until the main thread is at a safe point (`safe_point.rs`).
//!
//! No file is written. `sys.remote_exec` (PEP 768) requires the same rights, and in addition a script file that the
//! process can read and no other user can change. For this reason, the mechanism here is used for every version of
//! Python.
//!
//! The memory begins with the [`wire::mailbox`], and ends with a stack of the called functions, which grows down; the
//! 64 bytes above it hold their results.

mod safe_point;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_signal_frame.rs")]
mod signal_frame;
mod trace;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jitlisten_report::sanitize;
use jitlisten_sampler::{Clock, Options};
use wire::mailbox::{
    self, Ending, LENGTH_OFFSET, MAX_RESULT_BYTES, Mailbox, REQUEST_OFFSET, RESULT_OFFSET, STATE_OFFSET, State,
};

use crate::installation::{Installation, LIBRARY};
use crate::problem::Problem;
use crate::process::memory::{self, words};
use crate::process::symbols;
use crate::process::{Process, is_libc};
use crate::sinks::Sinks;
use crate::system::{BlockedSignals, send_signal};
use safe_point::{SafePoints, Stacks};
use signal_frame::ReturnPath;
use trace::StoppedThread;

/// Interval at which the request's state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Generous time limit for a main thread that runs Python to reach its pending calls.
const PYTHON_TIMEOUT: Duration = Duration::from_secs(3);

/// Time in native code after which Python's main thread is assumed never to return to Python.
const NATIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same time for one that waits: there is no need to wait for it.
const WAITING_TIMEOUT: Duration = Duration::from_millis(500);
/// Time in which a thread gets the GIL, unless compiled code holds it.
const GIL_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without any activity after which a thread counts as waiting.
const WAITING_INTERVAL: Duration = Duration::from_millis(200);

/// Interval between attempts to find the main thread at a safe point.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

const PAGE_BYTES: usize = 4096;
const STACK_BYTES: usize = 256 << 10;
const CALL_RESULT_BYTES: u64 = 64;

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
    fn encode(&self) -> Vec<u8> {
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

fn encode(sinks: &[u8], options: &[u8]) -> Vec<u8> {
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

/// Sends a request to the process and returns its reply. Signals stay blocked until a failed request is cancelled, so
/// that the request cannot run later.
pub(crate) fn inject(
    process: &Process,
    installation: &Installation,
    request: &Request,
    timeout: Duration,
    signals: &BlockedSignals,
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
    let run_without_python = |timeout| match request {
        Request::Start(start) => {
            let method = Method::Thread(visible_library(process, installation)?, start);
            attempt(process, &method, request, timeout, signals)?
                .ok_or_else(|| Problem::new(format!("timed out: process {pid} did not run a new thread")))
        }
        Request::Stop => end_recording(process, timeout, signals),
        Request::Enable { .. } | Request::Disable => Err(not_python(pid)),
    };
    if process.python().is_none() {
        return run_without_python(timeout);
    }
    let started = Instant::now();
    let remaining = || timeout.saturating_sub(started.elapsed());
    let package = visible_package(process, installation)?;
    let python = Method::Python(package.clone());
    let can_start_thread = cfg!(target_arch = "x86_64");
    if can_start_thread && is_waiting(pid, signals)? {
        let thread = Method::PythonThread(package, visible_library(process, installation)?);
        for (method, timeout) in [(&python, WAITING_TIMEOUT), (&thread, GIL_TIMEOUT)] {
            if let Some(result) = attempt(process, method, request, timeout.min(remaining() / 2), signals)? {
                return Ok(result);
            }
        }
    }
    let has_fallback = can_start_thread && matches!(request, Request::Start(_) | Request::Stop);
    let python_timeout = if has_fallback { NATIVE_TIMEOUT.min(remaining() / 2) } else { remaining() };
    match attempt(process, &python, request, python_timeout, signals)? {
        Some(result) => Ok(result),
        None if has_fallback => run_without_python(remaining()),
        None => Err(Problem::new(format!(
            "timed out: the main thread of process {pid} has not been in Python for {} s",
            timeout.as_secs()
        ))),
    }
}

/// Returns true if the main thread waits and does nothing else. Most such threads have released the GIL.
fn is_waiting(pid: u32, signals: &BlockedSignals) -> Result<bool, Problem> {
    let activity = || {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{pid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let is_asleep = field("State:")?.starts_with('S');
        is_asleep.then(|| field("voluntary_ctxt_switches:").map(str::to_owned))?
    };
    let before = activity();
    if before.is_some() && signals.wait_signal(WAITING_INTERVAL).is_some() {
        return Err(Problem::new("interrupted"));
    }
    Ok(before.is_some() && activity() == before)
}

/// Sends a request by one method. Returns `None` if the process did not start the request in time, and never will.
fn attempt(
    process: &Process,
    method: &Method,
    request: &Request,
    timeout: Duration,
    signals: &BlockedSignals,
) -> Result<Option<String>, Problem> {
    let pid = process.pid;
    let memory =
        Memory::arm(process, method, request, timeout, signals).map_err(|problem| match process.is_alive() {
            true => Problem::new(format!("process {pid} cannot be changed")).because(&problem),
            false => process.ended_problem(),
        })?;
    // A timed-out request remains among the interpreter's pending calls, so its memory must stay mapped.
    let Some(result) = memory.wait(timeout, signals)? else { return Ok(None) };
    memory.unmap();
    match result {
        // The process controls this text, so it is sanitized.
        Ok(words) => Ok(Some(sanitize(&words))),
        Err(words) => Err(Problem::new(format!("process {pid}: {words}"))),
    }
}

/// Method of running a request in the process.
enum Method<'a> {
    /// Pending call in the interpreter; holds the path of the Python package.
    Python(PathBuf),
    /// New thread that runs the request in the interpreter; holds the paths of the Python package and of the library.
    PythonThread(PathBuf, PathBuf),
    /// New thread that starts a recording; holds the path of the library.
    Thread(PathBuf, &'a Start),
}

fn not_python(pid: u32) -> Problem {
    Problem::new(format!("process {pid} is not Python, and only Python can be attached to"))
        .help("start it with jitlisten run, or let it call the functions of jitlisten.h")
}

/// Ends the recording of a process without Python. The injected call only wakes the writer thread, so the main thread
/// may be at any point.
fn end_recording(process: &Process, timeout: Duration, signals: &BlockedSignals) -> Result<String, Problem> {
    let not_recording = || Problem::new(format!("process {}: not recording", process.pid));
    // The library may have been loaded for this recording, so read the mappings again.
    let process = &Process::open(process.pid)?;
    let library = process.library_named(LIBRARY).ok_or_else(not_recording)?;
    let end_function = find_function(process, library, "jitlisten_record_end").map_err(Problem::new)?;
    let return_path = return_path(process)?;
    let started = Instant::now();
    loop {
        let outcome = trace::with_main_thread(process.pid, |stopped| {
            if !process.still_maps(&[end_function]) {
                return Err(exec_problem());
            }
            stopped.call(end_function, [0; 6], None, return_path)
        });
        match outcome.map(|outcome| Ending::from_number(outcome as u32)) {
            Ok(Some(Ending::Writing)) if started.elapsed() < timeout => {}
            Ok(Some(Ending::Writing)) => {
                return Err(Problem::new(format!("timed out: process {} did not end it", process.pid)));
            }
            Ok(Some(Ending::Complete)) => return Ok(String::new()),
            Ok(Some(Ending::NotRecording) | None) => return Err(not_recording()),
            Err(_) if !process.is_alive() => return Ok(String::new()),
            Err(error) => return Err(trace_problem(error)),
        }
        let _ = signals.wait_signal(POLL_INTERVAL);
    }
}

fn exec_problem() -> io::Error {
    io::Error::other("it executed another program")
}

/// Explains why the main thread could not be traced.
fn trace_problem(error: io::Error) -> Problem {
    match error.raw_os_error() {
        Some(libc::EPERM) => ptrace_permission_problem(),
        _ if error.kind() == io::ErrorKind::TimedOut => Problem::new("its main thread could not be stopped in time"),
        _ => Problem::new(error),
    }
}

/// Returns the path of the library that the process has loaded, or else of the installed one, if the process can see
/// it.
fn visible_library(process: &Process, installation: &Installation) -> Result<PathBuf, Problem> {
    let pid = process.pid;
    if !cfg!(target_arch = "x86_64") {
        return Err(not_python(pid));
    }
    if let Some(library) = process.library_named(LIBRARY) {
        return Ok(library.to_owned());
    }
    let library = installation.library();
    if !library.is_file() || process.sees_different_file(library) {
        return Err(Problem::new(format!("process {pid} is in a container, which does not see {}", library.display()))
            .help("install jitlisten there and attach from inside"));
    }
    Ok(library.to_owned())
}

/// Returns the path of the Python package, which the process must see as the same directory even if it is in a
/// container.
fn visible_package(process: &Process, installation: &Installation) -> Result<PathBuf, Problem> {
    let package = installation.package().ok_or_else(|| {
        Problem::new("the Python package is not installed beside this command").help("pip install jitlisten")
    })?;
    let file = package.join("__init__.py");
    if !file.is_file() || process.sees_different_file(&file) {
        return Err(Problem::new(format!(
            "process {} is in a container, which does not see {}",
            process.pid,
            package.display()
        ))
        .help("install jitlisten there and attach from inside"));
    }
    Ok(package.to_owned())
}

/// Addresses of the functions to call in the process.
struct Functions {
    mmap: u64,
    munmap: u64,
    start: StartMethod,
    return_path: ReturnPath,
    stacks: Stacks,
}

enum StartMethod {
    /// `Py_AddPendingCall` and `PyRun_SimpleString`.
    Python { add_pending_call: u64, run_string: u64 },
    /// `pthread_create`, and `dlopen` if the library is not loaded yet.
    Thread { pthread_create: u64, dlopen: Option<u64>, library: PathBuf, safe_points: SafePoints },
}

impl Functions {
    fn find(process: &Process, method: &Method) -> Result<Functions, Problem> {
        let find_python_symbol = |name: &str| {
            let is_python = |path: &&Path| {
                path.file_name().is_some_and(|file| file.to_string_lossy().contains("python"))
                    || Some(*path) == process.executable()
            };
            let mut libraries = process.libraries().into_iter().filter(is_python);
            let address = libraries.find_map(|path| symbols::function(process, path, name));
            address.ok_or_else(|| Problem::new(format!("the interpreter exports no {name}, or its file was replaced")))
        };
        // Before glibc 2.34, `pthread_create` and `dlopen` are in separate libraries.
        let find_libc_symbol = |name| {
            let libraries = process.libraries();
            let mut libraries = libraries.iter().filter(|path| is_libc(path));
            let address = libraries.find_map(|path| symbols::function(process, path, name));
            address.ok_or_else(|| Problem::new("not a glibc process, or the file of its libc was replaced"))
        };
        let start = match method {
            Method::Python(_) => StartMethod::Python {
                add_pending_call: find_python_symbol("Py_AddPendingCall")?,
                run_string: find_python_symbol("PyRun_SimpleString")?,
            },
            Method::Thread(library, _) | Method::PythonThread(_, library) => {
                let has_library = process.library_named(LIBRARY).is_some();
                let dlopen = if has_library { None } else { Some(find_libc_symbol("dlopen")?) };
                let (pthread_create, safe_points) = (find_libc_symbol("pthread_create")?, SafePoints::find(process));
                StartMethod::Thread { pthread_create, dlopen, library: library.clone(), safe_points }
            }
        };
        let (mmap, munmap, return_path) =
            (find_libc_symbol("mmap")?, find_libc_symbol("munmap")?, return_path(process)?);
        Ok(Functions { mmap, munmap, start, return_path, stacks: Stacks::new(process) })
    }

    fn check_mapped(&self, process: &Process) -> io::Result<()> {
        let mut addresses = vec![self.mmap, self.munmap];
        match &self.start {
            StartMethod::Python { add_pending_call, run_string } => addresses.extend([*add_pending_call, *run_string]),
            StartMethod::Thread { pthread_create, dlopen, .. } => {
                addresses.extend(dlopen.iter().chain([pthread_create]))
            }
        }
        let still_mapped = process.still_maps(&addresses);
        if still_mapped { Ok(()) } else { Err(exec_problem()) }
    }

    /// Maps the memory, writes the text into it and starts the request in the process.
    fn start_request(
        &self,
        process: &Process,
        stopped: &mut StoppedThread,
        size: usize,
        make_text: impl Fn(u64) -> Vec<u8>,
    ) -> io::Result<u64> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let address =
            stopped.call(self.mmap, [0, size as u64, protection, flags, u64::MAX, 0], None, self.return_path)?;
        if address == 0 || !address.is_multiple_of(PAGE_BYTES as u64) {
            return Err(io::Error::other("it is out of memory"));
        }
        let outcome =
            self.call_start(process, stopped, address, address + size as u64 - CALL_RESULT_BYTES, &make_text(address));
        if outcome.is_err() {
            let _ = stopped.call(self.munmap, [address, size as u64, 0, 0, 0, 0], None, self.return_path);
        }
        outcome.map(|()| address)
    }

    fn call_start(
        &self,
        process: &Process,
        stopped: &mut StoppedThread,
        address: u64,
        stack_top: u64,
        text: &[u8],
    ) -> io::Result<()> {
        let text_address = address + REQUEST_OFFSET as u64;
        match &self.start {
            StartMethod::Python { add_pending_call, run_string } => {
                memory::write(process.pid, text_address, text)?;
                match stopped.call(
                    *add_pending_call,
                    [*run_string, text_address, 0, 0, 0, 0],
                    Some(stack_top),
                    self.return_path,
                )? as i32
                {
                    0 => Ok(()),
                    _ => Err(io::Error::other("too many pending calls")),
                }
            }
            StartMethod::Thread { pthread_create, dlopen, library, .. } => {
                if let Some(dlopen) = dlopen {
                    memory::write(process.pid, text_address, &[library.as_os_str().as_bytes(), b"\0"].concat())?;
                    let flags = (libc::RTLD_NOW | libc::RTLD_LOCAL) as u64;
                    if stopped.call(*dlopen, [text_address, flags, 0, 0, 0, 0], Some(stack_top), self.return_path)? == 0
                    {
                        return Err(io::Error::other(format!("it cannot open {}", library.display())));
                    }
                }
                // `dlopen` has added mappings, so read the mappings again.
                let reopened = Process::open(process.pid).map_err(|_| io::ErrorKind::NotFound)?;
                let function = find_function(&reopened, library, "jitlisten_attached")?;
                memory::write(process.pid, text_address, text)?;
                match stopped.call(
                    *pthread_create,
                    [stack_top, 0, function, address, 0, 0],
                    Some(stack_top),
                    self.return_path,
                )? as i32
                {
                    0 => Ok(()),
                    number => {
                        let error = io::Error::from_raw_os_error(number);
                        Err(io::Error::other(format!("it cannot start a thread: {error}")))
                    }
                }
            }
        }
    }
}

fn return_path(process: &Process) -> Result<ReturnPath, Problem> {
    ReturnPath::find(process).ok_or_else(|| Problem::new("its libc has no code by which a call could return"))
}

/// Returns the address of an exported function of our library in the process.
fn find_function(process: &Process, library: &Path, name: &str) -> io::Result<u64> {
    let problem = || format!("it has another version of jitlisten, {}, or its file was replaced", library.display());
    symbols::function(process, library, name).ok_or_else(|| io::Error::other(problem()))
}

/// Memory mapped in the process: the mailbox, the request and a stack.
struct Memory<'a> {
    process: &'a Process,
    functions: Functions,
    address: u64,
    size: usize,
}

impl Memory<'_> {
    /// Maps the memory and passes the text to the interpreter or to a new thread.
    fn arm<'a>(
        process: &'a Process,
        method: &Method,
        request: &Request,
        timeout: Duration,
        signals: &BlockedSignals,
    ) -> Result<Memory<'a>, Problem> {
        let functions = Functions::find(process, method)?;
        let make_text = |address: u64| match method {
            Method::Python(package) => inject_script(process, package, request, address, false).into_bytes(),
            Method::PythonThread(package, _) => {
                let script = inject_script(process, package, request, address, true);
                encode(mailbox::PYTHON, script.trim_end_matches('\0').as_bytes())
            }
            Method::Thread(_, start) => start.encode(),
        };
        // Reserve space for the longest address in decimal: 20 digits.
        let largest = u64::MAX - REQUEST_OFFSET as u64;
        let size = (REQUEST_OFFSET + make_text(largest).len() + 1).next_multiple_of(PAGE_BYTES) + STACK_BYTES;
        let started = Instant::now();
        let mapped = loop {
            let mut rejected_state = None;
            let mapped = trace::with_main_thread(process.pid, |stopped| {
                functions.check_mapped(process)?;
                rejected_state = match &functions.start {
                    StartMethod::Thread { safe_points, .. } => safe_points.refusal(process, stopped)?,
                    StartMethod::Python { .. } => functions.stacks.refusal(process, stopped),
                };
                if rejected_state.is_some() {
                    Ok(0)
                } else {
                    functions.start_request(process, stopped, size, make_text)
                }
            });
            let Some(thread_state) = rejected_state else { break mapped };
            if started.elapsed() >= timeout {
                let seconds = timeout.as_secs();
                let problem = Problem::new(format!(
                    "timed out: its main thread was {thread_state} whenever looked at in {seconds} s"
                ));
                return Err(problem.help("start it with jitlisten record, or let it call jitlisten_record_start"));
            }
            if signals.wait_signal(RETRY_INTERVAL).is_some() {
                return Err(Problem::new("interrupted"));
            }
        };
        Ok(Memory { process, functions, address: mapped.map_err(trace_problem)?, size })
    }

    fn state(&self) -> Option<State> {
        let [state] = words(&memory::read(self.process.pid, self.address + STATE_OFFSET as u64, 8).ok()?);
        Some(State::from_number(state))
    }

    /// Returns the result written by the process; `None` until it is complete.
    fn result(&self) -> Option<Result<String, String>> {
        mailbox::read_result(&memory::read(self.process.pid, self.address, size_of::<Mailbox>()).ok()?)
    }

    /// Waits for the result. Cancels a request that did not start in time, and returns `None`.
    fn wait(&self, timeout: Duration, signals: &BlockedSignals) -> Result<Option<Result<String, String>>, Problem> {
        let pid = self.process.pid;
        let started = Instant::now();
        let (mut was_woken, mut interrupt_signal) = (false, None);
        loop {
            if let Some(result) = self.result() {
                // Send the signal again, so that the caller sees the interrupt, too.
                interrupt_signal.into_iter().for_each(|signal| send_signal(std::process::id(), signal));
                return Ok(Some(result));
            }
            if !self.process.is_alive() {
                return Err(self.process.ended_problem());
            }
            let state = self.state();
            if state.is_none() && self.process.has_memory() {
                return Err(Problem::new(format!("process {pid} executed another program")));
            }
            let is_python = matches!(self.functions.start, StartMethod::Python { .. });
            if is_python && !was_woken && started.elapsed() >= PYTHON_TIMEOUT.min(timeout) {
                was_woken = true;
                // If this fails, the main thread may still return to Python by itself.
                let _ = trace::with_main_thread(pid, |stopped| {
                    self.functions.check_mapped(self.process)?;
                    stopped.interrupt_lock()
                });
            }
            if (interrupt_signal.is_some() || started.elapsed() >= timeout)
                && state != Some(State::Started)
                && self.cancel()
            {
                return if interrupt_signal.is_some() { Err(Problem::new("interrupted")) } else { Ok(None) };
            }
            // The request has started but hangs, for example in an import.
            if started.elapsed() >= 2 * timeout + PYTHON_TIMEOUT {
                return Err(Problem::new(format!("timed out: process {pid} started the request but did not finish")));
            }
            interrupt_signal = signals.wait_signal(POLL_INTERVAL).or(interrupt_signal);
        }
    }

    /// Cancels the request. Returns false if the process has already started it. The main thread, which would run the
    /// request, is stopped meanwhile.
    fn cancel(&self) -> bool {
        let cancel_text = || {
            if self.functions.check_mapped(self.process).is_err() || self.state() != Some(State::Waiting) {
                return false;
            }
            let pid = self.process.pid;
            let _ = memory::write(pid, self.address + REQUEST_OFFSET as u64, &[0]);
            let cancelled = (State::Cancelled as u64).to_ne_bytes();
            memory::write(pid, self.address + STATE_OFFSET as u64, &cancelled).is_ok()
        };
        // A main thread that cannot be stopped is not running the request either.
        trace::with_main_thread(self.process.pid, |_| Ok(cancel_text())).unwrap_or_else(|_| cancel_text())
    }

    fn unmap(&self) {
        let _ = trace::with_main_thread(self.process.pid, |stopped| {
            self.functions.check_mapped(self.process)?;
            let Functions { munmap, return_path, .. } = self.functions;
            stopped.call(munmap, [self.address, self.size as u64, 0, 0, 0, 0], None, return_path)
        });
    }
}

/// Builds the script for `PyRun_SimpleString`. The script leaves no name in `__main__`.
fn inject_script(process: &Process, package: &Path, request: &Request, address: u64, in_new_thread: bool) -> String {
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

/// Returns the probable reason why the kernel refused ptrace.
fn ptrace_permission_problem() -> Problem {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let problem = |reason: &str| Problem::new(format!("ptrace is not permitted ({reason})"));
    match scope.trim() {
        "" | "0" => problem("a seccomp filter, or privileges of the process"),
        "3" => problem("kernel.yama.ptrace_scope is 3").help("start the program with `jitlisten run`"),
        _ => problem("kernel.yama.ptrace_scope").help("use sudo, or start the program with `jitlisten run`"),
    }
}

/// Formats a path or text as a Python string literal in ASCII, because the decoding of source bytes depends on the
/// program's locale. Bytes that are not UTF-8 become surrogates, as with `os.fsdecode`.
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
