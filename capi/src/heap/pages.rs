//! Source of pages for `dlmalloc`: anonymous mappings.

use std::ptr;

use jitlisten::plumbing::{map_pages, unmap_pages};

/// Allocator of anonymous mappings.
pub(crate) struct Pages;

/// Resizes a mapping and keeps its contents. Returns null on failure, and leaves the old mapping unchanged.
///
/// # Safety
/// `memory` must be a mapping of the old size.
pub(crate) unsafe fn remap(memory: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
    let flags = if can_move { libc::MREMAP_MAYMOVE } else { 0 };
    // SAFETY: the caller owns this mapping.
    let start = unsafe { libc::syscall(libc::SYS_mremap, memory, old, new, flags) };
    if start == -1 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(start as usize) }
}

// SAFETY: `alloc` returns memory that is mapped, zeroed and unused, and remains mapped until `free` or `free_part`.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        (map_pages(size), size, 0)
    }

    fn remap(&self, memory: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        // SAFETY: `dlmalloc` passes memory that `alloc` has returned.
        unsafe { remap(memory, old, new, can_move) }
    }

    fn free_part(&self, memory: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: `dlmalloc` uses nothing beyond the new size.
        unsafe { unmap_pages(memory.wrapping_add(new), old - new) }
    }

    fn free(&self, memory: *mut u8, size: usize) -> bool {
        // SAFETY: `dlmalloc` no longer uses this memory.
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
