//! Stack walks with `_Unwind_Backtrace`, which libgcc provides in this process.

use std::cell::RefCell;
use std::ffi::c_void;

unsafe extern "C" {
    fn _Unwind_Backtrace(trace: extern "C" fn(*mut c_void, *mut c_void) -> i32, argument: *mut c_void) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    pub fn __register_frame(begin: *const u8);
    pub fn __deregister_frame(begin: *const u8);
}

extern "C" fn record_frame(context: *mut c_void, frames: *mut c_void) -> i32 {
    // SAFETY: `walk` passes a pointer to its vector, and libgcc a valid context.
    unsafe { (*frames.cast::<Vec<usize>>()).push(_Unwind_GetIP(context)) };
    0
}

/// Returns the return addresses of the current stack, innermost first.
pub fn walk() -> Vec<usize> {
    let mut frames: Vec<usize> = Vec::new();
    // SAFETY: `record_frame` receives the vector that it expects.
    unsafe { _Unwind_Backtrace(record_frame, (&raw mut frames).cast()) };
    frames
}

thread_local! {
    static FRAMES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Walks from inside the chain and returns the frames.
pub fn walk_from(chain: &super::Chain) -> Vec<usize> {
    extern "C" fn callback() {
        FRAMES.set(walk());
    }
    chain.call(callback);
    FRAMES.take()
}
