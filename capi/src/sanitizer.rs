//! Default options for the runtimes of sanitizers. A runtime after this library in the loader's order calls these
//! functions instead of its own. The program's own functions come first, and its environment (`ASAN_OPTIONS`) takes
//! precedence.

use std::ffi::{CStr, c_char};

const ASAN_OPTIONS: &CStr = c"verify_asan_link_order=0";
const TSAN_SUPPRESSIONS: &CStr = c"called_from_lib:libjitlisten.so";

/// Options for AddressSanitizer, which would otherwise refuse to start because it is not the first library.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    ASAN_OPTIONS.as_ptr()
}

/// Suppressions for ThreadSanitizer, which would otherwise report races in this library: it does not see our
/// synchronisation.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    TSAN_SUPPRESSIONS.as_ptr()
}
