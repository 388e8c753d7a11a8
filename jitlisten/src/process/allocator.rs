//! Memory when the host has none left.
//!
//! Rust ends the process when an allocation fails. A library in a foreign process may not, so `libjitlisten.so` allocates through [`HostAllocator`]:
//! what `malloc` refuses comes from a reserve, which is there from the start and costs nothing until then. It is meant for
//! the work that is being done at that moment. New work is begun only where [`is_there`] says that there is memory for it.
//!
//! A Rust program that uses this crate has an allocator of its own, and is ended by it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

const RESERVE: usize = 1 << 20;
/// Objects up to this size are done with from the reserve.
const SMALL: usize = RESERVE / 32;
/// How much memory the work on an object takes, as a multiple of its size.
const MULTIPLE: usize = 8;

#[repr(align(4096))]
struct Reserve(UnsafeCell<[u8; RESERVE]>);

// SAFETY: every byte is given to one owner at most, see `take`.
unsafe impl Sync for Reserve {}

static BYTES: Reserve = Reserve(UnsafeCell::new([0; RESERVE]));
/// How much was given away. It is never taken back.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The global allocator of `libjitlisten.so`: the host's `malloc`, and a reserve.
#[derive(Debug)]
pub struct HostAllocator;

/// Whether an object of `size` bytes can be worked on.
pub(crate) fn is_there(size: usize) -> bool {
    let used = USED.load(Ordering::Relaxed);
    if used == 0 && size <= SMALL {
        return true;
    }
    let wanted = size.saturating_mul(MULTIPLE).saturating_add(RESERVE);
    let Some(layout) = Layout::array::<u8>(wanted).ok().filter(|_| used < RESERVE / 2) else { return false };
    // SAFETY: the size is not zero.
    let tried = unsafe { System.alloc(layout) };
    if !tried.is_null() {
        // SAFETY: allocated with this layout just now.
        unsafe { System.dealloc(tried, layout) };
    }
    !tried.is_null()
}

fn take(layout: Layout) -> *mut u8 {
    let start = BYTES.0.get().cast::<u8>();
    let aligned = |used: usize| (start as usize + used).next_multiple_of(layout.align()) - start as usize;
    let taken = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
        aligned(used).checked_add(layout.size()).filter(|&end| end <= RESERVE)
    });
    taken.map_or(ptr::null_mut(), |used| start.wrapping_add(aligned(used)))
}

fn is_reserve(memory: *mut u8) -> bool {
    (memory as usize).wrapping_sub(BYTES.0.get() as usize) < RESERVE
}

// SAFETY: what `System` gives is given back to it, with the same layout; parts of the reserve are as large and as aligned as
// was asked for, and are given only once.
unsafe impl GlobalAlloc for HostAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let memory = unsafe { System.alloc(layout) };
        if memory.is_null() { take(layout) } else { memory }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let memory = unsafe { System.alloc_zeroed(layout) };
        // The reserve is zero where it has not been used.
        if memory.is_null() { take(layout) } else { memory }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !is_reserve(memory) {
            // SAFETY: `System` has given it, with this layout.
            unsafe { System.dealloc(memory, layout) };
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_reserve(memory) {
            // SAFETY: as above.
            let moved = unsafe { System.realloc(memory, layout, size) };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller vouches that `size` fits this alignment.
        let moved = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both are at least that large, and one is new.
            unsafe { ptr::copy_nonoverlapping(memory, moved, layout.size().min(size)) };
            // SAFETY: the caller gives it up.
            unsafe { self.dealloc(memory, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_aligned_given_once_and_ends() {
        let layout = Layout::from_size_align(100, 64).unwrap();
        let (one, other) = (take(layout), take(layout));
        assert!(one as usize & 63 == 0 && other as usize & 63 == 0 && other as usize - one as usize >= 100);
        assert!(is_reserve(one) && is_reserve(other) && !is_reserve(ptr::null_mut()));
        assert!(take(Layout::from_size_align(RESERVE, 1).unwrap()).is_null());
        assert!(is_there(1), "there is memory elsewhere");
        assert!(!is_there(usize::MAX / 4));
    }
}
