//! Header padding: extra pages mapped before code, so that an image can begin with its ELF header.
//!
//! ```text
//!   LLVM calls     mmap(RW, private, anonymous, 8 KiB)
//!   we map         | padding|         8 KiB         |
//!   LLVM gets               ^
//!   code becomes   |  ELF header, .eh_frame, .text  |     one mapping of the image's file, starting at byte 0
//!   data becomes            |         8 KiB         |     the padding is unmapped
//! ```
//!
//! LLVM allocates first, and makes code executable or data read-only later. Therefore every allocation is padded, and
//! the padding of data is unmapped later. Padding pages cost nothing until they are written.
//!
//! The session owns the list of padded ranges, because its sinks use the padding and its lock is held across `fork(2)`.

use std::ffi::{c_int, c_void};

use jitlisten::options::SinkKind;
use jitlisten::plumbing::LiveObjects;
use jitlisten::{Address, AddressRange};

use crate::process::detour::page_size;
use crate::process::forward::{self, Function};

/// Returns true if an `mmap(2)` call has the arguments that LLVM's allocator passes
/// (`sys::Memory::allocateMappedMemory`).
pub(crate) fn is_allocation(protection: c_int, flags: c_int, file: c_int) -> bool {
    let llvm_flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    protection == libc::PROT_READ | libc::PROT_WRITE && flags & !libc::MAP_NORESERVE == llvm_flags && file == -1
}

/// Returns the padding for `size` bytes of code: one page, plus one eighth of `size` for unwind tables if the code is
/// large.
fn padding_for(size: usize) -> usize {
    let page = page_size();
    match size.checked_sub(8 * page) {
        None => page,
        Some(excess) => page + (excess / 8).next_multiple_of(page),
    }
}

/// Maps an [allocation](is_allocation) with padding before it. Returns `None` if the host's call should be forwarded
/// unchanged.
pub(crate) fn mmap(objects: &LiveObjects, address: *mut c_void, size: usize, flags: c_int) -> Option<*mut c_void> {
    if !objects.is_enabled(SinkKind::Image) {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let padding = padding_for(size);
    let padded_size = size.checked_add(padding)?;
    // SAFETY: without `MAP_FIXED`, a new mapping replaces nothing.
    let mapped = unsafe { libc::mmap(address, padded_size, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    if forward::is_overridden(Function::Mmap) {
        // If another tool counts the memory that the host requests, it must see exactly that range, so map the range
        // again through the tool's function.
        let code = mapped.wrapping_byte_add(padding);
        // SAFETY: the call replaces part of the mapping that was just created, which nothing else refers to.
        let remapped = unsafe { forward::mmap(code, size, protection, flags | libc::MAP_FIXED, -1, 0) };
        if remapped != code {
            // SAFETY: the mapping is our own, and nothing else refers to it.
            unsafe { libc::munmap(mapped, padded_size) };
            return None;
        }
    }
    objects.reserve_header_padding(AddressRange::new(Address(mapped as u64), padding as u64)?);
    Some(mapped.wrapping_byte_add(padding))
}

/// Unmaps the padding before `code`, if there is any.
pub(crate) fn release(objects: &LiveObjects, code: Address) {
    if let Some(padding) = objects.take_header_padding(code) {
        // SAFETY: we mapped this range, and only the sinks know about it. They stop using it before the code after it
        // is freed.
        unsafe { libc::munmap(padding.start().0 as *mut c_void, padding.size() as usize) };
    }
}
