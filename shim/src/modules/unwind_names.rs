//! Hooks that give nongnu libunwind the names of compiled frames.
//!
//! If code is registered with `_U_dyn_register` in one of the table formats, its frames are unnamed by design:
//! `unw_get_proc_name` returns `-UNW_ENOINFO` and an empty string. We keep that kind of registration, because unwinding
//! through it is cheap, and fill in the name ourselves.
//!
//! A process may have several copies of libunwind (memray's wheel bundles one). In each copy, the function's value in
//! the dynamic symbol table is patched, as in llvmlite, so that callers bound later call our hook.

use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::log_line;

use super::originals::with_symbol;
use crate::hook_table::{SLOTS, for_each_slot};
use crate::process::library::Library;

#[cfg(target_arch = "x86_64")]
const NAMES: [(&str, &str); 2] =
    [("_ULx86_64_get_proc_name", "_ULx86_64_get_reg"), ("_Ux86_64_get_proc_name", "_Ux86_64_get_reg")];
#[cfg(target_arch = "aarch64")]
const NAMES: [(&str, &str); 2] =
    [("_ULaarch64_get_proc_name", "_ULaarch64_get_reg"), ("_Uaarch64_get_proc_name", "_Uaarch64_get_reg")];

/// `UNW_REG_IP` of `<libunwind.h>`, the number of the instruction pointer register.
#[cfg(target_arch = "x86_64")]
const UNW_REG_IP: c_int = 16;
#[cfg(target_arch = "aarch64")]
const UNW_REG_IP: c_int = 32;

/// Error codes `UNW_ENOINFO` and `UNW_ENOMEM` of `<libunwind-common.h>`.
const UNW_ENOINFO: c_int = 10;
const UNW_ENOMEM: c_int = 2;

type GetProcName = unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, usize, *mut u64) -> c_int;
type GetReg = unsafe extern "C-unwind" fn(*mut c_void, c_int, *mut u64) -> c_int;

/// Original functions of one hooked copy of libunwind. The entry is free if `get_proc_name` is 0. Each entry has its
/// own hook.
struct LibunwindCopy {
    bias: AtomicUsize,
    get_proc_name: AtomicUsize,
    get_reg: AtomicUsize,
}

static COPIES: [LibunwindCopy; SLOTS] = [const {
    LibunwindCopy { bias: AtomicUsize::new(0), get_proc_name: AtomicUsize::new(0), get_reg: AtomicUsize::new(0) }
}; SLOTS];

const HOOKS: [GetProcName; SLOTS] = for_each_slot!(SLOT => get_proc_name::<SLOT>);

/// Returns true if the library is a copy of nongnu libunwind.
pub(super) fn is_libunwind(library: &Library<'_>) -> bool {
    library.exports("_U_dyn_register")
}

/// Hooks `library` if it is a copy of nongnu libunwind.
pub(crate) fn hook_library(library: &Library<'_>) {
    let is_known = |copy: &LibunwindCopy| copy.bias.load(Ordering::Acquire) == library.identity.bias;
    if !is_libunwind(library) || COPIES.iter().any(is_known) {
        return;
    }
    for (name, get_reg) in NAMES {
        let (Some(original), Some(get_reg)) = (library.dynamic_address(name), library.dynamic_address(get_reg)) else {
            continue;
        };
        let is_free = |copy: &LibunwindCopy| copy.get_proc_name.load(Ordering::Acquire) == 0;
        let Some(index) = COPIES.iter().position(is_free) else { return };
        COPIES[index].get_reg.store(get_reg, Ordering::Release);
        COPIES[index].bias.store(library.identity.bias, Ordering::Release);
        COPIES[index].get_proc_name.store(original, Ordering::Release);
        // SAFETY: the hook has this function's type and calls the original function.
        if let Some(Err(error)) = unsafe { library.redefine(name, HOOKS[index] as usize) } {
            log_line!(Info, "could not hook {name}: {error}; libunwind has no names of compiled code");
        }
    }
}

/// Frees the entry of a closed copy. No call of that copy's functions may be in progress.
pub(super) fn release_copy(bias: usize) {
    for copy in COPIES.iter().filter(|copy| copy.bias.load(Ordering::Acquire) == bias) {
        copy.bias.store(0, Ordering::Release);
        copy.get_proc_name.store(0, Ordering::Release);
    }
}

/// Returns the hook that replaces the function at `address`, for slots that are already bound to it.
pub(super) fn find_hook(address: usize) -> Option<usize> {
    let index = COPIES.iter().position(|copy| address != 0 && copy.get_proc_name.load(Ordering::Acquire) == address)?;
    Some(HOOKS[index] as usize)
}

/// Names of the hooked functions, as importing libraries refer to them.
pub(super) fn hooked_names() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().map(|name| name.0)
}

/// Hook of `unw_get_proc_name(3)` in one copy of libunwind.
unsafe extern "C-unwind" fn get_proc_name<const COPY: usize>(
    cursor: *mut c_void,
    buffer: *mut c_char,
    size: usize,
    offset: *mut u64,
) -> c_int {
    let original = COPIES[COPY].get_proc_name.load(Ordering::Acquire);
    if original == 0 {
        return -UNW_ENOINFO;
    }
    // SAFETY: the function with this name has this type, and this forwards the caller's own call.
    let result = unsafe { mem::transmute::<usize, GetProcName>(original)(cursor, buffer, size, offset) };
    // libunwind 1.6 misreads the table format here, and returns `-UNW_EINVAL` or an arbitrary result.
    if result == 0 || result == -UNW_ENOMEM || buffer.is_null() || size == 0 {
        return result;
    }
    let (get_reg, mut address) = (COPIES[COPY].get_reg.load(Ordering::Acquire), 0);
    // SAFETY: the function with this name has this type. It gets the caller's cursor and a pointer to a word for the
    // register.
    if unsafe { mem::transmute::<usize, GetReg>(get_reg)(cursor, UNW_REG_IP, &raw mut address) } != 0 {
        return result;
    }
    let result_with_name = with_symbol(address, |name, _, offset_in_function| {
        let name = name?.to_bytes_with_nul();
        let copied_bytes = name.len().min(size);
        // SAFETY: the caller's buffer has `size` bytes, which is at least one. `offset` is null or points to the
        // caller's word.
        unsafe {
            std::ptr::copy_nonoverlapping(name.as_ptr().cast(), buffer, copied_bytes);
            buffer.add(copied_bytes - 1).write(0);
            if !offset.is_null() {
                offset.write(offset_in_function);
            }
        }
        Some(if copied_bytes < name.len() { -UNW_ENOMEM } else { 0 })
    });
    result_with_name.flatten().unwrap_or(result)
}
