//! A process that `jitlisten run` or `record` has started, before its program, executes that program without this
//! library: a wrapper that sets or clears `LD_PRELOAD`. One line tells the user why nothing is observed.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::catch_unwind;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use jitlisten::plumbing::HostStateGuard;
use jitlisten_sampler::Strings;

use crate::give_back;

unsafe extern "C" {
    static environ: Strings;
}

/// A process that stands before the program.
struct Launcher {
    pid: u32,
    /// True if its children are meant: what any other program starts is its own business.
    starts_children: bool,
    /// The path in `LD_PRELOAD`.
    library: Vec<u8>,
}

static LAUNCHER: OnceLock<Launcher> = OnceLock::new();
/// True if a line was written, by this process or a child of its: in memory that they share.
static IS_SAID: AtomicPtr<AtomicBool> = AtomicPtr::new(ptr::null_mut());

/// For the constructor, before the environment changes.
pub(crate) fn look() {
    let Some(library) = give_back::library_for_program() else { return };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: new memory, at an address of the kernel's choice.
    let shared = unsafe { libc::mmap(ptr::null_mut(), size_of::<AtomicBool>(), protection, flags, -1, 0) };
    if shared != libc::MAP_FAILED {
        IS_SAID.store(shared.cast(), Ordering::Release);
        let starts_children = jitlisten_sampler::stands_before("self");
        let _ = LAUNCHER.set(Launcher { pid: std::process::id(), starts_children, library });
    }
}

/// Says so, if the program that is about to be executed will not load this library. `environment` is null for the
/// caller's own.
///
/// # Safety
/// As `execve(2)`.
pub(crate) unsafe fn warn(file: *const c_char, environment: Strings) {
    let _host_state = HostStateGuard::enter();
    let _ = catch_unwind(|| {
        let is_meant = |launcher: &&Launcher| launcher.starts_children || launcher.pid == std::process::id();
        let Some(launcher) = LAUNCHER.get().filter(is_meant).filter(|_| !file.is_null()) else { return };
        // SAFETY: libc's, which the caller's thread may read, as the call itself does.
        let environment = if environment.is_null() { unsafe { environ } } else { environment };
        // SAFETY: the caller's promise.
        let preload = unsafe { value_of(environment, b"LD_PRELOAD=") }.unwrap_or_default();
        if preload.split(|byte| b" :".contains(byte)).any(|path| path == launcher.library.as_slice()) {
            return;
        }
        // SAFETY: the caller's promise.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(file) }.to_bytes()));
        if path.components().count() > 1 && !path.is_file() {
            return;
        }
        // SAFETY: memory that is never unmapped, since there is a launcher; zero is `false`.
        if unsafe { &*IS_SAID.load(Ordering::Acquire) }.swap(true, Ordering::AcqRel) {
            return;
        }
        let how = if preload.is_empty() { "without LD_PRELOAD" } else { "with another LD_PRELOAD" };
        say(&format!(
            "jitlisten: {} is started {how} and cannot be observed: put jitlisten after the wrapper that changes it\n",
            path.display()
        ));
    });
}

/// To standard error, as the command's own messages: no session of this process has to log.
fn say(line: &str) {
    // SAFETY: readable bytes.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// # Safety
/// `environment` is null, or an array of terminated strings that ends with null.
unsafe fn value_of<'a>(environment: Strings, name: &[u8]) -> Option<&'a [u8]> {
    if environment.is_null() {
        return None;
    }
    let strings = (0..).map_while(|number| {
        // SAFETY: the caller's promise: no string before this one was null.
        let string = unsafe { *environment.add(number) };
        // SAFETY: the caller's promise.
        (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_bytes())
    });
    strings.into_iter().find_map(|string| string.strip_prefix(name))
}
