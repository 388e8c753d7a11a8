//! Signals wait for a while, except those caused by the current instruction, or by `abort`. This crate stands alone, so
//! it has the list of these once more: jitlisten's `process/host_state.rs` also lets cancellation wait and exempts the
//! sampler's signal.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

const IMMEDIATE: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// The thread's signals wait until this is dropped, by that thread.
pub(crate) struct Masked {
    before: libc::sigset_t,
    _of_this_thread: PhantomData<*mut ()>,
}

impl Masked {
    pub(crate) fn begin() -> Masked {
        let (mut waiting, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: writable memory for a set, which this call initialises.
        unsafe { libc::sigfillset(waiting.as_mut_ptr()) };
        for signal in IMMEDIATE {
            // SAFETY: the set was initialised above; the number is a valid signal.
            unsafe { libc::sigdelset(waiting.as_mut_ptr(), signal) };
        }
        // SAFETY: the first set is initialised, the second one is written by the call, which cannot fail for SIG_BLOCK.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, waiting.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: pthread_sigmask has initialised it.
        Masked { before: unsafe { before.assume_init() }, _of_this_thread: PhantomData }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the mask that was in force; the old one is not asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}
