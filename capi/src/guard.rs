//! Wrapper of every exported function: catches panics, stores the message of a failure, and holds a [`HostStateGuard`].

use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::Session;
use jitlisten::plumbing::HostStateGuard;

use crate::log_callback;
use crate::status::{Failure, Status};

/// Maximum length of a message, with its terminator.
const MAX_MESSAGE_BYTES: usize = 512;

thread_local! {
    /// This thread's last error. It is constant and has no destructor, so it is usable in every state of a thread and
    /// needs no allocation.
    static LAST_ERROR: UnsafeCell<[u8; MAX_MESSAGE_BYTES]> = const { UnsafeCell::new([0; MAX_MESSAGE_BYTES]) };
}

/// Runs `work` inside the panic boundary. Afterwards, with no lock held and signals unblocked, delivers log messages to
/// the program's callback.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let status = run_with_host_state(work);
    if jitlisten::log::has_message() {
        jitlisten::plumbing::preserving_errno(|| {
            let _ = catch_unwind(log_callback::deliver_messages);
        });
    }
    status as i32
}

/// Runs `work` under a [`HostStateGuard`] and stores the message of a failure.
fn run_with_host_state(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    let _host_state = HostStateGuard::enter();
    silence_panics();
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Status::Internal.into()));
    match outcome {
        Ok(()) => Status::Ok,
        Err(failure) => {
            store_message(&failure.message);
            failure.status
        }
    }
}

/// Runs `work` with the session; fails if it is not open.
pub(crate) fn with_session(work: impl FnOnce(&'static Session) -> Result<(), Failure>) -> i32 {
    guarded(|| work(Session::process().ok_or(Status::NotOpen)?))
}

/// Runs `work` with the session; fails if the session is not open or is switched off.
pub(crate) fn with_active_session(work: impl FnOnce(&'static Session) -> Result<(), Failure>) -> i32 {
    with_session(|session| if session.options().active { work(session) } else { Err(Status::SwitchedOff.into()) })
}

/// Routes panics to the log instead of standard error. The hook affects only this library's copy of the standard
/// library.
pub(crate) fn silence_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|panic| jitlisten::log_line!(Error, "{panic}")));
    }
}

/// Stores a message as this thread's last error, truncated at a character boundary.
fn store_message(message: &str) {
    let mut end = message.len().min(MAX_MESSAGE_BYTES - 1);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    LAST_ERROR.with(|last| {
        // SAFETY: the buffer belongs to this thread, and no reference to it outlives this block.
        let buffer = unsafe { &mut *last.get() };
        buffer[..end].copy_from_slice(&message.as_bytes()[..end]);
        buffer[end] = 0;
    });
}

/// Message of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_last_error() -> *const c_char {
    LAST_ERROR.with(|last| last.get().cast())
}
