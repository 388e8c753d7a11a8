//! The constructor, which runs before the program's own when the library was preloaded, and the destructor.
//!
//! A program that is linked with the library decides for itself when to call `jitlisten_open`; only the environment
//! variable `LD_PRELOAD` naming us starts anything by itself. In a set-user-ID program nothing is done at all: the
//! environment is not to be trusted there, and a session that the program itself opens is switched off.

use std::panic::catch_unwind;

use jitlisten::{HostStateGuard, Session, is_privileged, log_line};
use jitlisten_sampler::Heirs;

use crate::give_back::{self, give_back};
use crate::session::open_by_environment;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    let _host_state = HostStateGuard::enter();
    let _ = catch_unwind(|| {
        if !is_privileged() && is_preloaded() {
            open_by_environment();
            // Before the environment is given back.
            record_by_environment();
            give_back();
        }
    });
}

/// A program whose session is switched off is not sampled either. What stands before the program of `jitlisten record` is
/// sampled, and leaves the file to the program when that begins; the program's children are not sampled.
fn record_by_environment() {
    if !Session::process().is_some_and(|session| session.options().active) {
        return;
    }
    let heirs = if give_back::stands_before_program() { Heirs::Descendants } else { Heirs::Nobody };
    if let Err(error) = jitlisten_sampler::start_by_environment(heirs) {
        log_line!(Error, "no recording: {error}");
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destructor;

/// Runs in `exit(3)`, not when the process is killed or calls `_exit(2)`.
extern "C" fn destructor() {
    let _host_state = HostStateGuard::enter();
    let _ = catch_unwind(|| {
        // First: the names of what was sampled are there still.
        jitlisten_sampler::ending();
        if let Some(session) = Session::process() {
            session.ending();
        }
    });
}

/// Whether `LD_PRELOAD` (names divided by spaces or colons, `ld.so(8)`) has a file of our name.
fn is_preloaded() -> bool {
    let list = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let list = list.to_string_lossy();
    list.split([' ', ':']).any(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("libjitlisten")))
}
