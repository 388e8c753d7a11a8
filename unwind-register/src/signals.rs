//! Temporary signal mask: blocks all signals except those raised by the current instruction or by `abort`.
//!
//! jitlisten's `process/host_state.rs` has a similar list, and also blocks cancellation and exempts the sampler's
//! signal. This crate can be used alone, so it has its own.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Signals that are never blocked: synchronous faults, and `abort`.
const NEVER_BLOCKED: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Blocks the current thread's signals until dropped, by the same thread.
pub(crate) struct BlockedSignals {
    old_mask: libc::sigset_t,
    _not_send: PhantomData<*mut ()>,
}

impl BlockedSignals {
    pub(crate) fn new() -> BlockedSignals {
        let (mut blocked, mut old_mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: writable memory for a signal set, which the call initialises.
        unsafe { libc::sigfillset(blocked.as_mut_ptr()) };
        for signal in NEVER_BLOCKED {
            // SAFETY: the set is initialised above; the signal number is valid.
            unsafe { libc::sigdelset(blocked.as_mut_ptr(), signal) };
        }
        // SAFETY: the first set is initialised. The call writes the second one, and cannot fail for SIG_BLOCK.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), old_mask.as_mut_ptr()) };
        // SAFETY: `pthread_sigmask` initialised the old mask.
        BlockedSignals { old_mask: unsafe { old_mask.assume_init() }, _not_send: PhantomData }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the saved mask; the mask it replaces is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.old_mask, std::ptr::null_mut()) };
    }
}
