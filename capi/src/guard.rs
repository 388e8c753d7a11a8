//! Wraps every exported function: catches panics, keeps the message of a failure, and holds a [`HostStateGuard`].

use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::Session;
use jitlisten::plumbing::HostStateGuard;

use crate::log_callback;
use crate::status::{Failure, Status};

/// How long the words may be, with their terminator.
const WORDS: usize = 512;

thread_local! {
    /// Constant and without destructor: usable in every state of a thread, and no allocation of ours.
    static LAST: UnsafeCell<[u8; WORDS]> = const { UnsafeCell::new([0; WORDS]) };
}

/// The one panic boundary. At the end, when no lock is held and signals no longer wait, messages go to the program's
/// callback.
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let status = guarding_host_state(work);
    if jitlisten::log::waits() {
        jitlisten::plumbing::keeping_errno(|| {
            let _ = catch_unwind(log_callback::hand_over);
        });
    }
    status as i32
}

fn guarding_host_state(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    let _host_state = HostStateGuard::enter();
    silence_panics();
    let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Status::Internal.into()));
    match outcome {
        Ok(()) => Status::Ok,
        Err(failure) => {
            remember(&failure.words);
            failure.status
        }
    }
}

/// A call that needs the session.
pub(crate) fn with_session(work: impl FnOnce(&'static Session) -> Result<(), Failure>) -> i32 {
    guarded(|| work(Session::process().ok_or(Status::NotOpen)?))
}

/// A call that does something to objects or sinks.
pub(crate) fn with_active_session(work: impl FnOnce(&'static Session) -> Result<(), Failure>) -> i32 {
    with_session(|session| if session.options().active { work(session) } else { Err(Status::SwitchedOff.into()) })
}

/// This copy of the standard library is ours alone; its panics must not be printed.
pub(crate) fn silence_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|panic| jitlisten::log_line!(Error, "{panic}")));
    }
}

fn remember(words: &str) {
    let mut end = words.len().min(WORDS - 1);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    LAST.with(|last| {
        // SAFETY: the buffer belongs to this thread, and no reference to it outlives this block.
        let buffer = unsafe { &mut *last.get() };
        buffer[..end].copy_from_slice(&words.as_bytes()[..end]);
        buffer[end] = 0;
    });
}

/// This thread's last failure in words.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_last_error() -> *const c_char {
    LAST.with(|last| last.get().cast())
}
