//! A memory reserve for when the process is out of memory.
//!
//! Rust aborts when an allocation fails, which a library in a foreign process must not do. Therefore the heap of
//! `libjitlisten.so` has a reserve for the work in progress; it costs nothing until used. New work starts only if
//! [`is_memory_left`].
//!
//! A Rust program that uses this crate has its own allocator, which aborts.

use std::alloc::Layout;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZE: usize = 1 << 20;
/// Objects up to this size are done with from the reserve.
const SMALL: usize = SIZE / 32;
/// How much memory the work on an object takes, as a multiple of its size.
const MULTIPLE: usize = 8;

#[repr(align(4096))]
struct Bytes(UnsafeCell<[u8; SIZE]>);

// SAFETY: every byte is given to one owner at most, see `take_from_reserve`.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; SIZE]));
/// How much was given away. It is never taken back.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Whether an object of `size` bytes can be worked on.
pub(crate) fn is_memory_left(size: usize) -> bool {
    let used = USED.load(Ordering::Relaxed);
    if used == 0 && size <= SMALL {
        return true;
    }
    let wanted = size.saturating_mul(MULTIPLE).saturating_add(SIZE);
    let is_allowed = used < SIZE / 2;
    let Some(pages) = is_allowed.then(|| map_pages(wanted)).filter(|pages| !pages.is_null()) else { return false };
    // SAFETY: mapped just now, and nothing is in it.
    unsafe { unmap_pages(pages, wanted) }
}

/// Zeroed pages of the kernel's, or null. The system call is made directly: profilers put themselves in the place of
/// `mmap(2)`.
pub fn map_pages(size: usize) -> *mut u8 {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let start = unsafe { libc::syscall(libc::SYS_mmap, ptr::null::<c_void>(), size, protection, flags, -1, 0_i64) };
    if start == -1 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(start as usize) }
}

/// Whether the kernel has taken them back.
///
/// # Safety
/// They come from [`map_pages`], and nothing is in use in them.
pub unsafe fn unmap_pages(pages: *mut u8, size: usize) -> bool {
    // SAFETY: the caller gives them up.
    unsafe { libc::syscall(libc::SYS_munmap, pages, size) == 0 }
}

/// Zeroed memory from the reserve, or null.
pub fn take_from_reserve(layout: Layout) -> *mut u8 {
    let start = BYTES.0.get().cast::<u8>();
    let aligned = |used: usize| (start as usize + used).next_multiple_of(layout.align()) - start as usize;
    let taken = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
        aligned(used).checked_add(layout.size()).filter(|&end| end <= SIZE)
    });
    taken.map_or(ptr::null_mut(), |used| start.wrapping_add(aligned(used)))
}

/// Whether it comes from [`take_from_reserve`].
pub fn is_of_reserve(memory: *mut u8) -> bool {
    (memory as usize).wrapping_sub(BYTES.0.get() as usize) < SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_aligned_given_once_and_ends() {
        let layout = Layout::from_size_align(100, 64).unwrap();
        let (one, other) = (take_from_reserve(layout), take_from_reserve(layout));
        assert!(one as usize & 63 == 0 && other as usize & 63 == 0 && other as usize - one as usize >= 100);
        assert!(is_of_reserve(one) && is_of_reserve(other) && !is_of_reserve(ptr::null_mut()));
        assert!(take_from_reserve(Layout::from_size_align(SIZE, 1).unwrap()).is_null());
        assert!(is_memory_left(1), "there is memory elsewhere");
        assert!(!is_memory_left(usize::MAX / 4));
    }
}
