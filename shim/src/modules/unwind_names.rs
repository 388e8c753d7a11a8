//! Names of compiled frames for nongnu libunwind.
//!
//! A frame that libunwind finds through `_U_dyn_register` in a table format has no name by design: `unw_get_proc_name`
//! returns `-UNW_ENOINFO` and an empty string. We keep that registration, because its walks are cheap, and fill in the
//! name.
//!
//! A process may have several copies of libunwind (memray's wheel has its own). In each, the value of the function in
//! the dynamic symbol table is patched, as in llvmlite: callers bound later get ours.

use std::ffi::{c_char, c_int, c_void};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::log_line;

use super::real::with_name;
use crate::hook_table::{SLOTS, for_each_slot};
use crate::process::library::Library;

#[cfg(target_arch = "x86_64")]
const NAMES: [(&str, &str); 2] =
    [("_ULx86_64_get_proc_name", "_ULx86_64_get_reg"), ("_Ux86_64_get_proc_name", "_Ux86_64_get_reg")];
#[cfg(target_arch = "aarch64")]
const NAMES: [(&str, &str); 2] =
    [("_ULaarch64_get_proc_name", "_ULaarch64_get_reg"), ("_Uaarch64_get_proc_name", "_Uaarch64_get_reg")];

/// `UNW_REG_IP` of `<libunwind.h>`
#[cfg(target_arch = "x86_64")]
const UNW_REG_IP: c_int = 16;
#[cfg(target_arch = "aarch64")]
const UNW_REG_IP: c_int = 32;

/// `UNW_ENOINFO`, `UNW_ENOMEM` of `<libunwind-common.h>`
const UNW_ENOINFO: c_int = 10;
const UNW_ENOMEM: c_int = 2;

type GetProcName = unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, usize, *mut u64) -> c_int;
type GetReg = unsafe extern "C-unwind" fn(*mut c_void, c_int, *mut u64) -> c_int;

/// A copy's own functions: so many are hooked in a process. A place is given to one copy, for ever: a call may be on
/// its way.
struct Copy {
    bias: AtomicUsize,
    get_proc_name: AtomicUsize,
    get_reg: AtomicUsize,
}

static TABLE: [Copy; SLOTS] =
    [const { Copy { bias: AtomicUsize::new(0), get_proc_name: AtomicUsize::new(0), get_reg: AtomicUsize::new(0) } };
        SLOTS];

const HOOKS: [GetProcName; SLOTS] = for_each_slot!(SLOT => get_proc_name::<SLOT>);

/// Whether the library is a nongnu libunwind.
pub(super) fn is_libunwind(library: &Library<'_>) -> bool {
    library.dynamic_symbol("_U_dyn_register").is_some()
}

/// Hooks the copy of libunwind that `library` is, if it is one.
pub(crate) fn library_appeared(library: &Library<'_>) {
    let is_known = |copy: &Copy| copy.bias.load(Ordering::Acquire) == library.identity.bias;
    if !is_libunwind(library) || TABLE.iter().any(is_known) {
        return;
    }
    for (name, get_reg) in NAMES {
        let (Some(original), Some(get_reg)) = (library.dynamic_address(name), library.dynamic_address(get_reg)) else {
            continue;
        };
        let is_free = |copy: &Copy| copy.get_proc_name.load(Ordering::Acquire) == 0;
        let Some(at) = TABLE.iter().position(is_free) else { return };
        TABLE[at].get_reg.store(get_reg, Ordering::Release);
        TABLE[at].bias.store(library.identity.bias, Ordering::Release);
        TABLE[at].get_proc_name.store(original, Ordering::Release);
        // SAFETY: the hook of the function of this name, which calls that.
        if let Some(Err(error)) = unsafe { library.redefine(name, HOOKS[at] as usize) } {
            log_line!(Info, "could not hook {name}: {error}; libunwind has no names of compiled code");
        }
    }
}

/// A copy was closed: no call of its functions is on its way. Its place is free again.
pub(super) fn library_closed(bias: usize) {
    for copy in TABLE.iter().filter(|copy| copy.bias.load(Ordering::Acquire) == bias) {
        copy.bias.store(0, Ordering::Release);
        copy.get_proc_name.store(0, Ordering::Release);
    }
}

/// The copy's function that ours takes the place of, where a slot is bound to it already.
pub(super) fn hook_of(address: usize) -> Option<usize> {
    let at = TABLE.iter().position(|copy| address != 0 && copy.get_proc_name.load(Ordering::Acquire) == address)?;
    Some(HOOKS[at] as usize)
}

/// The functions, as importers call them.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().map(|name| name.0)
}

/// `unw_get_proc_name(3)` of one copy.
unsafe extern "C-unwind" fn get_proc_name<const COPY: usize>(
    cursor: *mut c_void,
    buffer: *mut c_char,
    size: usize,
    offset: *mut u64,
) -> c_int {
    let original = TABLE[COPY].get_proc_name.load(Ordering::Acquire);
    if original == 0 {
        return -UNW_ENOINFO;
    }
    // SAFETY: the function of that name has this type; the caller's own call.
    let result = unsafe { mem::transmute::<usize, GetProcName>(original)(cursor, buffer, size, offset) };
    // 1.6 takes the structure of another format for its own there, and returns `-UNW_EINVAL` or what it finds.
    if result == 0 || result == -UNW_ENOMEM || buffer.is_null() || size == 0 {
        return result;
    }
    let (get_reg, mut address) = (TABLE[COPY].get_reg.load(Ordering::Acquire), 0);
    // SAFETY: the function of that name has this type; the caller's cursor, and a word for the register.
    if unsafe { mem::transmute::<usize, GetReg>(get_reg)(cursor, UNW_REG_IP, &raw mut address) } != 0 {
        return result;
    }
    let named = with_name(address, |name, _, into| {
        let name = name?.to_bytes_with_nul();
        let fits = name.len().min(size);
        // SAFETY: the caller's buffer has `size` bytes, of which there is one at least; and the caller's word.
        unsafe {
            std::ptr::copy_nonoverlapping(name.as_ptr().cast(), buffer, fits);
            buffer.add(fits - 1).write(0);
            if !offset.is_null() {
                offset.write(into);
            }
        }
        Some(if fits < name.len() { -UNW_ENOMEM } else { 0 })
    });
    named.flatten().unwrap_or(result)
}
