//! The functions that our hooks call: libc's, or those of another tool that had patched the same relocation slot.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::plumbing::Inside;

/// A function that is hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Mprotect,
    Munmap,
    Mmap,
    RegisterFrame,
    PkeyMprotect,
    Mremap,
}

pub(crate) const FUNCTIONS: usize = 6;

/// By their number.
pub(crate) const ALL: [Function; FUNCTIONS] = [
    Function::Mprotect,
    Function::Munmap,
    Function::Mmap,
    Function::RegisterFrame,
    Function::PkeyMprotect,
    Function::Mremap,
];

/// The other tool's functions; 0 where there is none.
static NEXT: [AtomicUsize; FUNCTIONS] = [const { AtomicUsize::new(0) }; FUNCTIONS];

/// Threads that are in another tool's function. It may call what it had found in the slot, which is our hook.
static INSIDE: Inside = Inside::new();

unsafe extern "C" {
    fn __register_frame(begin: *const c_void);
}

/// The address of libc's function, as this library calls it; 0 where it makes the system call itself.
pub(crate) fn of_libc(function: Function) -> usize {
    match function {
        Function::Mprotect => libc::mprotect as *const () as usize,
        Function::Munmap => libc::munmap as *const () as usize,
        Function::Mmap => libc::mmap as *const () as usize,
        Function::RegisterFrame => __register_frame as *const () as usize,
        Function::PkeyMprotect => 0,
        Function::Mremap => libc::mremap as *const () as usize,
    }
}

/// From now on, `address` is called in place of libc's function; 0 for libc's.
pub(crate) fn set(function: Function, address: usize) {
    let address = if address == of_libc(function) { 0 } else { address };
    NEXT[function as usize].store(address, Ordering::Release);
}

/// Whether our hook calls what stands at `address`.
pub(crate) fn leads_to(function: Function, address: usize) -> bool {
    address == of_libc(function) || address == NEXT[function as usize].load(Ordering::Acquire)
}

/// Whether another tool's function is called.
pub(crate) fn is_set(function: Function) -> bool {
    NEXT[function as usize].load(Ordering::Acquire) != 0
}

/// Calls `theirs` with the address of the other tool's function, if there is one, and else `libc`.
fn call<R>(function: Function, theirs: impl FnOnce(usize) -> R, libc: impl FnOnce() -> R) -> R {
    match NEXT[function as usize].load(Ordering::Acquire) {
        0 => libc(),
        address => match INSIDE.enter() {
            Some(_entered) => theirs(address),
            None => libc(),
        },
    }
}

/// # Safety
/// As for `mprotect(2)`.
pub(crate) unsafe fn mprotect(address: *mut c_void, size: usize, protection: c_int) -> c_int {
    let theirs = |next: usize| {
        // SAFETY: it was called in place of this function.
        let next: unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int = unsafe { std::mem::transmute(next) };
        // SAFETY: the caller's promise.
        unsafe { next(address, size, protection) }
    };
    // SAFETY: the caller's promise.
    call(Function::Mprotect, theirs, || unsafe { libc::mprotect(address, size, protection) })
}

/// # Safety
/// As for `munmap(2)`.
pub(crate) unsafe fn munmap(address: *mut c_void, size: usize) -> c_int {
    let theirs = |next: usize| {
        // SAFETY: it was called in place of this function.
        let next: unsafe extern "C" fn(*mut c_void, usize) -> c_int = unsafe { std::mem::transmute(next) };
        // SAFETY: the caller's promise.
        unsafe { next(address, size) }
    };
    // SAFETY: the caller's promise.
    call(Function::Munmap, theirs, || unsafe { libc::munmap(address, size) })
}

/// # Safety
/// As for `mmap(2)`.
pub(crate) unsafe fn mmap(
    address: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    type Mmap = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void;
    let theirs = |next: usize| {
        // SAFETY: it was called in place of this function.
        let next: Mmap = unsafe { std::mem::transmute(next) };
        // SAFETY: the caller's promise.
        unsafe { next(address, size, protection, flags, file, offset) }
    };
    // SAFETY: the caller's promise.
    call(Function::Mmap, theirs, || unsafe { libc::mmap(address, size, protection, flags, file, offset) })
}

/// # Safety
/// As for libgcc's `__register_frame`.
pub(crate) unsafe fn register_frame(begin: *const c_void) {
    let theirs = |next: usize| {
        // SAFETY: it was called in place of this function.
        let next: unsafe extern "C" fn(*const c_void) = unsafe { std::mem::transmute(next) };
        // SAFETY: the caller's promise.
        unsafe { next(begin) }
    };
    // SAFETY: the caller's promise.
    call(Function::RegisterFrame, theirs, || unsafe { __register_frame(begin) });
}

/// # Safety
/// As for `pkey_mprotect(2)`.
pub(crate) unsafe fn pkey_mprotect(address: *mut c_void, size: usize, protection: c_int, key: c_int) -> c_int {
    type PkeyMprotect = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int) -> c_int;
    let theirs = |next: usize| {
        // SAFETY: it was called in place of this function.
        let next: PkeyMprotect = unsafe { std::mem::transmute(next) };
        // SAFETY: the caller's promise.
        unsafe { next(address, size, protection, key) }
    };
    let ours = || {
        if key == -1 {
            // SAFETY: the caller's promise; without a key it is that function, on every kernel.
            return unsafe { libc::mprotect(address, size, protection) };
        }
        // SAFETY: the caller's promise. Older C libraries have no function of that name.
        unsafe { libc::syscall(libc::SYS_pkey_mprotect, address, size, protection, key) as c_int }
    };
    call(Function::PkeyMprotect, theirs, ours)
}

/// # Safety
/// As for `mremap(2)`.
pub(crate) unsafe fn mremap(
    address: *mut c_void,
    size: usize,
    new_size: usize,
    flags: c_int,
    place: *mut c_void,
) -> *mut c_void {
    type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, ...) -> *mut c_void;
    let theirs = |next: usize| {
        // SAFETY: it was called in place of this function.
        let next: Mremap = unsafe { std::mem::transmute(next) };
        // SAFETY: the caller's promise.
        unsafe { next(address, size, new_size, flags, place) }
    };
    // SAFETY: the caller's promise.
    call(Function::Mremap, theirs, || unsafe { libc::mremap(address, size, new_size, flags, place) })
}
