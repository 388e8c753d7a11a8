//! Zeroed atomic words that live as long as the process.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::atomic::AtomicU64;

/// `count` zeroed cells. The allocator takes a table (128 KiB) from fresh zero pages, so what is not touched costs
/// nothing.
pub(crate) fn zeroed_cells(count: usize) -> &'static [AtomicU64] {
    #[expect(clippy::expect_used, reason = "the callers ask for constant sizes")]
    let layout = Layout::array::<AtomicU64>(count).expect("tables are small");
    // SAFETY: the layout is not empty, as every caller asks for a table of thousands of cells.
    let cells = unsafe { alloc_zeroed(layout) }.cast::<AtomicU64>();
    if cells.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: the allocation has `count` cells, all-zero bytes are a valid `AtomicU64`, and it is never freed.
    unsafe { std::slice::from_raw_parts(cells, count) }
}
