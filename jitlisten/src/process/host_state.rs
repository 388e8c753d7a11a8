//! Protects the host's state while one of its threads runs our code.
//!
//! ```text
//!   host ---- hook ---------------------------------------------- host
//!              `- HostStateGuard ------------------------------------- '
//!                 signals wait, cancellation waits, errno is kept
//! ```
//!
//! * **Signals** wait until our code returns, so no handler runs while this thread holds a lock of ours. A handler may
//!   call `fork`, `exit`, `dlopen`, `siglongjmp` or unwind without meeting a lock of ours that its own thread holds.
//!   Faults and aborts (`SIGSEGV`, `SIGABRT`, ...) do not wait: if blocked, they would end the process before its crash
//!   handler runs.
//! * **Cancellation** waits: `write(2)` and `open(2)` are cancellation points, and a cancelled thread must not unwind
//!   through Rust frames.
//! * **`errno`** is restored.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Signals caused by the current instruction, or by `abort`.
const IMMEDIATE: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// `PTHREAD_CANCEL_DISABLE` of `<pthread.h>`
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// See [`exempt_signal`]; 0: none.
static EXEMPT: AtomicI32 = AtomicI32::new(0);

/// Never holds this signal back from now on: its handler takes no lock and changes nothing, and time that a thread
/// spends in our code is to be seen there.
pub fn exempt_signal(signal: c_int) {
    EXEMPT.store(signal, Ordering::Relaxed);
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// See the module's head. It ends when it is dropped, in the thread that began it.
#[derive(Debug)]
pub struct HostStateGuard {
    signals: libc::sigset_t,
    cancel_state: c_int,
    errno: c_int,
    _of_this_thread: PhantomData<*mut ()>,
}

impl HostStateGuard {
    /// Masks signals and cancellation, saves `errno`. Guards may be nested.
    #[must_use]
    pub fn enter() -> HostStateGuard {
        let errno = errno();
        let mut cancel_state = PTHREAD_CANCEL_DISABLE;
        // SAFETY: changes a word of this thread's own, and writes the old one.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut cancel_state) };
        let (mut waiting, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: writable memory for a set, which this call initialises.
        unsafe { libc::sigfillset(waiting.as_mut_ptr()) };
        for signal in IMMEDIATE {
            // SAFETY: the set was initialised above; the number is a valid signal.
            unsafe { libc::sigdelset(waiting.as_mut_ptr(), signal) };
        }
        let exempt = EXEMPT.load(Ordering::Relaxed);
        if exempt != 0 {
            // SAFETY: `sigfillset` has initialised the set; the sampler's signal is a valid number.
            unsafe { libc::sigdelset(waiting.as_mut_ptr(), exempt) };
        }
        // SAFETY: the first set is initialised, the second one is written by the call, which cannot fail for SIG_BLOCK.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, waiting.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: pthread_sigmask has initialised it.
        let signals = unsafe { before.assume_init() };
        HostStateGuard { signals, cancel_state, errno, _of_this_thread: PhantomData }
    }
}

impl Drop for HostStateGuard {
    fn drop(&mut self) {
        // SAFETY: `signals` is the mask that was in force; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.signals, ptr::null_mut()) };
        // SAFETY: the state that was in force; the old one is not asked for.
        unsafe { pthread_setcancelstate(self.cancel_state, ptr::null_mut()) };
        // Last: handlers of signals that waited may have changed it, and what is cancelled here does not come back.
        set_errno(self.errno);
    }
}

/// Keeps `errno` alone, for calls into code of the host.
pub fn keeping_errno(work: impl FnOnce()) {
    let errno = errno();
    work();
    set_errno(errno);
}

fn errno() -> c_int {
    // SAFETY: errno is a thread-local of libc's.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: errno is a thread-local of libc's.
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
        // SAFETY: the handler does what handlers may.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        set_errno(libc::EDOM);
        let outer = HostStateGuard::enter();
        {
            let _inner = HostStateGuard::enter();
            // SAFETY: sends a signal that is handled to this thread.
            unsafe { libc::raise(libc::SIGUSR2) };
            set_errno(libc::ENOENT);
        }
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
        drop(outer);
        assert_eq!((HANDLED.load(Ordering::SeqCst), errno()), (1, libc::EDOM));
    }
}
