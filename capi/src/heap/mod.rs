//! The library's own heap, which never calls the program's `malloc`.
//!
//! The program's `malloc` may belong to a profiler that takes locks, walks stacks and calls the loader. We allocate
//! while holding loader and LLVM locks, so calling that `malloc` could deadlock. `libjitlisten.so` therefore gets its
//! pages directly from the kernel, and protects its heap with its own innermost lock.
//!
//! | request | source | |
//! | --- | --- | --- |
//! | below 128 KiB | `dlmalloc`, on [`pages`] | under [`lock`]; more than 2 MiB of free pages at its end are unmapped |
//! | larger | `mmap`, `mremap`, `munmap` | no lock; zeroed pages cost nothing until used |
//! | refused by the kernel | [`take_from_reserve`] | enough for the current operation |
//!
//! Rust's standard library and the C library still allocate some memory for us from the program's `malloc`.
//! `docs/limits.md` lists these allocations; `tests/tests/together/own_heap.rs` counts them.

mod lock;
mod pages;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;

use dlmalloc::Dlmalloc;
use jitlisten::plumbing::{is_from_reserve, map_pages, take_from_reserve, unmap_pages};

pub(crate) use lock::follow_forks;
use pages::Pages;

/// Minimum size of an allocation that gets its own mapping.
const MIN_MAPPED_BYTES: usize = 128 << 10;
/// Minimum alignment of mappings, on every architecture.
const PAGE_ALIGNMENT: usize = 4096;
/// Number of bytes that `dlmalloc` requests from the kernel at a time.
const GRANULARITY_BYTES: usize = 256 << 10;

/// The global allocator of `libjitlisten.so` and `.a`.
pub(crate) struct Heap(UnsafeCell<Dlmalloc<Pages>>);

// SAFETY: the cell's contents are used only under the lock, see `with_small_heap`.
unsafe impl Sync for Heap {}

impl Heap {
    pub(crate) const fn new() -> Heap {
        let mut small_heap = Dlmalloc::new_with_allocator(Pages);
        assert!(small_heap.set_granularity(GRANULARITY_BYTES), "a power of two");
        Heap(UnsafeCell::new(small_heap))
    }

    /// Runs `work` with the heap for small allocations, under the lock.
    fn with_small_heap<R>(&self, work: impl FnOnce(&mut Dlmalloc<Pages>) -> R) -> R {
        let _held = lock::acquire();
        // SAFETY: the lock is held, and `work` does not reenter the heap, so this is the only reference.
        work(unsafe { &mut *self.0.get() })
    }
}

/// Returns true if an allocation gets its own mapping.
fn is_large(size: usize, align: usize) -> bool {
    size >= MIN_MAPPED_BYTES && align <= PAGE_ALIGNMENT
}

/// Falls back to the reserve if the kernel has refused memory.
fn or_take_from_reserve(memory: *mut u8, layout: Layout) -> *mut u8 {
    if memory.is_null() { take_from_reserve(layout) } else { memory }
}

// SAFETY: memory is freed where it was allocated. Its address identifies the reserve; its layout tells small
// allocations from mappings.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = if is_large(layout.size(), layout.align()) {
            map_pages(layout.size())
        } else {
            // SAFETY: the alignment of a layout is a power of two.
            self.with_small_heap(|small_heap| unsafe { small_heap.malloc(layout.size(), layout.align()) })
        };
        or_take_from_reserve(memory, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: forwards the caller's layout.
        let memory = unsafe { self.alloc(layout) };
        // New pages and the reserve are already zeroed.
        if !memory.is_null() && !is_large(layout.size(), layout.align()) && !is_from_reserve(memory) {
            // SAFETY: the memory has this size, and no other code uses it.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if is_from_reserve(memory) {
            return;
        }
        if is_large(layout.size(), layout.align()) {
            // SAFETY: `alloc` or `realloc` mapped this memory with this size, and the caller no longer uses it.
            unsafe { unmap_pages(memory, layout.size()) };
        } else {
            // SAFETY: the memory was allocated from the small heap, with this layout.
            self.with_small_heap(|small_heap| unsafe { small_heap.free(memory, layout.size(), layout.align()) });
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (was_large, is_large) = (is_large(layout.size(), layout.align()), is_large(size, layout.align()));
        if was_large == is_large && !is_from_reserve(memory) {
            let moved = if is_large {
                // SAFETY: the block was mapped with this size.
                unsafe { pages::remap(memory, layout.size(), size, true) }
            } else {
                // SAFETY: the memory was allocated from the small heap, with this layout.
                self.with_small_heap(|small_heap| unsafe {
                    small_heap.realloc(memory, layout.size(), layout.align(), size)
                })
            };
            if !moved.is_null() {
                return moved;
            }
        }
        // SAFETY: the caller vouches that `size` is valid for this alignment.
        let moved = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both blocks have at least this size, and one is new.
            unsafe { ptr::copy_nonoverlapping(memory, moved, layout.size().min(size)) };
            // SAFETY: the caller no longer uses the old block.
            unsafe { self.dealloc(memory, layout) };
        }
        moved
    }
}
