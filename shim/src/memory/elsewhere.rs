//! The memory functions of libraries without LLVM, in a process with one: calls that do not concern code are passed on
//! without a lock (`code_pages`).

use std::ffi::{c_int, c_void};

use jitlisten::AddressRange;
use jitlisten::plumbing::code_pages;

use crate::hooks::{self, Change, guarded, pages};
use crate::memory::header_padding;
use crate::process::next;

pub(crate) unsafe extern "C" fn mprotect(address: *mut c_void, size: usize, protection: c_int) -> c_int {
    if protection & libc::PROT_EXEC == 0 && !code_pages::overlaps(pages(address, size)) {
        // SAFETY: the host's own call, passed on.
        return unsafe { next::mprotect(address, size, protection) };
    }
    // SAFETY: the host's own call, passed on.
    unsafe { hooks::protect(address, size, protection) }
}

pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, size: usize) -> c_int {
    let range = pages(address, size);
    let held_code = code_pages::overlaps(range);
    let change = held_code.then(|| Change::begin(range));
    if held_code {
        guarded(|shim| shim.replacing(range));
    }
    // SAFETY: the host's own call, passed on.
    let result = unsafe { next::munmap(address, size) };
    drop(change);
    if held_code && result == 0 {
        guarded(|shim| header_padding::give_back(shim.session, range.start()));
    }
    result
}

pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let replaces = hooks::is_fixed(flags) && code_pages::overlaps(pages(address, size));
    // SAFETY: the host's own call, passed on.
    unsafe { hooks::map(address, size, protection, flags, file, offset, replaces) }
}

/// `pkey_mprotect(2)`, of every library.
pub(crate) unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    let (range, executable) = (pages(address, size), protection & libc::PROT_EXEC != 0);
    let concerned = executable || code_pages::overlaps(range);
    let change = concerned.then(|| Change::begin(range));
    if concerned {
        hooks::protecting(range, protection);
    }
    // SAFETY: the host's own call, passed on.
    let result = unsafe { next::pkey_mprotect(address, size, protection, key) };
    drop(change);
    if concerned && result == 0 {
        hooks::protected(range, protection);
    }
    result
}

/// `mremap(2)`, of every library. Code that is moved is other code at its new place: its addresses in it may be wrong
/// now.
pub(crate) unsafe extern "C" fn mremap(
    address: *mut c_void,
    size: usize,
    new_size: usize,
    flags: c_int,
    place: *mut c_void,
) -> *mut c_void {
    let (before, target) = (pages(address, size), pages(place, new_size));
    let replaces = flags & libc::MREMAP_FIXED != 0 && code_pages::overlaps(target);
    let held_code = code_pages::overlaps(before);
    let changes = [(replaces, target), (held_code, before)].map(|(is, range)| is.then(|| Change::begin(range)));
    if replaces {
        guarded(|shim| shim.replacing(target));
    }
    // SAFETY: the host's own call, passed on.
    let moved = unsafe { next::mremap(address, size, new_size, flags, place) };
    if !held_code || moved == libc::MAP_FAILED {
        return moved;
    }
    let after = pages(moved, new_size);
    if moved != address {
        guarded(|shim| shim.replacing(before));
    } else if new_size < size {
        let gone = AddressRange::new(after.end(), before.end().0.saturating_sub(after.end().0));
        guarded(|shim| shim.replacing(gone.unwrap_or_default()));
        return moved;
    }
    drop(changes);
    guarded(|shim| shim.look_at(after));
    moved
}
