//! Warns about programs that start without this library. `jitlisten run` and `record` may start a wrapper that sets or
//! clears `LD_PRELOAD` before it executes the program. One line tells the user why nothing is observed.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::catch_unwind;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use jitlisten::plumbing::HostStateGuard;
use jitlisten_sampler::CStringArray;

use crate::exec_environment::{has_entry, own_environment, variables};
use crate::run_environment;

/// A launcher process: `jitlisten run` or `record` started it, but it is not the program yet.
struct Launcher {
    pid: u32,
    /// True if the program may be started by a child of the launcher. Otherwise only the launcher's own `exec` calls
    /// count, because its children may start unrelated programs.
    starts_children: bool,
    /// Path of this library in `LD_PRELOAD`.
    library: Vec<u8>,
}

static LAUNCHER: OnceLock<Launcher> = OnceLock::new();
/// True once this process or one of its children has printed the warning. The flag lies in memory that they share.
static WARNING_IS_PRINTED: AtomicPtr<AtomicBool> = AtomicPtr::new(ptr::null_mut());

/// Records this process as a launcher, if it is not the program yet. Call in the constructor, before the environment
/// changes.
pub(crate) fn record_launcher() {
    let Some(library) = run_environment::library_for_program() else { return };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: the call creates a mapping at an address that the kernel chooses.
    let shared_memory = unsafe { libc::mmap(ptr::null_mut(), size_of::<AtomicBool>(), protection, flags, -1, 0) };
    if shared_memory != libc::MAP_FAILED {
        WARNING_IS_PRINTED.store(shared_memory.cast(), Ordering::Release);
        let starts_children = jitlisten_sampler::is_launcher("self");
        let _ = LAUNCHER.set(Launcher { pid: std::process::id(), starts_children, library });
    }
}

/// Warns if the program that is about to be executed will not load this library. `environment` is null for the caller's
/// own environment.
///
/// # Safety
/// Same contract as `execve(2)`.
pub(crate) unsafe fn warn(file: *const c_char, environment: CStringArray) {
    let _host_state = HostStateGuard::enter();
    let _ = catch_unwind(|| {
        let is_watched = |launcher: &&Launcher| launcher.starts_children || launcher.pid == std::process::id();
        let Some(launcher) = LAUNCHER.get().filter(is_watched).filter(|_| !file.is_null()) else { return };
        let environment = if environment.is_null() { own_environment() } else { environment };
        // SAFETY: the caller passes an environment like that of `execve(2)`.
        let mut strings = unsafe { variables(environment) }.map(CStr::to_bytes);
        let preload = strings.find_map(|string| string.strip_prefix(b"LD_PRELOAD=")).unwrap_or_default();
        if has_entry(preload, &launcher.library) {
            return;
        }
        // SAFETY: the caller passes a path like that of `execve(2)`, and it is not null.
        let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(file) }.to_bytes()));
        if path.components().count() > 1 && !path.is_file() {
            return;
        }
        // SAFETY: if a launcher is set, the pointer refers to shared memory that is never unmapped; zero is `false`.
        if unsafe { &*WARNING_IS_PRINTED.load(Ordering::Acquire) }.swap(true, Ordering::AcqRel) {
            return;
        }
        let note = if preload.is_empty() { "without LD_PRELOAD" } else { "with another LD_PRELOAD" };
        print(&format!(
            "jitlisten: {} is started {note} and cannot be observed: put jitlisten after the wrapper that changes it\n",
            path.display()
        ));
    });
}

/// Prints to standard error, as the command does, because this process may have no session and thus no log.
fn print(line: &str) {
    // SAFETY: `line` is readable for its length.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}
