//! Time of child processes without a recording: they have no sample, or are not to be recorded.
//!
//! ```text
//!   child without a sample --adds its time--> a page shared by all children of a recording
//!   next process that ends with samples   <--takes the time, and records it-- '
//! ```
//! Many children are shorter than the time between two samples, so the recordings of the others do not show how much
//! time all of them took. By wall-clock time, the first samples of later children take the time (`wall_clock.rs`).

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicU64;

const PAGE: usize = 4096;

/// Times that a process shares with the children that it records. All zeros: none.
#[derive(Debug)]
pub(crate) struct Family {
    /// CPU time of children without a sample, in ns.
    pub(crate) unsampled_ns: AtomicU64,
    pub(crate) ended: EndedTime,
}

/// Wall-clock time of ended threads that belongs to no sample, in ns.
#[derive(Debug, Default)]
pub(crate) struct EndedTime {
    pub(crate) running: AtomicU64,
    pub(crate) waiting: AtomicU64,
}

/// Maps the times of a new family. They are never unmapped.
pub(super) fn map() -> Option<&'static Family> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: the call creates a mapping at an address that the kernel chooses.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, flags, -1, 0) };
    // SAFETY: the page is aligned, zeroed and never unmapped; all processes access the times atomically.
    (page != libc::MAP_FAILED).then(|| unsafe { &*page.cast::<Family>() })
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
