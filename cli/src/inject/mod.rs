//! Runs a request in another process: enables or disables the library, or starts or stops a recording.
//!
//! **Python** runs a short script at its next bytecode boundary, in the main thread and with the GIL held, as it does
//! for its own signal handlers. The script calls `jitlisten.enable` or `jitlisten.disable`. `functions.rs` maps
//! memory in the process for the script and the result, and makes the main thread call `Py_AddPendingCall` with
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

mod functions;
mod request;
mod request_memory;
mod safe_point;
#[cfg_attr(not(target_arch = "x86_64"), path = "no_signal_frame.rs")]
mod signal_frame;
mod trace;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jitlisten_report::sanitize;
use wire::mailbox::Ending;

use crate::installation::{Installation, LIBRARY};
use crate::problem::Problem;
use crate::process::Process;
use crate::system::BlockedSignals;
use functions::{Method, exec_problem, find_function, return_path};
pub(crate) use request::{Request, Start};
use request_memory::{Memory, POLL_INTERVAL};
use trace::trace_problem;

/// Time in native code after which Python's main thread is assumed never to return to Python.
const NATIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same time for one that waits: there is no need to wait for it.
const WAITING_TIMEOUT: Duration = Duration::from_millis(500);
/// Time in which a thread gets the GIL, unless compiled code holds it.
const GIL_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without any activity after which a thread counts as waiting.
const WAITING_INTERVAL: Duration = Duration::from_millis(200);

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
