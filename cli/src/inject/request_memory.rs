//! Memory in the process for a request and its result.
//!
//! It begins with the [`wire::mailbox`], and ends with a stack of the called functions, which grows down; the 64 bytes
//! above it hold their results.

use std::time::{Duration, Instant};

use wire::mailbox::{self, Mailbox, REQUEST_OFFSET, STATE_OFFSET, State};

use crate::inject::functions::{Functions, Method, PAGE_BYTES, StartMethod};
use crate::inject::request::{Request, encode, inject_script};
use crate::inject::trace::{self, trace_problem};
use crate::problem::Problem;
use crate::process::Process;
use crate::process::memory::{self, words};
use crate::system::{BlockedSignals, send_signal};

/// Interval at which the request's state is polled.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Generous time limit for a main thread that runs Python to reach its pending calls.
const PYTHON_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval between attempts to find the main thread at a safe point.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

const STACK_BYTES: usize = 256 << 10;

/// Memory mapped in the process: the mailbox, the request and a stack.
pub(crate) struct Memory<'a> {
    process: &'a Process,
    functions: Functions,
    address: u64,
    size: usize,
}

impl Memory<'_> {
    /// Maps the memory and passes the text to the interpreter or to a new thread.
    pub(crate) fn arm<'a>(
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
    pub(crate) fn wait(
        &self,
        timeout: Duration,
        signals: &BlockedSignals,
    ) -> Result<Option<Result<String, String>>, Problem> {
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

    pub(crate) fn unmap(&self) {
        let _ = trace::with_main_thread(self.process.pid, |stopped| {
            self.functions.check_mapped(self.process)?;
            let Functions { munmap, return_path, .. } = self.functions;
            stopped.call(munmap, [self.address, self.size as u64, 0, 0, 0, 0], None, return_path)
        });
    }
}
