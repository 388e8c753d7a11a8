//! Entry point of the thread that `jitlisten record -p` starts in this process (`cli/src/inject.rs`). The command and
//! this thread share the following memory:
//!
//! ```text
//!   0      state: 0 requested, 1 running, 2 done; 3 cancelled
//!   8, 16  length of the result, and the result: "ok" or "failed ..."
//!   4096   VERSION \n SINKS \n the value of JITLISTEN_RECORD \0
//! ```

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use jitlisten::Session;
use jitlisten::options::SinkKind;
use jitlisten_sampler::Options;

use crate::guard::{guarded, jitlisten_last_error};
use crate::record::failure;
use crate::session::open_with_sinks;
use crate::status::{Failure, Status};

const RESULT_OFFSET: usize = 16;
const REQUEST_OFFSET: usize = 4096;
const DEFAULT_SINKS: &str = "perfmap,image,unwind";

/// Starts a recording as requested in `memory`. Runs in its own thread.
///
/// # Safety
/// `memory` must be laid out as the module documentation describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_attached(memory: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_self` returns the calling thread's own handle, and no thread joins it.
    unsafe { libc::pthread_detach(libc::pthread_self()) };
    // SAFETY: the caller guarantees the layout of `memory`, and a mapping is aligned.
    let state = unsafe { AtomicU64::from_ptr(memory.cast()) };
    if state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return ptr::null_mut();
    }
    // SAFETY: the caller guarantees a C string at this offset.
    let request = unsafe { CStr::from_ptr(memory.cast::<c_char>().add(REQUEST_OFFSET)) };
    let status = guarded(|| start(request.to_bytes()));
    // SAFETY: the result is always a null-terminated string.
    let message = unsafe { CStr::from_ptr(jitlisten_last_error()) }.to_bytes();
    let (prefix, message) =
        if status == Status::Ok as i32 { (&b"ok "[..], &b""[..]) } else { (&b"failed "[..], message) };
    for (index, byte) in prefix.iter().chain(message).take(REQUEST_OFFSET - RESULT_OFFSET).enumerate() {
        // SAFETY: the loop stays within the result field, which ends at the request.
        unsafe { memory.cast::<u8>().add(RESULT_OFFSET + index).write(*byte) };
    }
    // SAFETY: the length field is the second word of `memory`.
    unsafe {
        memory.cast::<u64>().add(1).write((prefix.len() + message.len()).min(REQUEST_OFFSET - RESULT_OFFSET) as u64)
    };
    // The command may unmap the memory as soon as the state is set.
    state.store(2, Ordering::Release);
    ptr::null_mut()
}

fn start(request: &[u8]) -> Result<(), Failure> {
    let mut lines = request.splitn(3, |&byte| byte == b'\n');
    let mut next_line = || lines.next().unwrap_or_default();
    let (version, sinks, options) = (next_line(), next_line(), next_line());
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

/// Requests the end of the recording. Callable in any context: takes no lock and allocates nothing. Returns 0 without a
/// recording, 1 while it is being written, 2 when the file is complete.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_record_end() -> u32 {
    jitlisten_sampler::request_end()
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
