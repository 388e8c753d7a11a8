//! Options for the runtimes of sanitizers. A runtime that comes after this library in the loader's order calls these
//! functions instead of its own; the program's come before, and its environment (`ASAN_OPTIONS`) counts for more.

use std::ffi::{CStr, c_char};

const ADDRESS: &CStr = c"verify_asan_link_order=0";
const THREAD: &CStr = c"called_from_lib:libjitlisten.so";

/// AddressSanitizer would refuse to start because it is not the first library.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    ADDRESS.as_ptr()
}

/// ThreadSanitizer would report races in this library, whose synchronisation it does not see.
#[unsafe(no_mangle)]
pub extern "C" fn __tsan_default_suppressions() -> *const c_char {
    THREAD.as_ptr()
}
