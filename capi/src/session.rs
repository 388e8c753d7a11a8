//! Opening the session of this process.

use std::ffi::{CStr, c_char};

use jitlisten::Session;
use jitlisten::options::{Listening, Options};

use crate::guard::guarded;
use crate::status::{Failure, Status};

/// Opens the session of this process with the options of the environment, and starts to listen.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_open() -> i32 {
    guarded(|| {
        let (options, complaints) = Options::read(|name| std::env::var_os(name));
        open(options, &complaints)
    })
}

pub(crate) fn open(options: Options, complaints: &[String]) -> Result<(), Failure> {
    if Session::process().is_none()
        && let Some(twin) = jitlisten_shim::twin()
    {
        return Err(Failure::new(Status::SwitchedOff, format_args!("another copy is at work: {}", twin.display())));
    }
    let session = match options.listening {
        Listening::Process => Session::open(options, complaints),
        Listening::Calls => jitlisten::listen::open(options, complaints),
    };
    if !session.options().active {
        return Err(Status::SwitchedOff.into());
    }
    // Whoever came first has said whom to listen to.
    if session.options().listening == Listening::Process {
        jitlisten_shim::start(session);
    }
    Ok(())
}

/// The version as a C string.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}
