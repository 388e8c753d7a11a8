//! The library's own heap: it never calls the program's `malloc`.
//!
//! That `malloc` may belong to a profiler, which takes locks, walks stacks and asks the loader, and we allocate under
//! the loader's lock and LLVM's. So `libjitlisten.so` has pages of its own, from system calls, under a lock of its own,
//! the innermost one.
//!
//! | request | from | |
//! | --- | --- | --- |
//! | below 128 KiB | `dlmalloc`, on [`pages`] | under [`lock`]; more than 2 MiB of free pages at its end are unmapped |
//! | larger | `mmap`, `mremap`, `munmap` | no lock; zeroed pages cost nothing until they are used |
//! | refused by the kernel | [`take_from_reserve`] | for the work at hand |
//!
//! What Rust's standard library and the C library allocate for us all the same, from the program's `malloc`, is listed
//! in `docs/limits.md`; `tests/tests/own_heap.rs` counts it.

mod lock;
mod pages;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;

use dlmalloc::Dlmalloc;
use jitlisten::plumbing::{is_of_reserve, map_pages, take_from_reserve, unmap_pages};

pub(crate) use lock::follow_forks;
use pages::Pages;

/// From this size on, memory is mapped by itself.
const LARGE: usize = 128 << 10;
/// What the kernel aligns to on every machine.
const PAGE: usize = 4096;
/// How much `dlmalloc` asks the kernel for at a time.
const STEP: usize = 256 << 10;

/// The global allocator of `libjitlisten.so` and `.a`.
pub(crate) struct Heap(UnsafeCell<Dlmalloc<Pages>>);

// SAFETY: what is in the cell is used under the lock only, see `with_small`.
unsafe impl Sync for Heap {}

impl Heap {
    pub(crate) const fn new() -> Heap {
        let mut small = Dlmalloc::new_with_allocator(Pages);
        assert!(small.set_granularity(STEP), "a power of two");
        Heap(UnsafeCell::new(small))
    }

    fn with_small<R>(&self, work: impl FnOnce(&mut Dlmalloc<Pages>) -> R) -> R {
        let _held = lock::take();
        // SAFETY: the lock is held, and `work` allocates nothing elsewhere: there is one reference.
        work(unsafe { &mut *self.0.get() })
    }
}

fn is_large(size: usize, align: usize) -> bool {
    size >= LARGE && align <= PAGE
}

fn or_reserve(memory: *mut u8, layout: Layout) -> *mut u8 {
    if memory.is_null() { take_from_reserve(layout) } else { memory }
}

// SAFETY: memory is freed where it was allocated: that is known from its address (the reserve) and its layout (the
// rest).
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = if is_large(layout.size(), layout.align()) {
            map_pages(layout.size())
        } else {
            // SAFETY: a layout's alignment is a power of two.
            self.with_small(|small| unsafe { small.malloc(layout.size(), layout.align()) })
        };
        or_reserve(memory, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let memory = unsafe { self.alloc(layout) };
        // New pages are zero, and so is the reserve.
        if !memory.is_null() && !is_large(layout.size(), layout.align()) && !is_of_reserve(memory) {
            // SAFETY: it has this size, and is ours alone.
            unsafe { memory.write_bytes(0, layout.size()) };
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if is_of_reserve(memory) {
            return;
        }
        if is_large(layout.size(), layout.align()) {
            // SAFETY: mapped by `alloc` or `realloc`, and the caller gives it up.
            unsafe { unmap_pages(memory, layout.size()) };
        } else {
            // SAFETY: allocated there, with this layout.
            self.with_small(|small| unsafe { small.free(memory, layout.size(), layout.align()) });
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (was_large, is_large) = (is_large(layout.size(), layout.align()), is_large(size, layout.align()));
        if was_large == is_large && !is_of_reserve(memory) {
            let moved = if is_large {
                // SAFETY: mapped with this size.
                unsafe { pages::remap(memory, layout.size(), size, true) }
            } else {
                // SAFETY: allocated there, with this layout.
                self.with_small(|small| unsafe { small.realloc(memory, layout.size(), layout.align(), size) })
            };
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
