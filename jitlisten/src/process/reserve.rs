//! Memory reserve for use when the process is out of memory.
//!
//! Rust aborts when an allocation fails, which a library in someone else's process must not do. Therefore the heap of
//! `libjitlisten.so` has a reserve for the work in progress; it costs nothing until used. New work starts only if
//! [`is_memory_left`].
//!
//! A Rust program that uses this crate keeps its own allocator, which aborts.

#![allow(unsafe_code)]

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

const RESERVE_BYTES: usize = 1 << 20;
/// Largest object that can be processed from the reserve.
const MAX_SMALL_OBJECT_BYTES: usize = RESERVE_BYTES / 32;
/// Memory needed to process an object, as a multiple of its size.
const MEMORY_PER_OBJECT_BYTE: usize = 8;

#[repr(align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE_BYTES]>);

// SAFETY: `take_from_reserve` hands out each byte to at most one owner.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve(UnsafeCell::new([0; RESERVE_BYTES]));
/// Number of bytes of the reserve that have been handed out. They are never returned.
static USED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns true if there is memory to process an object of `size` bytes.
pub(crate) fn is_memory_left(size: usize) -> bool {
    let used = USED_BYTES.load(Ordering::Relaxed);
    if used == 0 && size <= MAX_SMALL_OBJECT_BYTES {
        return true;
    }
    let needed = size.saturating_mul(MEMORY_PER_OBJECT_BYTE).saturating_add(RESERVE_BYTES);
    let is_allowed = used < RESERVE_BYTES / 2;
    let Some(pages) = is_allowed.then(|| map_pages(needed)).filter(|pages| !pages.is_null()) else { return false };
    // SAFETY: `pages` was mapped above and is not in use yet.
    unsafe { unmap_pages(pages, needed) }
}

/// Returns zeroed pages from the kernel, or null. Makes the system call directly, because profilers interpose
/// `mmap(2)`.
pub fn map_pages(size: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the call creates a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::syscall(libc::SYS_mmap, ptr::null::<c_void>(), size, protection, flags, -1, 0_i64) };
    if start == -1 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(start as usize) }
}

/// Unmaps pages; returns true on success.
///
/// # Safety
/// The pages must come from [`map_pages`] and must not be in use.
pub unsafe fn unmap_pages(pages: *mut u8, size: usize) -> bool {
    // SAFETY: the caller guarantees that the pages are not in use.
    unsafe { libc::syscall(libc::SYS_munmap, pages, size) == 0 }
}

/// Returns zeroed memory from the reserve, or null.
pub fn take_from_reserve(layout: Layout) -> *mut u8 {
    let start = RESERVE.0.get().cast::<u8>();
    let align_up = |used: usize| (start as usize + used).next_multiple_of(layout.align()) - start as usize;
    let previous_used = USED_BYTES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
        align_up(used).checked_add(layout.size()).filter(|&end| end <= RESERVE_BYTES)
    });
    previous_used.map_or(ptr::null_mut(), |used| start.wrapping_add(align_up(used)))
}

/// Returns true if `memory` was returned by [`take_from_reserve`].
pub fn is_from_reserve(memory: *mut u8) -> bool {
    (memory as usize).wrapping_sub(RESERVE.0.get() as usize) < RESERVE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_aligned_given_once_and_ends() {
        let layout = Layout::from_size_align(100, 64).unwrap();
        let (first, second) = (take_from_reserve(layout), take_from_reserve(layout));
        assert!(first as usize & 63 == 0 && second as usize & 63 == 0 && second as usize - first as usize >= 100);
        assert!(is_from_reserve(first) && is_from_reserve(second) && !is_from_reserve(ptr::null_mut()));
        assert!(take_from_reserve(Layout::from_size_align(RESERVE_BYTES, 1).unwrap()).is_null());
        assert!(is_memory_left(1), "there is memory elsewhere");
        assert!(!is_memory_left(usize::MAX / 4));
    }
}
