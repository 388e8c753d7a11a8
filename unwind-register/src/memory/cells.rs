//! Zeroed atomic words that are never freed.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::atomic::AtomicU64;

/// Allocates `count` zeroed cells. For a table (128 KiB) the allocator uses fresh zero pages, so untouched cells cost
/// no memory.
pub(crate) fn zeroed_cells(count: usize) -> &'static [AtomicU64] {
    #[expect(clippy::expect_used, reason = "the callers ask for constant sizes")]
    let layout = Layout::array::<AtomicU64>(count).expect("tables are small");
    // SAFETY: the layout is not empty, because every caller requests thousands of cells.
    let cells = unsafe { alloc_zeroed(layout) }.cast::<AtomicU64>();
    if cells.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: the allocation has `count` cells and is never freed; all-zero bytes are a valid `AtomicU64`.
    unsafe { std::slice::from_raw_parts(cells, count) }
}
