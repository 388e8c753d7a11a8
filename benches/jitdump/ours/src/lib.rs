//! A session with the jitdump sink, or with the sinks in `JITLISTEN`, for a program that loads objects itself.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock, PoisonError};

use jitlisten::ObjectId;
use jitlisten::options::{Options, SinkKind};
use jitlisten::plumbing::{LiveObjects, open_session};

static OBJECTS: OnceLock<&'static LiveObjects> = OnceLock::new();

/// Opens the session, whose files go below `directory`.
///
/// # Safety
/// `directory` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ours_open(directory: *const c_char) {
    // SAFETY: the caller guarantees a C string.
    let directory = unsafe { CStr::from_ptr(directory) }.to_bytes();
    let (options, complaints) = Options::read(|name| match name {
        "JITLISTEN" => std::env::var_os(name).or_else(|| Some("jitdump".into())),
        "JITLISTEN_DIR" => Some(OsStr::from_bytes(directory).to_owned()),
        "JITLISTEN_LOG" => Some("stderr".into()),
        _ => None,
    });
    OBJECTS.get_or_init(|| LiveObjects::of(open_session(options, &complaints)));
}

/// Object that the last call of [`ours_loaded`] reported.
static LATEST: Mutex<Option<ObjectId>> = Mutex::new(None);

/// Reports a debug object of `size` bytes as *loaded*.
///
/// # Safety
/// The object must be readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ours_loaded(object: *const u8, size: usize) {
    // SAFETY: the caller guarantees readable memory.
    let bytes = unsafe { std::slice::from_raw_parts(object, size) };
    let loaded = OBJECTS.get().and_then(|objects| objects.loaded(bytes.to_vec(), None, None).ok());
    *LATEST.lock().unwrap_or_else(PoisonError::into_inner) = loaded.map(|loaded| loaded.id);
}

/// Reports the same object as *finalized*: its text is relocated and readable.
#[unsafe(no_mangle)]
pub extern "C" fn ours_finalized() {
    let latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let (Some(objects), Some(id)) = (OBJECTS.get(), latest) {
        objects.finalized(id);
    }
}

/// Returns the number of bytes written, or 0 if a sink has failed.
#[unsafe(no_mangle)]
pub extern "C" fn ours_bytes_written() -> u64 {
    let Some(objects) = OBJECTS.get() else { return 0 };
    let sinks = [SinkKind::Jitdump, SinkKind::Image].map(|kind| objects.statistics().sink(kind));
    if sinks.iter().all(|sink| sink.failures == 0) { sinks.iter().map(|sink| sink.bytes_written).sum() } else { 0 }
}
