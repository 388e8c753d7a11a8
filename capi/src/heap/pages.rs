//! The source of `dlmalloc`'s pages.

use std::ptr;

use jitlisten::plumbing::{map_pages, unmap_pages};

/// Anonymous mappings.
pub(crate) struct Pages;

/// Memory of the new size with the same contents, or null, and then the old memory is as it was.
///
/// # Safety
/// It was mapped with the old size.
pub(crate) unsafe fn remap(memory: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
    let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
    // SAFETY: the caller owns this mapping.
    let start = unsafe { libc::syscall(libc::SYS_mremap, memory, old, new, flags) };
    if start == -1 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(start as usize) }
}

// SAFETY: what `alloc` returns is mapped, zeroed, in no other use, and stays until `free` or `free_part`.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        (map_pages(size), size, 0)
    }

    fn remap(&self, memory: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        // SAFETY: `dlmalloc` names what `alloc` has returned.
        unsafe { remap(memory, old, new, can_move) }
    }

    fn free_part(&self, memory: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: `dlmalloc` uses nothing beyond the new size.
        unsafe { unmap_pages(memory.wrapping_add(new), old - new) }
    }

    fn free(&self, memory: *mut u8, size: usize) -> bool {
        // SAFETY: `dlmalloc` uses nothing in it.
        unsafe { unmap_pages(memory, size) }
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        // SAFETY: getauxval has no precondition.
        unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
    }
}
