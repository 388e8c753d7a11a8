//! A session with the jitdump sink alone, for a program that loads objects itself.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use jitlisten::options::{Options, SinkKind};
use jitlisten::Session;

static SESSION: OnceLock<&'static Session> = OnceLock::new();

/// Opens the session; jitdumps go below `directory`.
///
/// # Safety
/// `directory` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ours_open(directory: *const c_char) {
    // SAFETY: the caller's promise.
    let directory = unsafe { CStr::from_ptr(directory) }.to_bytes();
    let (options, complaints) = Options::read(|name| match name {
        "JITLISTEN" => Some("jitdump".into()),
        "JITLISTEN_DIR" => Some(OsStr::from_bytes(directory).to_owned()),
        "JITLISTEN_LOG" => Some("stderr".into()),
        _ => None,
    });
    SESSION.get_or_init(|| Session::open(options, &complaints));
}

/// *loaded* and *finalized* for the debug object of `size` bytes.
///
/// # Safety
/// The object must be readable, and its text loaded, relocated and readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ours_loaded_and_finalized(object: *const u8, size: usize) {
    // SAFETY: the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(object, size) };
    let Some(session) = SESSION.get() else { return };
    let Ok(loaded) = session.loaded(bytes.to_vec(), None) else { return };
    session.finalized(loaded.id);
}

/// Bytes written, or 0 when the sink has failed.
#[unsafe(no_mangle)]
pub extern "C" fn ours_bytes_written() -> u64 {
    let Some(session) = SESSION.get() else { return 0 };
    let jitdump = session.statistics().sinks[SinkKind::Jitdump as usize];
    if jitdump.failures == 0 { jitdump.bytes_written } else { 0 }
}
