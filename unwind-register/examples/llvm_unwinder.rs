//! The registry behind a C interface, as a shared library: a host that links LLVM's libunwind opens it
//! (`tests/llvm.rs`).
//!
//! It also shows how to use this from C: one function in, one out, one to look for unwinders.

use std::ffi::c_void;
use unwind_register::{Registration, Registry, Section};

/// Looks for unwinders; returns how many are known now.
#[unsafe(no_mangle)]
pub extern "C" fn example_rescan() -> usize {
    Registry::process().rescan();
    Registry::process().unwinders().iter().filter(|unwinder| unwinder.refused.is_none()).count()
}

/// Registers a section of `length` bytes at `eh_frame`; NULL if that is not possible.
///
/// # Safety
///
/// As [`Registry::register`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_register(eh_frame: *const u8, length: usize) -> *mut c_void {
    // SAFETY: the caller says that the section is there.
    let bytes = unsafe { std::slice::from_raw_parts(eh_frame, length) };
    // SAFETY: the caller's promise.
    match unsafe { Registry::process().register(&Section::new(bytes, eh_frame as usize)) } {
        Ok(registration) => Box::into_raw(Box::new(registration)).cast(),
        Err(_) => std::ptr::null_mut(),
    }
}

/// Takes a registration back.
///
/// # Safety
///
/// `registration` came from [`example_register`], and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn example_drop(registration: *mut c_void) {
    if !registration.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(registration.cast::<Registration>()) });
    }
}
