//! Handle of the writer thread for other threads. The thread is joined with the `pthread_join` of the library whose
//! `pthread_create` started it, because a sanitizer's `pthread_join` would be called first and does not know the
//! thread.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::transparency::next;

/// The writer thread of a recording. All zeros: none.
#[derive(Debug, Default)]
pub(crate) struct WriterHandle {
    tid: AtomicU32,
    /// `pthread_t` until the thread is joined; 0 if none.
    thread: AtomicU64,
}

impl WriterHandle {
    /// Thread id of the writer; 0 if it has not started.
    pub(crate) fn tid(&self) -> u32 {
        self.tid.load(Ordering::Acquire)
    }

    pub(super) fn set_tid(&self, tid: u32) {
        self.tid.store(tid, Ordering::Release);
    }

    pub(super) fn set_thread(&self, thread: libc::pthread_t) {
        const { assert!(size_of::<libc::pthread_t>() == 8) };
        self.thread.store(thread, Ordering::Release);
    }

    /// Forgets the writer in a fork child, which has none.
    pub(crate) fn forget(&self) {
        self.thread.store(0, Ordering::Release);
    }

    /// Takes the thread's handle; only one caller gets it.
    fn take(&self) -> Option<libc::pthread_t> {
        Some(self.thread.swap(0, Ordering::AcqRel)).filter(|&thread| thread != 0)
    }

    /// Waits until the writer thread has exited. Returns its result.
    pub(crate) fn join(&self) -> *mut c_void {
        let mut result = ptr::null_mut();
        if let Some(thread) = self.take() {
            // SAFETY: no other thread joins this thread, and `result` is writable.
            unsafe { next::pthread_join(thread, &raw mut result) };
        }
        result
    }

    /// Like [`WriterHandle::join`], with a timeout in ns, for a writer that has finished its work.
    pub(crate) fn join_with_timeout(&self, timeout_ns: u64) {
        let Some(thread) = self.take() else { return };
        let deadline = jitlisten::plumbing::clock_ns(libc::CLOCK_REALTIME) + timeout_ns;
        let deadline = libc::timespec {
            tv_sec: (deadline / 1_000_000_000) as libc::time_t,
            tv_nsec: (deadline % 1_000_000_000) as _,
        };
        // SAFETY: no other thread joins this thread, and its result is not requested.
        let result = unsafe { next::pthread_timedjoin_np(thread, ptr::null_mut(), &raw const deadline) };
        if result != 0 {
            self.set_thread(thread);
        }
    }
}
