//! Opens the session of this process.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt as _;

use jitlisten::Session;
use jitlisten::options::{Listening, Options};

use crate::borrowed::{self, Plain};
use crate::guard::guarded;
use crate::heap;
use crate::status::{Failure, Status};

/// `struct jitlisten_options` of `include/jitlisten.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct COptions {
    size: usize,
    sinks: *const c_char,
    directory: *const c_char,
    log: *const c_char,
    frame_pointers: *const c_char,
    names: *const c_char,
    listen: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<COptions>() == 7 * 8);

// SAFETY: the struct has only integers and raw pointers.
unsafe impl Plain for COptions {}

/// Opens the session of this process with the options in the environment, and starts observing LLVM instances.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_open() -> i32 {
    open_from_environment()
}

/// Internal equivalent of [`jitlisten_open`], because a call by the exported name may reach another copy of the
/// library.
pub(crate) fn open_from_environment() -> i32 {
    guarded(|| open(&CallerOptions::default(), Listening::Process))
}

/// Opens the session of this process with the caller's options; the environment provides the rest.
///
/// # Safety
/// `options` must be null or readable, as must its strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jitlisten_open_with(options: *const COptions) -> i32 {
    guarded(|| {
        // SAFETY: the caller guarantees that `options` is readable.
        let options = unsafe { borrowed::copy_sized(options, size_of::<usize>(), "options") }?;
        borrowed::check_reserved(options.reserved, "options")?;
        let listening = match options.listen {
            0 => Listening::Process,
            1 => Listening::Calls,
            value => return Err(Failure::argument(format_args!("listen: unknown value {value}"))),
        };
        // SAFETY: the caller guarantees that the strings are null or readable.
        open(&unsafe { CallerOptions::read(&options) }?, listening)
    })
}

/// Opens the session with these sinks; the environment provides the other options.
pub(crate) fn open_with_sinks(sinks: &str) -> Result<(), Failure> {
    open(&CallerOptions(vec![("JITLISTEN", sinks.into())]), Listening::Process)
}

/// Caller-supplied options that override environment variables.
#[derive(Default)]
struct CallerOptions(Vec<(&'static str, OsString)>);

impl CallerOptions {
    /// Reads and validates the caller's options.
    ///
    /// # Safety
    /// The strings must be null or readable.
    unsafe fn read(options: &COptions) -> Result<CallerOptions, Failure> {
        let texts = [
            ("JITLISTEN", options.sinks),
            ("JITLISTEN_DIR", options.directory),
            ("JITLISTEN_LOG", options.log),
            ("JITLISTEN_FRAME_POINTERS", options.frame_pointers),
            ("JITLISTEN_NAMES", options.names),
        ];
        let mut caller_options = Vec::new();
        for (variable, text) in texts.into_iter().filter(|(_, text)| !text.is_null()) {
            // SAFETY: the caller guarantees a readable C string.
            let text = unsafe { borrowed::read_text(text, variable) }?;
            caller_options.push((variable, OsString::from_vec(text.to_vec())));
        }
        let caller_options = CallerOptions(caller_options);
        match Options::read(|variable| caller_options.get(variable)).1.first() {
            None => Ok(caller_options),
            Some(problem) if problem.starts_with("JITLISTEN:") => Err(Failure::new(Status::UnknownSink, problem)),
            Some(problem) => Err(Failure::argument(problem)),
        }
    }

    fn get(&self, variable: &str) -> Option<OsString> {
        self.0.iter().find(|(name, _)| *name == variable).map(|(_, text)| text.clone())
    }
}

fn open(caller_options: &CallerOptions, listening: Listening) -> Result<(), Failure> {
    if Session::process().is_none()
        && let Some(duplicate_copy) = jitlisten_shim::duplicate_copy()
    {
        return Err(Failure::new(
            Status::SwitchedOff,
            format_args!("another copy is at work: {}", duplicate_copy.display()),
        ));
    }
    let environment = |variable: &str| std::env::var_os(variable);
    let (mut options, problems) =
        Options::read(|variable| caller_options.get(variable).or_else(|| environment(variable)));
    // `JITLISTEN=off` in the environment takes precedence.
    options.active &= Options::read(environment).0.active;
    if options.active {
        heap::follow_forks();
    }
    let session = if listening == Listening::Process {
        Session::open(options, &problems)
    } else {
        jitlisten::producer::open(options, &problems)
    };
    if !session.options().active {
        return Err(Status::SwitchedOff.into());
    }
    // The first caller has chosen which LLVM instances to observe, so use the session's own option.
    if session.options().listening == Listening::Process {
        jitlisten_shim::start(session);
    }
    Ok(())
}

/// Version as a C string.
#[unsafe(no_mangle)]
pub extern "C" fn jitlisten_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}
