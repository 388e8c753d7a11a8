//! Header padding: a few extra pages in front of code, so that an image can begin with its ELF header.
//!
//! ```text
//!   LLVM asks      mmap(RW, private, anonymous, 8 KiB)
//!   the kernel     | padding|         8 KiB         |
//!   LLVM gets               ^
//!   code becomes   |  ELF header, .eh_frame, .text  |     one mapping of the image's file, from its byte 0 on
//!   data becomes            |         8 KiB         |     the padding is unmapped
//! ```
//!
//! LLVM allocates first, and later makes code executable or data read-only. Therefore every allocation is padded, and
//! the padding of data is unmapped later. Unwritten pages of padding cost nothing.
//!
//! The session keeps the list of padding: its sinks use it, and its lock is held across `fork(2)`.

use std::ffi::{c_int, c_void};

use jitlisten::options::SinkKind;
use jitlisten::{Address, AddressRange, Session};

use crate::process::detour::page_size;
use crate::process::next::{self, Function};

/// Whether a call of `mmap(2)` is LLVM's way to ask for memory: `sys::Memory::allocateMappedMemory`.
pub(crate) fn is_allocation(protection: c_int, flags: c_int, file: c_int) -> bool {
    let wanted = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    protection == libc::PROT_READ | libc::PROT_WRITE && flags & !libc::MAP_NORESERVE == wanted && file == -1
}

/// The padding for code of `size` bytes: one page, and an eighth for unwind tables where there is much code.
fn padding_for(size: usize) -> usize {
    let page = page_size();
    match size.checked_sub(8 * page) {
        None => page,
        Some(more) => page + (more / 8).next_multiple_of(page),
    }
}

/// An [allocation](is_allocation) with padding in front, or `None` to do what was asked for.
pub(crate) fn mmap(session: &Session, address: *mut c_void, size: usize, flags: c_int) -> Option<*mut c_void> {
    if !session.is_enabled(SinkKind::Image) {
        return None;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let padding = padding_for(size);
    let padded = size.checked_add(padding)?;
    // SAFETY: without MAP_FIXED a new private mapping touches nothing that exists.
    let mapped = unsafe { libc::mmap(address, padded, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    if next::is_set(Function::Mmap) {
        // Another tool counts what the host asks for, no more and no less.
        let code = mapped.wrapping_byte_add(padding);
        // SAFETY: replaces a part of the mapping just made, which is known nowhere else.
        let theirs = unsafe { next::mmap(code, size, protection, flags | libc::MAP_FIXED, -1, 0) };
        if theirs != code {
            // SAFETY: our own mapping, which is known nowhere else.
            unsafe { libc::munmap(mapped, padded) };
            return None;
        }
    }
    session.reserve_header_padding(AddressRange::new(Address(mapped as u64), padding as u64)?);
    Some(mapped.wrapping_byte_add(padding))
}

/// Gives back the padding in front of `code`, if there is any.
pub(crate) fn give_back(session: &Session, code: Address) {
    if let Some(padding) = session.take_header_padding(code) {
        // SAFETY: we have mapped this range and it is known only to the sinks, which use it no longer than the code
        // behind it is there.
        unsafe { libc::munmap(padding.start().0 as *mut c_void, padding.size() as usize) };
    }
}
