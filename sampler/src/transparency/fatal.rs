//! Finishes the recording when a signal is about to end the process by default, as before `_exit(2)`.
//!
//! If the program's calls to `sigaction(2)` reach `signals.rs`, our handler is installed for a fatal signal as long as
//! its disposition is the default; the program still sees the default. The handler waits for the writer, restores the
//! default, and sends the signal to its thread again with the same `siginfo_t`. A core file is therefore the same as
//! without the sampler.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::recording::current;
use crate::recording::process::{self, object_base};
use crate::system::clock;
use crate::transparency::disposition::{self, end_process, restore_default};
use crate::transparency::{exit, next};

/// Signals that commonly kill programs. `SIGKILL` cannot be handled.
const FATAL_SIGNALS: [c_int; 11] = [
    libc::SIGABRT,
    libc::SIGALRM,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGHUP,
    libc::SIGILL,
    libc::SIGINT,
    libc::SIGPIPE,
    libc::SIGQUIT,
    libc::SIGSEGV,
    libc::SIGTERM,
];

/// Detects whether the program's calls to `sigaction` reach this library. Calls the loader, so it must not be called
/// under locks or in a fork child.
pub(crate) fn detect_interposition() {
    // The default action does not end the first process of a PID namespace.
    disposition::set_interposed(calls_reach_us(c"sigaction") && std::process::id() != 1);
}

/// Returns true if the program's calls of the interposed libc functions reach this library. Calls the loader.
#[must_use]
pub fn is_interposed() -> bool {
    // No sanitizer defines this function.
    calls_reach_us(c"_exit")
}

/// Returns true if this library's definition of a function is the first one.
fn calls_reach_us(name: &CStr) -> bool {
    process::symbol_object_base(name).is_some_and(|owner| object_base(calls_reach_us as *const c_void) == Some(owner))
}

/// Installs the handler for all fatal signals with the default disposition.
pub(crate) fn install_handlers() {
    FATAL_SIGNALS.into_iter().for_each(install_handler);
}

/// True if our handler may be installed for the signal, by this or an earlier recording.
pub(crate) fn may_have_handler(signal: c_int) -> bool {
    disposition::are_interposed() && FATAL_SIGNALS.contains(&signal)
}

/// Installs the handler for a fatal signal, if its disposition is the default.
pub(crate) fn install_handler(signal: c_int) {
    if !may_have_handler(signal) || current::own().is_none() {
        return;
    }
    // SAFETY: all zeros is a valid `sigaction`: the default disposition.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the call only reads the current disposition into `action`.
    let result = unsafe { next::sigaction(signal, ptr::null(), &raw mut action) };
    if result != 0 || action.sa_sigaction != libc::SIG_DFL {
        return;
    }
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `sigfillset` initializes the set.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: the handler is a function of this library, which is never unloaded, and it is safe in every thread.
    unsafe { next::sigaction(signal, &raw const action, ptr::null_mut()) };
}

/// Undoes [`install_handlers`].
pub(crate) fn restore_defaults() {
    for signal in FATAL_SIGNALS {
        // SAFETY: all zeros is a valid `sigaction`: the default disposition.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the call only reads the current disposition into `action`.
        let result = unsafe { next::sigaction(signal, ptr::null(), &raw mut action) };
        if result == 0 && visible_handler(action.sa_sigaction) != action.sa_sigaction {
            restore_default(signal);
        }
    }
}

/// Returns the handler that the program should see.
pub(crate) fn visible_handler(disposition: libc::sighandler_t) -> libc::sighandler_t {
    if disposition == handler as *const () as libc::sighandler_t { libc::SIG_DFL } else { disposition }
}

extern "C-unwind" fn handler(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    exit::end_recording();
    restore_default(signal);
    // SAFETY: the arguments are integers and the kernel's `siginfo_t`; a thread may queue a signal with any information
    // to itself.
    let result = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), clock::own_tid(), signal, info) };
    if result != 0 {
        end_process(signal);
    }
}
