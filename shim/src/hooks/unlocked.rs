//! Memory hooks for libraries without LLVM, used once LLVM is detected in the process. A call concerns code if it makes
//! memory executable, or if it affects a page with known code (`code_pages`). All other calls are forwarded without
//! taking a lock.

use std::ffi::{c_int, c_void};

use jitlisten::AddressRange;
use jitlisten::plumbing::code_pages;

use crate::hooks::{self, PendingMemoryChange, guarded, pages};
use crate::memory::header_padding;
use crate::process::forward;

/// Hook of `mprotect(2)` that takes no lock for calls that do not concern code.
pub(crate) unsafe extern "C" fn mprotect(address: *mut c_void, size: usize, protection: c_int) -> c_int {
    if protection & libc::PROT_EXEC == 0 && !code_pages::overlaps(pages(address, size)) {
        // SAFETY: this forwards the host's own call.
        return unsafe { forward::mprotect(address, size, protection) };
    }
    // SAFETY: this forwards the host's own call.
    unsafe { hooks::protect(address, size, protection) }
}

/// Hook of `munmap(2)` that takes no lock for calls that do not concern code.
pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, size: usize) -> c_int {
    let range = pages(address, size);
    let held_code = code_pages::overlaps(range);
    let change = held_code.then(|| PendingMemoryChange::begin(range));
    if held_code {
        guarded(|shim| shim.record_replacement(range));
    }
    // SAFETY: this forwards the host's own call.
    let result = unsafe { forward::munmap(address, size) };
    drop(change);
    if held_code && result == 0 {
        guarded(|shim| header_padding::release(shim.objects, range.start()));
    }
    result
}

/// Hook of `mmap(2)` that takes no lock for calls that do not concern code.
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let replaces = hooks::replaces_mappings(flags) && code_pages::overlaps(pages(address, size));
    // SAFETY: this forwards the host's own call.
    unsafe { hooks::map(address, size, protection, flags, file, offset, replaces) }
}

/// Hook of `pkey_mprotect(2)`, used in all libraries.
pub(crate) unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    let (range, executable) = (pages(address, size), protection & libc::PROT_EXEC != 0);
    let concerns_code = executable || code_pages::overlaps(range);
    let change = concerns_code.then(|| PendingMemoryChange::begin(range));
    if concerns_code {
        hooks::before_protect(range, protection);
    }
    // SAFETY: this forwards the host's own call.
    let result = unsafe { forward::pkey_mprotect(address, size, protection, key) };
    drop(change);
    if concerns_code && result == 0 {
        hooks::after_protect(range, protection);
    }
    result
}

/// Hook of `mremap(2)`, used in all libraries. Moved code counts as new code at its new address, because addresses
/// inside the code may be wrong now.
pub(crate) unsafe extern "C" fn mremap(
    address: *mut c_void,
    size: usize,
    new_size: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let (old_range, target_range) = (pages(address, size), pages(new_address, new_size));
    let replaces = flags & libc::MREMAP_FIXED != 0 && code_pages::overlaps(target_range);
    let held_code = code_pages::overlaps(old_range);
    let changes = [(replaces, target_range), (held_code, old_range)]
        .map(|(is_affected, range)| is_affected.then(|| PendingMemoryChange::begin(range)));
    if replaces {
        guarded(|shim| shim.record_replacement(target_range));
    }
    // SAFETY: this forwards the host's own call.
    let new_base = unsafe { forward::mremap(address, size, new_size, flags, new_address) };
    if !held_code || new_base == libc::MAP_FAILED {
        return new_base;
    }
    let new_range = pages(new_base, new_size);
    if new_base != address {
        guarded(|shim| shim.record_replacement(old_range));
    } else if new_size < size {
        let removed = AddressRange::new(new_range.end(), old_range.end().0.saturating_sub(new_range.end().0));
        guarded(|shim| shim.record_replacement(removed.unwrap_or_default()));
        return new_base;
    }
    drop(changes);
    guarded(|shim| shim.examine_moved(new_range));
    new_base
}
