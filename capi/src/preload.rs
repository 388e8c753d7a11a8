//! The constructor, which runs before the program's own when the library was preloaded, and the destructor.
//!
//! A program that is linked with the library decides for itself when to call `jitlisten_open`; only the environment
//! variable `LD_PRELOAD` naming us, by whatever file name, starts anything by itself. In a set-user-ID program nothing
//! is done at all: the environment is not to be trusted there, and a session that the program itself opens is switched
//! off.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::catch_unwind;

use jitlisten::plumbing::{HostStateGuard, before_program, is_privileged};
use jitlisten::{Session, log_line};
use jitlisten_sampler::Heirs;

use crate::give_back::{self, give_back};
#[cfg(feature = "interpose")]
use crate::left_behind;
use crate::session::open_by_environment;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    let _host_state = HostStateGuard::enter();
    let _ = catch_unwind(|| {
        jitlisten_sampler::find_exits();
        jitlisten_sampler::find_calls();
        if !is_privileged() && is_preloaded() {
            before_program(open_by_environment);
            // Before the environment is restored.
            #[cfg(feature = "interpose")]
            left_behind::look();
            record_by_environment();
            give_back();
        }
    });
}

/// A program whose session is switched off is not sampled either. What stands before the program of `jitlisten record`
/// is sampled, and leaves the file to the program when that begins; the program's children are not sampled.
fn record_by_environment() {
    if !Session::process().is_some_and(|session| session.options().active) {
        return;
    }
    let heirs = if give_back::stands_before_program() { Heirs::Descendants } else { Heirs::Nothing };
    if let Err(error) = jitlisten_sampler::start_by_environment(heirs) {
        log_line!(Error, "no recording: {error}");
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

/// Runs in `exit(3)`, not when the process is killed or calls `_exit(2)`, where only a recording ends.
extern "C" fn destructor() {
    // A filter of the program's may end it for a system call that it does not expect.
    if jitlisten_sampler::is_confined() {
        return;
    }
    let _host_state = HostStateGuard::enter();
    let _ = catch_unwind(|| {
        jitlisten_shim::ending();
        // First of the sinks: the names of what was sampled are there still.
        jitlisten_sampler::ending();
        if let Some(session) = Session::process() {
            session.ending();
        }
    });
}

/// Whether `LD_PRELOAD` (names divided by spaces or colons, `ld.so(8)`) has a file of the name that this code was
/// loaded by.
fn is_preloaded() -> bool {
    let Some(own) = own_file() else { return false };
    let names_us = |list: &[u8]| list.split(|byte| b" :".contains(byte)).any(|path| file_name(path) == file_name(&own));
    std::env::var_os("LD_PRELOAD").is_some_and(|list| names_us(list.as_bytes()))
        || first_environment().split(|&byte| byte == 0).filter_map(|one| one.strip_prefix(b"LD_PRELOAD=")).any(names_us)
}

/// The environment as the loader saw it: another preloaded library may have taken us out of it before our constructor
/// (heaptrack does, so that its program's children are not preloaded).
fn first_environment() -> Vec<u8> {
    std::fs::read("/proc/self/environ").unwrap_or_default()
}

fn file_name(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|&byte| byte == b'/').next().filter(|name| !name.is_empty())
}

/// The path that the loader found the library by that this code is in.
fn own_file() -> Option<Vec<u8>> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: an address of our code, and writable memory for the result.
    let result = unsafe { libc::dladdr(own_file as *const c_void, found.as_mut_ptr()) };
    // SAFETY: zeros are a valid result, whatever was written over them.
    let found = unsafe { found.assume_init() };
    if result == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a library that is never unloaded.
    Some(unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes().to_vec())
}
