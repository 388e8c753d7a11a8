//! What a thread does that `jitlisten record -p` has started in this process (`cli/src/inject.rs`).
//!
//! ```text
//!   0      state: 0 waits, 1 begun, 2 done; 3 cancelled
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

const RESULT: usize = 16;
const TEXT: usize = 4096;
const USUAL_SINKS: &str = "perfmap,image,unwind";

/// Runs in a thread of its own.
///
/// # Safety
/// `memory` must be as the module's head says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_attached(memory: *mut c_void) -> *mut c_void {
    // SAFETY: this thread's own number; no thread joins it.
    unsafe { libc::pthread_detach(libc::pthread_self()) };
    // SAFETY: the caller's promise; mapped, so aligned.
    let state = unsafe { AtomicU64::from_ptr(memory.cast()) };
    if state.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(memory.cast::<c_char>().add(TEXT)) };
    let status = guarded(|| start(text.to_bytes()));
    // SAFETY: always a terminated text.
    let words = unsafe { CStr::from_ptr(jitlisten_last_error()) }.to_bytes();
    let (begin, words) = if status == Status::Ok as i32 { (&b"ok "[..], &b""[..]) } else { (&b"failed "[..], words) };
    for (number, byte) in begin.iter().chain(words).take(TEXT - RESULT).enumerate() {
        // SAFETY: in front of the text.
        unsafe { memory.cast::<u8>().add(RESULT + number).write(*byte) };
    }
    // SAFETY: as above.
    unsafe { memory.cast::<u64>().add(1).write((begin.len() + words.len()).min(TEXT - RESULT) as u64) };
    // From here on the memory may be unmapped.
    state.store(2, Ordering::Release);
    ptr::null_mut()
}

fn start(text: &[u8]) -> Result<(), Failure> {
    let mut words = text.splitn(3, |&byte| byte == b'\n');
    let mut word = || words.next().unwrap_or_default();
    let (version, sinks, options) = (word(), word(), word());
    if version != env!("CARGO_PKG_VERSION").as_bytes() {
        let (own, other) = (env!("CARGO_PKG_VERSION"), String::from_utf8_lossy(version));
        return Err(Failure::argument(format_args!("the process has jitlisten {own}; the command is {other}")));
    }
    if !sinks.is_empty() || Session::process().is_none() {
        enable(sinks)?;
    }
    let options = Options::parse(OsStr::from_bytes(options)).map_err(Failure::argument)?;
    jitlisten_sampler::start(options).map_err(|error| failure(&error))
}

/// Ends the recording, soon. Wherever the caller is: takes no lock, allocates nothing. Returns 0 if there is none, 1
/// while it is written, 2 when the file is whole.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_record_end() -> u32 {
    jitlisten_sampler::end_soon()
}

fn enable(sinks: &[u8]) -> Result<(), Failure> {
    let sinks = if sinks.is_empty() { USUAL_SINKS.into() } else { String::from_utf8_lossy(sinks) };
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
