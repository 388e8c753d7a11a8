//! Opens the session of this process.

use std::ffi::{CStr, OsString, c_char};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use jitlisten::Session;
use jitlisten::options::{Listening, Options};
use jitlisten::plumbing::open_session;

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
    guarded(|| open_for_program(&CallerOptions::default(), Listening::Process))
}

/// Opens the session for the preloaded library.
pub(crate) fn open_from_environment() -> i32 {
    guarded(|| open(&CallerOptions::default(), Listening::Process))
}

/// Options of the program's first successful call that opened the session; empty if the session was opened by the
/// preloaded library or by `jitlisten record -p`, whose options take precedence.
static OPENED_BY_PROGRAM: OnceLock<EffectiveOptions> = OnceLock::new();

/// True from `jitlisten_close` until a sink is enabled.
static IS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Sets whether the session counts as closed.
pub(crate) fn set_closed(closed: bool) {
    IS_CLOSED.store(closed, Ordering::Relaxed);
}

/// Opens the session at the program's request; see the header for a session that is open or closed.
fn open_for_program(caller_options: &CallerOptions, listening: Listening) -> Result<(), Failure> {
    if IS_CLOSED.load(Ordering::Relaxed) {
        return Err(Failure::new(Status::Closed, "the session was closed: enable its sinks again"));
    }
    let was_open = Session::process().is_some();
    open(caller_options, listening)?;
    if !was_open {
        let _ = OPENED_BY_PROGRAM.set(EffectiveOptions::new(caller_options, listening));
        return Ok(());
    }
    let conflict = OPENED_BY_PROGRAM.get().and_then(|opened| opened.find_conflict(caller_options, listening));
    conflict.map_or(Ok(()), |option| {
        Err(Failure::new(Status::AlreadyOpen, format_args!("the session has another {option}")))
    })
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
        open_for_program(&unsafe { CallerOptions::read(&options) }?, listening)
    })
}

/// Opens the session with these sinks; the environment provides the other options.
pub(crate) fn open_with_sinks(sinks: &str) -> Result<(), Failure> {
    open(&CallerOptions(vec![("JITLISTEN", sinks.into())]), Listening::Process)
}

/// Environment variables that the strings of [`COptions`] override, in the same order.
const VARIABLES: [&str; 5] =
    ["JITLISTEN", "JITLISTEN_DIR", "JITLISTEN_LOG", "JITLISTEN_FRAME_POINTERS", "JITLISTEN_NAMES"];

/// Caller-supplied options that override environment variables.
#[derive(Default)]
struct CallerOptions(Vec<(&'static str, OsString)>);

impl CallerOptions {
    /// Reads and validates the caller's options.
    ///
    /// # Safety
    /// The strings must be null or readable.
    unsafe fn read(options: &COptions) -> Result<CallerOptions, Failure> {
        let texts = [options.sinks, options.directory, options.log, options.frame_pointers, options.names];
        let mut caller_options = Vec::new();
        for (variable, text) in VARIABLES.into_iter().zip(texts).filter(|(_, text)| !text.is_null()) {
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

/// Options that a session was opened with.
struct EffectiveOptions {
    values: [(&'static str, Option<OsString>); 5],
    listening: Listening,
}

impl EffectiveOptions {
    fn new(caller_options: &CallerOptions, listening: Listening) -> EffectiveOptions {
        let value = |variable| caller_options.get(variable).or_else(|| std::env::var_os(variable));
        EffectiveOptions { values: VARIABLES.map(|variable| (variable, value(variable))), listening }
    }

    /// Name of the first option that the caller sets to another value; `None` if the session meets all its wishes.
    fn find_conflict(&self, caller_options: &CallerOptions, listening: Listening) -> Option<&'static str> {
        if listening == Listening::Process && self.listening == Listening::Calls {
            return Some("value of listen");
        }
        let is_other = |(variable, value): &&(&str, Option<OsString>)| {
            caller_options.get(variable).is_some_and(|wanted| value.as_ref() != Some(&wanted))
        };
        self.values.iter().find(is_other).map(|(variable, _)| *variable)
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
        open_session(options, &problems)
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
