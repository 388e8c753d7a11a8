//! Interposed `pthread_create`: a new thread arms itself before its function runs.
//!
//! The preloaded library exports a `pthread_create` that calls this function; outside a recording, it only calls
//! libc's. A periodic scan alone is not enough, because threads may have exited by then: a scan every 50 ms saw only 40
//! of 100 threads that ran for 20 ms.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use crate::recording::{current, pause};
use crate::thread::adoption::adopt_this_thread;
use crate::transparency::next::{self, ThreadFunction};

/// Start information of a new thread. Allocated with `malloc`, because the new thread frees it, or no thread does.
struct ThreadStart {
    start: ThreadFunction,
    argument: *mut c_void,
    stack_size: usize,
    /// The thread's signal mask, if it was created while its creator had blocked more signals.
    signals: Option<libc::sigset_t>,
}

/// Interposed `pthread_create(3)`.
///
/// # Safety
/// Same contract as `pthread_create(3)`.
pub unsafe fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: ThreadFunction,
    argument: *mut c_void,
) -> c_int {
    if current::sampling().is_none() {
        // SAFETY: the caller's arguments are passed on unchanged.
        return unsafe { next::pthread_create(thread, attributes, start, argument) };
    }
    let stack_size = stack_size(attributes);
    let Some(start_info) = allocate_start(ThreadStart { start, argument, stack_size, signals: None }) else {
        // SAFETY: the caller's arguments are passed on unchanged.
        return unsafe { next::pthread_create(thread, attributes, start, argument) };
    };
    // SAFETY: the arguments are the caller's except for the function: `run_sampled` takes the `ThreadStart` and calls
    // the caller's function.
    let create = move || unsafe { next::pthread_create(thread, attributes, run_sampled, start_info.cast()) };
    let mut error = create();
    if error == libc::EAGAIN {
        // At the limit of threads (`RLIMIT_NPROC`, a container's), the writer may have taken the last one.
        // SAFETY: no thread was created, so the memory is still ours.
        unsafe { (*start_info).signals = Some(signal_mask()) };
        error = pause::without_writer(create);
    }
    if error != 0 {
        // SAFETY: no thread was created.
        unsafe { libc::free(start_info.cast()) };
    }
    error
}

/// Returns the stack size of a thread with these attributes; 0 if unknown.
fn stack_size(attributes: *const libc::pthread_attr_t) -> usize {
    let (mut default_attributes, mut size) = (MaybeUninit::<libc::pthread_attr_t>::uninit(), 0);
    let attributes = if attributes.is_null() {
        // SAFETY: the call initializes the attributes; glibc allocates nothing for them.
        if unsafe { libc::pthread_attr_init(default_attributes.as_mut_ptr()) } != 0 {
            return 0;
        }
        default_attributes.as_ptr()
    } else {
        attributes
    };
    // SAFETY: the attributes are the caller's, or were initialized above; the call writes an integer.
    if unsafe { libc::pthread_attr_getstacksize(attributes, &raw mut size) } == 0 { size } else { 0 }
}

fn signal_mask() -> libc::sigset_t {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: the call only writes the current mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: the call has initialized the mask.
    unsafe { mask.assume_init() }
}

fn allocate_start(start_info: ThreadStart) -> Option<*mut ThreadStart> {
    // SAFETY: `malloc` has no precondition.
    let memory = unsafe { libc::malloc(size_of::<ThreadStart>()) }.cast::<ThreadStart>();
    if memory.is_null() {
        return None;
    }
    // SAFETY: the memory is new, has this size, and is aligned for any type.
    unsafe { memory.write(start_info) };
    Some(memory)
}

/// Entry point of a sampled thread. Nothing in this frame has a destructor, because `pthread_exit` and cancellation
/// unwind through it.
extern "C-unwind" fn run_sampled(start_info: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` allocated this memory for this thread alone.
    let ThreadStart { start, argument, stack_size, signals } = unsafe { start_info.cast::<ThreadStart>().read() };
    // SAFETY: the memory came from `malloc`, and its contents have been read.
    unsafe { libc::free(start_info) };
    if let Some(signals) = signals {
        // SAFETY: the mask is that of the creating thread.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const signals, ptr::null_mut()) };
    }
    let _ = std::panic::catch_unwind(|| adopt_this_thread(start as usize as u64, stack_size));
    start(argument)
}
