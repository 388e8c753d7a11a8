//! Tests that call the hooks the way C++ calls `loadObject`; results and exceptions must pass through.

use super::*;
use crate::channels::runtime_dyld::set_original;

/// Returned like a `std::unique_ptr`, in memory that the caller provides.
#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
struct InMemory([usize; 5]);

type Returning = unsafe extern "C-unwind" fn(usize, usize) -> InMemory;

unsafe extern "C-unwind" fn original_function(this: usize, object: usize) -> InMemory {
    InMemory([this, object, 3, 4, 5])
}

unsafe extern "C-unwind" fn throwing_function(_: usize, _: usize) -> InMemory {
    std::panic::panic_any("thrown")
}

#[test]
fn result_is_stored_in_the_callers_memory() {
    set_original(15, original_function as *const () as usize);
    // SAFETY: the hook forwards all arguments to a function that has this signature.
    let hook: Returning = unsafe { std::mem::transmute(HOOKS[15]) };
    // SAFETY: the hook forwards both arguments and the result.
    assert_eq!(unsafe { hook(1, 2) }, InMemory([1, 2, 3, 4, 5]));
}

#[test]
#[cfg_attr(miri, ignore = "a call of a function by another signature")]
fn an_exception_passes_through() {
    set_original(14, throwing_function as *const () as usize);
    // SAFETY: the hook forwards all arguments to a function that has this signature.
    let hook: Returning = unsafe { std::mem::transmute(HOOKS[14]) };
    // SAFETY: the hook forwards both arguments and the result.
    let thrown = std::panic::catch_unwind(|| unsafe { hook(1, 2) }).unwrap_err();
    assert_eq!(thrown.downcast_ref(), Some(&"thrown"));
}
