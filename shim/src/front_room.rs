//! Room in front of code: a few pages more than LLVM asks for, so that an image can begin with its ELF header.
//!
//! ```text
//!   LLVM asks      mmap(RW, private, anonymous, 8 KiB)
//!   the kernel     |  room  |         8 KiB         |
//!   LLVM gets               ^
//!   code becomes   |  ELF header, .eh_frame, .text  |     one mapping of the image's file, from its byte 0 on
//!   data becomes            |         8 KiB         |     the room is given back
//! ```
//!
//! When memory is allocated nobody says what it is for: LLVM makes code executable, or data read-only, later. So all of it
//! is padded, and what turns out to be data is unpadded then. Pages of the room that nobody writes to cost nothing.
//!
//! The session keeps the list of rooms, because its sinks use them, and its lock is held across `fork(2)`.

use std::ffi::{c_int, c_void};

use jitlisten::options::SinkKind;
use jitlisten::{Address, AddressRange, Session};

use crate::detour::page_size;
use crate::next::{self, Function};

/// Whether a call of `mmap(2)` is LLVM's way to ask for memory: `sys::Memory::allocateMappedMemory`.
fn is_allocation(protection: c_int, flags: c_int, file: c_int) -> bool {
    let wanted = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    protection == libc::PROT_READ | libc::PROT_WRITE && flags & !libc::MAP_NORESERVE == wanted && file == -1
}

/// The room for code of `size` bytes: one page, and an eighth for unwind tables where there is much code.
fn room_for(size: usize) -> usize {
    let page = page_size();
    match size.checked_sub(8 * page) {
        None => page,
        Some(more) => page + (more / 8).next_multiple_of(page),
    }
}

/// `mmap(2)` with room in front, or `None` to do what was asked for.
pub(crate) fn mmap(
    session: &Session,
    address: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
) -> Option<*mut c_void> {
    if !is_allocation(protection, flags, file) || !session.is_enabled(SinkKind::Image) {
        return None;
    }
    let room = room_for(size);
    let padded = size.checked_add(room)?;
    // SAFETY: without MAP_FIXED a new private mapping touches nothing that exists.
    let mapped = unsafe { libc::mmap(address, padded, protection, flags, file, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    if next::is_set(Function::Mmap) {
        // Another tool counts what the host asks for, no more and no less.
        let code = mapped.wrapping_byte_add(room);
        // SAFETY: replaces a part of the mapping just made, which nobody knows.
        let theirs = unsafe { next::mmap(code, size, protection, flags | libc::MAP_FIXED, file, 0) };
        if theirs != code {
            // SAFETY: our own mapping, of which nobody knows.
            unsafe { libc::munmap(mapped, padded) };
            return None;
        }
    }
    session.add_room(AddressRange::new(Address(mapped as u64), room as u64)?);
    Some(mapped.wrapping_byte_add(room))
}

/// Gives back the room in front of `code`, if there is one.
pub(crate) fn give_back(session: &Session, code: Address) {
    if let Some(room) = session.take_room(code) {
        // SAFETY: we have mapped this range and told nobody of it but the sinks, which use it no longer than the code
        // behind it is there.
        unsafe { libc::munmap(room.start().0 as *mut c_void, room.size() as usize) };
    }
}
