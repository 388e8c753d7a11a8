//! Entry point of the thread that `jitlisten record -p` starts in this process (`cli/src/inject/mod.rs`). The command
//! and this thread share a [`wire::mailbox`].

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;

use jitlisten::Session;
use jitlisten::options::SinkKind;
use jitlisten_sampler::Options;
use wire::mailbox::{Mailbox, REQUEST_OFFSET, Request, State};

use crate::guard::{guarded, jitlisten_last_error};
use crate::record::failure;
use crate::session::open_with_sinks;
use crate::status::{Failure, Status};

const DEFAULT_SINKS: &str = "perfmap,image,unwind";

/// Starts a recording as requested in `memory`. Runs in its own thread.
///
/// # Safety
/// `memory` must be a mailbox with a request, mapped until the request has finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_attached(memory: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_self` returns the calling thread's own handle, and no thread joins it.
    unsafe { libc::pthread_detach(libc::pthread_self()) };
    // SAFETY: the caller guarantees a mailbox, which stays mapped until its state says that the request has finished.
    let mailbox = unsafe { &*memory.cast::<Mailbox>() };
    if !mailbox.start() {
        return ptr::null_mut();
    }
    // SAFETY: the caller guarantees a C string at this offset.
    let request = unsafe { CStr::from_ptr(memory.cast::<c_char>().add(REQUEST_OFFSET)) };
    if guarded(|| start(&Request::decode(request.to_bytes()))) == Status::Ok as i32 {
        mailbox.finish(State::Succeeded, b"");
    } else {
        // SAFETY: the error is always a null-terminated string.
        mailbox.finish(State::Failed, unsafe { CStr::from_ptr(jitlisten_last_error()) }.to_bytes());
    }
    ptr::null_mut()
}

fn start(request: &Request<'_>) -> Result<(), Failure> {
    let Request { version, sinks, options } = *request;
    if version != env!("CARGO_PKG_VERSION").as_bytes() {
        let (own_version, command_version) = (env!("CARGO_PKG_VERSION"), String::from_utf8_lossy(version));
        return Err(Failure::argument(format_args!(
            "the process has jitlisten {own_version}; the command is {command_version}"
        )));
    }
    if !sinks.is_empty() || Session::process().is_none() {
        enable_sinks(sinks)?;
    }
    let options = Options::parse(OsStr::from_bytes(options)).map_err(Failure::argument)?;
    jitlisten_sampler::start(options).map_err(|error| failure(&error))
}

/// Requests the end of the recording. Callable in any context: takes no lock and allocates nothing. Returns the
/// number of a [`wire::mailbox::Ending`].
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_record_end() -> u32 {
    jitlisten_sampler::request_end() as u32
}

fn enable_sinks(sinks: &[u8]) -> Result<(), Failure> {
    let sinks = if sinks.is_empty() { DEFAULT_SINKS.into() } else { String::from_utf8_lossy(sinks) };
    let Some(session) = Session::process() else {
        return open_with_sinks(&sinks);
    };
    if !session.options().active {
        return Err(Status::SwitchedOff.into());
    }
    for kind in sinks.split(',').filter_map(SinkKind::from_name) {
        session.enable(kind);
    }
    jitlisten_shim::sinks_changed();
    Ok(())
}
