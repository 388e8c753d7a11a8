//! Signals whose default ends the process: the recording ends first, as before `_exit(2)`.
//!
//! Where the program's calls of `sigaction(2)` come to `signals.rs`, such a signal gets a handler while its disposition
//! is the default, and the program sees the default. The handler waits for the writer, restores the default, and sends
//! the signal to its thread again with what the kernel said of it, so that a core file is as it would have been.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::disposition::{end_process, next_sigaction, restore_default};
use crate::process::{self, object_base};
use crate::{clock, leaving};

/// What programs die of. Nothing can be done before `SIGKILL`.
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

/// Whether the program's calls of `sigaction` come to `signals.rs`.
static IS_INTERPOSED: AtomicBool = AtomicBool::new(false);

/// Asks the loader: not under locks, nor in the child of a fork.
pub(crate) fn detect_interposition() {
    let is_ours = process::symbol_object_base(c"sigaction").is_some_and(|owner| object_base(detect_interposition as *const c_void) == Some(owner));
    // The default does not end the first process of a PID namespace.
    IS_INTERPOSED.store(is_ours && std::process::id() != 1, Ordering::Relaxed);
}

/// All that the program lets end it.
pub(crate) fn install_handlers() {
    FATAL_SIGNALS.into_iter().for_each(install_handler);
}

/// Whether such a signal may have the handler, now or from an earlier recording on.
pub(crate) fn may_have_handler(signal: c_int) -> bool {
    IS_INTERPOSED.load(Ordering::Relaxed) && FATAL_SIGNALS.contains(&signal)
}

/// The disposition of a signal may be the default now.
pub(crate) fn install_handler(signal: c_int) {
    if !may_have_handler(signal) || !leaving::is_recorded() {
        return;
    }
    // SAFETY: all zeros is a valid disposition, the default.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: reads the disposition.
    let read = unsafe { next_sigaction(signal, ptr::null(), &raw mut action) };
    if read != 0 || action.sa_sigaction != libc::SIG_DFL {
        return;
    }
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: writes the set.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: a handler of this library, which is never unloaded, and safe in every thread.
    unsafe { next_sigaction(signal, &raw const action, ptr::null_mut()) };
}

/// Undoes [`handle_all`].
pub(crate) fn restore_defaults() {
    for signal in FATAL_SIGNALS {
        // SAFETY: all zeros is a valid disposition, the default.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: reads the disposition.
        let read = unsafe { next_sigaction(signal, ptr::null(), &raw mut action) };
        if read == 0 && visible_handler(action.sa_sigaction) != action.sa_sigaction {
            restore_default(signal);
        }
    }
}

/// A disposition as the program has to see it.
pub(crate) fn visible_handler(disposition: libc::sighandler_t) -> libc::sighandler_t {
    if disposition == handler as *const () as libc::sighandler_t { libc::SIG_DFL } else { disposition }
}

extern "C-unwind" fn handler(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    leaving::end_recording();
    restore_default(signal);
    // SAFETY: numbers, and what the kernel has given: a thread may say of its own signals what it wants.
    let sent = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), clock::own_tid(), signal, info) };
    if sent != 0 {
        end_process(signal);
    }
}
