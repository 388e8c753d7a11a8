//! CPU time of child processes: of those without a sample, and so without a recording, and of those that are not to be
//! recorded.
//!
//! ```text
//!   child without a sample --adds its time--> a word shared by all children of a recording
//!   next process that ends with samples   <--takes the time, and records it-- '
//! ```
//! Many children are shorter than the time between two samples, so the recordings of the others do not show how much
//! time all of them took.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const PAGE: usize = 4096;

/// The shared word; null in a process that does not record its children.
static UNSAMPLED_NS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

fn unsampled() -> Option<&'static AtomicU64> {
    // SAFETY: the pointer is null, or points to a mapping that is never removed.
    unsafe { UNSAMPLED_NS.load(Ordering::Acquire).as_ref() }
}

/// Maps the word, if that has not been done, before the process has children to record.
pub(super) fn begin() {
    if unsampled().is_some() {
        return;
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: the call creates a mapping at an address that the kernel chooses.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    if page != libc::MAP_FAILED {
        UNSAMPLED_NS.store(page.cast(), Ordering::Release);
    }
}

/// Adds the time of a process that ends without a sample.
pub(crate) fn add_unsampled(ns: u64) {
    if let Some(word) = unsampled() {
        word.fetch_add(ns, Ordering::Relaxed);
    }
}

/// Returns the time that no process has taken yet.
pub(crate) fn take_unsampled() -> u64 {
    unsampled().map_or(0, |word| word.swap(0, Ordering::Relaxed))
}

/// Returns the CPU time in ns of the children that this process has waited for.
pub(crate) fn waited_children_ns() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes a `rusage`. All zeros are one, too, if the call fails.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}
