//! Functions that our hooks forward to: libc's own, or those of another tool that has patched the same import slot.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use jitlisten::plumbing::ReentrancyGuard;

/// A function of libc or libgcc that we hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Mprotect,
    Munmap,
    Mmap,
    RegisterFrame,
    PkeyMprotect,
    Mremap,
}

pub(crate) const FUNCTION_COUNT: usize = 6;

/// All functions, in the order of their discriminants.
pub(crate) const ALL_FUNCTIONS: [Function; FUNCTION_COUNT] = [
    Function::Mprotect,
    Function::Munmap,
    Function::Mmap,
    Function::RegisterFrame,
    Function::PkeyMprotect,
    Function::Mremap,
];

/// Addresses of other tools' functions, indexed by [`Function`]; 0 selects libc's function.
static NEXT_FUNCTIONS: [AtomicUsize; FUNCTION_COUNT] = [const { AtomicUsize::new(0) }; FUNCTION_COUNT];

/// Threads that are currently inside another tool's function. That function may call the pointer that it saved from the
/// slot, and this pointer is our hook.
static THREADS_IN_OTHER_TOOL: ReentrancyGuard = ReentrancyGuard::new();

unsafe extern "C" {
    fn __register_frame(begin: *const c_void);
}

/// Address of libc's function as resolved for our own library; 0 if the hook makes the system call itself.
pub(crate) fn libc_address(function: Function) -> usize {
    match function {
        Function::Mprotect => libc::mprotect as *const () as usize,
        Function::Munmap => libc::munmap as *const () as usize,
        Function::Mmap => libc::mmap as *const () as usize,
        Function::RegisterFrame => __register_frame as *const () as usize,
        Function::PkeyMprotect => 0,
        Function::Mremap => libc::mremap as *const () as usize,
    }
}

/// Sets the function that the hook forwards to. Zero selects libc's function.
pub(crate) fn set(function: Function, address: usize) {
    let address = if address == libc_address(function) { 0 } else { address };
    NEXT_FUNCTIONS[function as usize].store(address, Ordering::Release);
}

pub(crate) fn forwards_to(function: Function, address: usize) -> bool {
    address == libc_address(function) || address == NEXT_FUNCTIONS[function as usize].load(Ordering::Acquire)
}

/// Returns true if the hook forwards to another tool's function.
pub(crate) fn is_overridden(function: Function) -> bool {
    NEXT_FUNCTIONS[function as usize].load(Ordering::Acquire) != 0
}

/// Calls `other_tool` with the address of the other tool's function, if one is set and this thread is not inside it.
/// Otherwise, calls `libc`.
fn forward<R>(function: Function, other_tool: impl FnOnce(usize) -> R, libc: impl FnOnce() -> R) -> R {
    match NEXT_FUNCTIONS[function as usize].load(Ordering::Acquire) {
        0 => libc(),
        address => match THREADS_IN_OTHER_TOOL.enter() {
            Some(_entered) => other_tool(address),
            None => libc(),
        },
    }
}

/// Defines the function through which a hook forwards calls: to the other tool's function if one is set, otherwise to
/// libc's.
macro_rules! define_forwarder {
    ($function:ident, $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $libc:path) => {
        /// Type of this function and of its hook.
        pub(crate) type $function = unsafe extern "C" fn($($type),*) -> $result;

        /// Forwards a call to the other tool's function or to libc's.
        ///
        /// # Safety
        /// Same contract as the forwarded function.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            // SAFETY: another tool has stored this address in a slot of the function, so it has the function's type.
            // The caller upholds the contract.
            let other_tool = |next| unsafe { std::mem::transmute::<usize, $function>(next)($($argument),*) };
            // SAFETY: the caller upholds the contract of the function.
            forward(Function::$function, other_tool, || unsafe { $libc($($argument),*) })
        }
    };
}

define_forwarder!(Mprotect, mprotect(address: *mut c_void, size: usize, protection: c_int) -> c_int, libc::mprotect);
define_forwarder!(Munmap, munmap(address: *mut c_void, size: usize) -> c_int, libc::munmap);
define_forwarder!(
    Mmap,
    mmap(address: *mut c_void, size: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void,
    libc::mmap
);
define_forwarder!(RegisterFrame, register_frame(begin: *const c_void) -> (), __register_frame);
define_forwarder!(
    PkeyMprotect,
    pkey_mprotect(address: *mut c_void, size: usize, protection: c_int, key: c_int) -> c_int,
    raw_pkey_mprotect
);

/// Makes the `pkey_mprotect` system call directly, because older C libraries lack the function. Without a key, the call
/// is the same as `mprotect`, which works on every kernel.
unsafe fn raw_pkey_mprotect(address: *mut c_void, size: usize, protection: c_int, key: c_int) -> c_int {
    // SAFETY: the caller upholds the contract of the function.
    unsafe {
        match key {
            -1 => libc::mprotect(address, size, protection),
            _ => libc::syscall(libc::SYS_pkey_mprotect, address, size, protection, key) as c_int,
        }
    }
}

/// Forwards a call of `mremap`, which is variadic in C.
///
/// # Safety
/// Same contract as `mremap(2)`.
pub(crate) unsafe fn mremap(
    address: *mut c_void,
    size: usize,
    new_size: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    type Mremap = unsafe extern "C" fn(*mut c_void, usize, usize, c_int, ...) -> *mut c_void;
    // SAFETY: another tool has stored this address in a slot of `mremap`. The caller upholds the contract.
    let other_tool =
        |next| unsafe { std::mem::transmute::<usize, Mremap>(next)(address, size, new_size, flags, new_address) };
    // SAFETY: the caller upholds the contract of the function.
    forward(Function::Mremap, other_tool, || unsafe { libc::mremap(address, size, new_size, flags, new_address) })
}
