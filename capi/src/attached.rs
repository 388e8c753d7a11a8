//! Entry point of the thread that `jitlisten attach` or `record -p` starts in this process (`cli/src/inject/mod.rs`).
//! The command and this thread share a [`wire::mailbox`].

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr;

use jitlisten::Session;
use jitlisten::options::SinkKind;
use jitlisten_sampler::Options;
use wire::mailbox::{Mailbox, PYTHON, REQUEST_OFFSET, Request, State};

use crate::guard::{guarded, jitlisten_last_error};
use crate::record::failure;
use crate::session::open_with_sinks;
use crate::status::{Failure, Status};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const DEFAULT_SINKS: &str = "perfmap,image,unwind";

/// Runs the request in `memory` in its own thread. Python ends a thread that waits for the GIL at the end of the
/// interpreter by unwinding its stack, so no frame here may have a destructor then.
///
/// # Safety
/// `memory` must be a mailbox with a request, mapped until the request has finished.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn jitlisten_attached(memory: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_self` returns the calling thread's own handle, and no thread joins it.
    unsafe { libc::pthread_detach(libc::pthread_self()) };
    // SAFETY: the caller guarantees a mailbox, which stays mapped until its state says that the request has finished.
    let mailbox = unsafe { &*memory.cast::<Mailbox>() };
    // SAFETY: the caller guarantees a C string at this offset.
    let request = unsafe { CStr::from_ptr(memory.cast::<c_char>().add(REQUEST_OFFSET)) };
    let request = Request::decode(request.to_bytes());
    if request.sinks == PYTHON && request.version == VERSION.as_bytes() {
        run_python(request.options.as_ptr().cast());
        return ptr::null_mut();
    }
    if !mailbox.start() {
        return ptr::null_mut();
    }
    if guarded(|| start(&request)) == Status::Ok as i32 {
        mailbox.finish(State::Succeeded, b"");
    } else {
        // SAFETY: the error is always a null-terminated string.
        mailbox.finish(State::Failed, unsafe { CStr::from_ptr(jitlisten_last_error()) }.to_bytes());
    }
    ptr::null_mut()
}

/// Runs a C string of Python code as soon as no other thread holds the GIL. Does nothing without CPython.
fn run_python(code: *const c_char) {
    type Ensure = extern "C-unwind" fn() -> c_int;
    type Run = extern "C-unwind" fn(*const c_char) -> c_int;
    type Release = extern "C-unwind" fn(c_int);
    let names = [c"Py_IsInitialized", c"PyGILState_Ensure", c"PyRun_SimpleString", c"PyGILState_Release"];
    // SAFETY: `dlsym` reads these C strings.
    let functions = names.map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    if functions.iter().any(|function| function.is_null()) {
        return;
    }
    let [is_initialized, ensure, run, release] = functions;
    // SAFETY: CPython's functions have had these types since 3.8.
    let (is_initialized, ensure, run, release) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Ensure>(is_initialized),
            std::mem::transmute::<*mut c_void, Ensure>(ensure),
            std::mem::transmute::<*mut c_void, Run>(run),
            std::mem::transmute::<*mut c_void, Release>(release),
        )
    };
    if is_initialized() != 0 {
        let state = ensure();
        // The code tells the command what became of it.
        run(code);
        release(state);
    }
}

fn start(request: &Request<'_>) -> Result<(), Failure> {
    let Request { version, sinks, options } = *request;
    if version != VERSION.as_bytes() {
        let command_version = String::from_utf8_lossy(version);
        return Err(Failure::argument(format_args!(
            "the process has jitlisten {VERSION}; the command is {command_version}"
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
