//! C interface to the registry, as a shared library. `tests/llvm.rs` loads it into a host that links LLVM libunwind.
//!
//! It is also an example of use from C: one function to register, one to deregister, one to find unwinders.

use std::ffi::c_void;
use unwind_register::{Registration, Registry, Section};

/// Finds unwinders; returns the number of those in use.
#[unsafe(no_mangle)]
pub extern "C" fn example_rescan() -> usize {
    Registry::process().rescan();
    Registry::process().unwinders().iter().filter(|unwinder| unwinder.refused.is_none()).count()
}

/// Registers a section of `length` bytes at `eh_frame`; returns NULL on failure.
///
/// # Safety
///
/// Same as [`Registry::register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_register(eh_frame: *const u8, length: usize) -> *mut c_void {
    // SAFETY: the caller guarantees that the section is readable.
    let bytes = unsafe { std::slice::from_raw_parts(eh_frame, length) };
    // SAFETY: the caller upholds the contract of `register`.
    match unsafe { Registry::process().register(&Section::new(bytes, eh_frame as usize)) } {
        Ok(registration) => Box::into_raw(Box::new(registration)).cast(),
        Err(_) => std::ptr::null_mut(),
    }
}

/// Drops a registration.
///
/// # Safety
///
/// `registration` came from [`example_register`] and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_drop(registration: *mut c_void) {
    if !registration.is_null() {
        // SAFETY: the caller passes a pointer from `example_register`, which it does not use again.
        drop(unsafe { Box::from_raw(registration.cast::<Registration>()) });
    }
}
