//! Temporary signal mask: blocks all signals except those raised by the current instruction or by `abort`.
//!
//! jitlisten's `process/host_state.rs` has a similar list, but also blocks cancellation and exempts the sampler's
//! signal. This crate must also work without jitlisten, so it has its own list.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Signals that are never blocked: synchronous faults, and `abort`.
const NEVER_BLOCKED: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Guard that blocks signals of the current thread until dropped by that thread.
pub(crate) struct BlockedSignals {
    old_mask: libc::sigset_t,
    _not_send: PhantomData<*mut ()>,
}

impl BlockedSignals {
    pub(crate) fn new() -> BlockedSignals {
        let (mut blocked, mut old_mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: `blocked` is writable, and the call initialises the set.
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
        // SAFETY: the saved mask is initialised, and a null pointer is valid for the previous mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.old_mask, std::ptr::null_mut()) };
    }
}
