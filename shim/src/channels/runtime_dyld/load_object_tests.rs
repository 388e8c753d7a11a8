//! What a hook leaves to the original, called as C++ calls `loadObject`.

use super::*;
use crate::channels::runtime_dyld::stand_for;

/// Returned as a `std::unique_ptr` is: its caller has a place for it.
#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
struct InMemory([usize; 5]);

type Returning = unsafe extern "C-unwind" fn(usize, usize) -> InMemory;

unsafe extern "C-unwind" fn original_function(this: usize, object: usize) -> InMemory {
    InMemory([this, object, 3, 4, 5])
}

unsafe extern "C-unwind" fn that_throws(_: usize, _: usize) -> InMemory {
    std::panic::panic_any("thrown")
}

#[test]
fn the_result_is_where_the_caller_wants_it() {
    stand_for(15, original_function as *const () as usize);
    // SAFETY: a function with these arguments, as the hook passes everything on.
    let hook: Returning = unsafe { std::mem::transmute(HOOKS[15]) };
    // SAFETY: as above.
    assert_eq!(unsafe { hook(1, 2) }, InMemory([1, 2, 3, 4, 5]));
}

#[test]
#[cfg_attr(miri, ignore = "a call of a function by another signature")]
fn an_exception_passes_through() {
    stand_for(14, that_throws as *const () as usize);
    // SAFETY: as above.
    let hook: Returning = unsafe { std::mem::transmute(HOOKS[14]) };
    // SAFETY: as above.
    let thrown = std::panic::catch_unwind(|| unsafe { hook(1, 2) }).unwrap_err();
    assert_eq!(thrown.downcast_ref(), Some(&"thrown"));
}
