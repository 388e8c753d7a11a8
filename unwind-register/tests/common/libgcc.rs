//! Walks with `_Unwind_Backtrace`, which in this process is libgcc's.

use std::cell::RefCell;
use std::ffi::c_void;

unsafe extern "C" {
    fn _Unwind_Backtrace(trace: extern "C" fn(*mut c_void, *mut c_void) -> i32, argument: *mut c_void) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    pub fn __register_frame(begin: *const u8);
    pub fn __deregister_frame(begin: *const u8);
}

extern "C" fn trace(context: *mut c_void, frames: *mut c_void) -> i32 {
    // SAFETY: `walk` passes its vector, and libgcc passes a context.
    unsafe { (*frames.cast::<Vec<usize>>()).push(_Unwind_GetIP(context)) };
    0
}

/// Return addresses from here on outwards.
pub fn walk() -> Vec<usize> {
    let mut frames: Vec<usize> = Vec::new();
    // SAFETY: `trace` gets the vector it expects.
    unsafe { _Unwind_Backtrace(trace, (&raw mut frames).cast()) };
    frames
}

thread_local! {
    static FOUND: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Walks from inside the chain, and returns what was found.
pub fn walk_from(chain: &super::Chain) -> Vec<usize> {
    extern "C" fn callback() {
        FOUND.set(walk());
    }
    chain.call(callback);
    FOUND.take()
}
