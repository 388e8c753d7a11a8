//! Protects the host's state while one of its threads runs our code.
//!
//! ```text
//!   host ---- hook ---------------------------------------------- host
//!              `- HostStateGuard ------------------------------------- '
//!                 signals and cancellation deferred, errno saved
//! ```
//!
//! * **Signals** are deferred until our code returns, so no handler runs while this thread holds one of our locks. A
//!   handler may therefore call `fork`, `exit`, `dlopen`, `siglongjmp` or unwind without deadlocking on a lock held by
//!   its own thread. Faults and aborts (`SIGSEGV`, `SIGABRT`, ...) are not deferred: if they were blocked, they would
//!   kill the process before its crash handler runs.
//! * **Cancellation** is deferred: `write(2)` and `open(2)` are cancellation points, and a cancelled thread must not
//!   unwind through Rust frames.
//! * **`errno`** is restored.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Signals that are never deferred, because the current instruction or `abort` raises them.
const IMMEDIATE: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Value of `PTHREAD_CANCEL_DISABLE` in `<pthread.h>`.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Signals exempt from deferral, see [`exempt_signals`]; 0 if none.
static EXEMPT: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

/// Exempts signals from deferral; 0 if none. Used for the sampler's signals, whose handler takes no lock, changes no
/// state, and should sample time that threads spend in our code.
pub fn exempt_signals(signals: [c_int; 2]) {
    EXEMPT.iter().zip(signals).for_each(|(exempt, signal)| exempt.store(signal, Ordering::Relaxed));
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// RAII guard that protects the host's state, see the module documentation. It must be dropped on the thread that
/// created it.
#[derive(Debug)]
pub struct HostStateGuard {
    signals: libc::sigset_t,
    cancel_state: c_int,
    errno: c_int,
    _not_send: PhantomData<*mut ()>,
}

impl HostStateGuard {
    /// Defers signals and cancellation, and saves `errno`. Guards may be nested.
    #[must_use]
    pub fn enter() -> HostStateGuard {
        let errno = errno();
        let mut cancel_state = PTHREAD_CANCEL_DISABLE;
        // SAFETY: the call changes a per-thread flag, and writes its old value to `cancel_state`.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancel_state) };
        let (mut deferred, mut old_mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `deferred` is writable memory for a signal set, which this call initialises.
        unsafe { libc::sigfillset(deferred.as_mut_ptr()) };
        for signal in IMMEDIATE {
            // SAFETY: the set was initialised above; the number is a valid signal.
            unsafe { libc::sigdelset(deferred.as_mut_ptr(), signal) };
        }
        for exempt in EXEMPT.iter().map(|exempt| exempt.load(Ordering::Relaxed)).filter(|signal| *signal != 0) {
            // SAFETY: `sigfillset` has initialised the set; the sampler's signals are valid numbers.
            unsafe { libc::sigdelset(deferred.as_mut_ptr(), exempt) };
        }
        // SAFETY: the first set is initialised, the call writes the second, and SIG_BLOCK cannot fail.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, deferred.as_ptr(), old_mask.as_mut_ptr()) };
        // SAFETY: `pthread_sigmask` has initialised `old_mask`.
        let signals = unsafe { old_mask.assume_init() };
        HostStateGuard { signals, cancel_state, errno, _not_send: PhantomData }
    }

    /// Ends the protection of a thread that is about to exit, except that signals stay deferred. A thread that unblocks
    /// them takes a signal that the process has just received: a handler would run here, and the call that it should
    /// interrupt in another thread would go on.
    pub fn leave_in_exiting_thread(self) {
        std::mem::ManuallyDrop::new(self).restore_all_but_signals();
    }

    fn restore_all_but_signals(&self) {
        // SAFETY: `cancel_state` is the state saved by `enter`; the current state is not requested.
        unsafe { pthread_setcancelstate(self.cancel_state, ptr::null_mut()) };
        // Restore errno last: handlers of deferred signals may have changed it. A thread that is cancelled here never
        // returns.
        set_errno(self.errno);
    }
}

impl Drop for HostStateGuard {
    fn drop(&mut self) {
        // SAFETY: `signals` is the mask saved by `enter`; the current mask is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.signals, ptr::null_mut()) };
        self.restore_all_but_signals();
    }
}

/// Saves and restores only `errno`, around calls into host code.
pub fn preserving_errno(work: impl FnOnce()) {
    let errno = errno();
    work();
    set_errno(errno);
}

fn errno() -> c_int {
    // SAFETY: errno is a thread-local variable of libc.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: errno is a thread-local variable of libc.
    unsafe { *libc::__errno_location() = value };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handler(_: c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
        set_errno(libc::EBADF);
    }

    #[test]
    fn a_signal_waits_and_errno_is_kept() {
        let handler: extern "C" fn(c_int) = handler;
        // SAFETY: the handler is async-signal-safe.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        set_errno(libc::EDOM);
        let outer = HostStateGuard::enter();
        {
            let _inner = HostStateGuard::enter();
            // SAFETY: the call sends this thread a signal that has a handler.
            unsafe { libc::raise(libc::SIGUSR2) };
            set_errno(libc::ENOENT);
        }
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
        drop(outer);
        assert_eq!((HANDLED.load(Ordering::SeqCst), errno()), (1, libc::EDOM));
    }
}
