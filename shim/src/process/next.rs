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

/// A function as our hooks call it: the other tool's, if there is one, and else libc's.
macro_rules! passed_on {
    ($function:ident, $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $libc:path) => {
        /// # Safety
        /// As for the function of this name.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the other tool had put it into a slot of this function, so it has its type; the caller promises
            // what it demands.
            let theirs = |next| unsafe { std::mem::transmute::<usize, Function>(next)($($argument),*) };
            // SAFETY: the caller promises what the function demands.
            call(self::Function::$function, theirs, || unsafe { $libc($($argument),*) })
        }
    };
}

passed_on!(Mprotect, mprotect(address: *mut c_void, size: usize, protection: c_int) -> c_int, libc::mprotect);
passed_on!(Munmap, munmap(address: *mut c_void, size: usize) -> c_int, libc::munmap);
passed_on!(
    Mmap,
    mmap(address: *mut c_void, size: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void,
    libc::mmap
);
passed_on!(RegisterFrame, register_frame(begin: *const c_void) -> (), __register_frame);
passed_on!(
    PkeyMprotect,
    pkey_mprotect(address: *mut c_void, size: usize, protection: c_int, key: c_int) -> c_int,
    kernels_pkey_mprotect
);

/// Older C libraries have no `pkey_mprotect`; without a key it is `mprotect`, on every kernel.
unsafe fn kernels_pkey_mprotect(address: *mut c_void, size: usize, protection: c_int, key: c_int) -> c_int {
    // SAFETY: the caller promises what the function demands.
    unsafe {
        match key {
            -1 => libc::mprotect(address, size, protection),
            _ => libc::syscall(libc::SYS_pkey_mprotect, address, size, protection, key) as c_int,
        }
    }
}

/// As [`passed_on`], for a function with a variable number of arguments.
///
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
    // SAFETY: the other tool had put it into a slot of `mremap`; the caller promises what that demands.
    let theirs = |next| unsafe { std::mem::transmute::<usize, Mremap>(next)(address, size, new_size, flags, place) };
    // SAFETY: the caller promises what the function demands.
    call(Function::Mremap, theirs, || unsafe { libc::mremap(address, size, new_size, flags, place) })
}
