//! Constructor and destructor of the library. In a preloaded library, the constructor runs before the program's.
//!
//! A program that links to the library decides when to call `jitlisten_open`. Only an `LD_PRELOAD` that contains this
//! library, by any file name, starts it automatically. In a set-user-ID program the environment is not trusted: the
//! constructor starts nothing, and a session that the program opens is switched off.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::catch_unwind;

use jitlisten::plumbing::{HostStateGuard, LiveObjects, is_privileged, run_before_program};
use jitlisten::{Session, log_line};
use jitlisten_sampler::InheritedBy;

use crate::run_environment::{self, restore_environment};
use crate::session::open_from_environment;
#[cfg(feature = "interpose")]
use crate::{exec_environment, missing_preload};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    let _host_state = HostStateGuard::enter();
    let _ = catch_unwind(|| {
        jitlisten_sampler::resolve_libc_functions();
        if !is_privileged() && is_preloaded() {
            run_before_program(open_from_environment);
            // Both need the environment as it was.
            #[cfg(feature = "interpose")]
            missing_preload::record_launcher();
            #[cfg(feature = "interpose")]
            exec_environment::store_request();
            start_recording_from_environment();
            restore_environment();
        }
    });
}

/// Starts a recording if the environment requests one. If the session is switched off, the program is not sampled. If
/// `jitlisten record` first starts a tool that in turn starts the program, the tool is sampled as well, and hands the
/// recording's file over to the program. The program's children are not sampled.
fn start_recording_from_environment() {
    if !Session::process().is_some_and(|session| session.options().active) {
        return;
    }
    let inherited_by =
        if run_environment::is_before_program() { InheritedBy::Descendants } else { InheritedBy::NoProcess };
    if let Err(error) = jitlisten_sampler::start_by_environment(inherited_by) {
        log_line!(Error, "no recording: {error}");
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

/// Runs in `exit(3)`. If the process is killed or calls `_exit(2)`, this destructor does not run; only a recording is
/// finished.
extern "C" fn destructor() {
    // The program's seccomp filter may kill the process for an unexpected system call.
    if jitlisten_sampler::is_confined() {
        return;
    }
    let _host_state = HostStateGuard::enter();
    let _ = catch_unwind(|| {
        jitlisten_shim::ending();
        // The recording ends before the sinks, while the names of sampled code are still known.
        jitlisten_sampler::finish_at_exit();
        if let Some(objects) = LiveObjects::process() {
            objects.flush_sinks();
        }
    });
}

/// Returns true if `LD_PRELOAD` (names separated by spaces or colons, `ld.so(8)`) contains a file with this library's
/// file name.
fn is_preloaded() -> bool {
    let Some(own_path) = own_file() else { return false };
    let contains_us =
        |list: &[u8]| list.split(|byte| b" :".contains(byte)).any(|path| file_name(path) == file_name(&own_path));
    std::env::var_os("LD_PRELOAD").is_some_and(|list| contains_us(list.as_bytes()))
        || initial_environment()
            .split(|&byte| byte == 0)
            .filter_map(|variable| variable.strip_prefix(b"LD_PRELOAD="))
            .any(contains_us)
}

/// Returns the environment as the loader saw it. Another preloaded library may have removed this library from
/// `LD_PRELOAD` before our constructor ran (heaptrack does, so that the program's children are not preloaded).
fn initial_environment() -> Vec<u8> {
    std::fs::read("/proc/self/environ").unwrap_or_default()
}

fn file_name(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|&byte| byte == b'/').next().filter(|name| !name.is_empty())
}

/// Path of this library, as recorded by the loader.
fn own_file() -> Option<Vec<u8>> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `own_file` is an address in our code, and `info` is writable.
    let result = unsafe { libc::dladdr(own_file as *const c_void, info.as_mut_ptr()) };
    // SAFETY: `info` was zeroed, and it is valid whether or not `dladdr` has written to it.
    let info = unsafe { info.assume_init() };
    if result == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: `dli_fname` is the loader's C string for a library that is never unloaded.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes().to_vec())
}
