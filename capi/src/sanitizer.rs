//! Default options for sanitizer runtimes. A runtime that is loaded after this library calls these functions instead of
//! its own. Functions that the program defines, and its environment (`ASAN_OPTIONS`), take precedence.

use std::ffi::{CStr, c_char};

const ASAN_OPTIONS: &CStr = c"verify_asan_link_order=0";
const TSAN_SUPPRESSIONS: &CStr = c"called_from_lib:libjitlisten.so";

/// Options for AddressSanitizer, whose runtime otherwise refuses to start because it is not the first library.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    ASAN_OPTIONS.as_ptr()
}

/// Suppressions for ThreadSanitizer, which does not see our synchronization and would otherwise report races in this
/// library.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    TSAN_SUPPRESSIONS.as_ptr()
}
