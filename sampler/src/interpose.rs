//! `pthread_create`: a new thread arms itself before its function runs.
//!
//! The preloaded library exports a `pthread_create` that calls this one; while nothing is recorded it only calls the
//! real one. A scan is not enough, because threads may have ended by then: of 100 threads of 20 ms, a scan every 50 ms
//! saw 40 %.

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use jitlisten::plumbing::HostStateGuard;

use crate::slot::{SIGNAL_STACK_BYTES, Slot};
use crate::threads::{self, ACTIVE};
use crate::{clock, leaving, sanitizer};

/// A thread's function.
pub type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

static NEXT_CREATE: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// 0: not made; 1: being made; key + 2.
static EXIT_KEY: AtomicU32 = AtomicU32::new(0);

/// What the new thread is to do, in memory of `malloc`: it is freed in another thread, or never.
struct ThreadStart {
    start: Start,
    argument: *mut c_void,
    stack_size: usize,
}

/// The next `pthread_create` behind this library's.
fn next_create() -> Option<Create> {
    let mut found = NEXT_CREATE.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: a terminated name.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
        NEXT_CREATE.store(found, Ordering::Release);
    }
    if found.is_null() {
        return None;
    }
    // SAFETY: a function of that name has this type.
    Some(unsafe { mem::transmute::<*mut c_void, Create>(found) })
}

/// Stands in for `pthread_create(3)`.
///
/// # Safety
/// As that.
pub unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let Some(real) = next_create() else { return libc::ENOSYS };
    if !ACTIVE.load(Ordering::Relaxed) {
        // SAFETY: the caller's arguments.
        return unsafe { real(thread, attributes, start, argument) };
    }
    let Some(work) = allocate_start(ThreadStart { start, argument, stack_size: stack_size(attributes) }) else {
        // SAFETY: the caller's arguments.
        return unsafe { real(thread, attributes, start, argument) };
    };
    // SAFETY: the caller's arguments, but for the function: `begin` takes the `Work` and calls the caller's function.
    let failure = unsafe { real(thread, attributes, run_sampled, work.cast()) };
    if failure != 0 {
        // SAFETY: no thread has got it.
        unsafe { libc::free(work.cast()) };
    }
    failure
}

/// The real one, for a thread of our own.
pub(crate) unsafe fn create_unsampled(thread: *mut libc::pthread_t, start: Start, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's arguments.
    next_create().map_or(libc::ENOSYS, |real| unsafe { real(thread, ptr::null(), start, argument) })
}

/// Bytes of the stack of a thread with these attributes; 0 if that is not known.
fn stack_size(attributes: *const libc::pthread_attr_t) -> usize {
    let (mut usual, mut size) = (MaybeUninit::<libc::pthread_attr_t>::uninit(), 0);
    let attributes = if attributes.is_null() {
        // SAFETY: writes the attributes; glibc allocates nothing for them.
        if unsafe { libc::pthread_attr_init(usual.as_mut_ptr()) } != 0 {
            return 0;
        }
        usual.as_ptr()
    } else {
        attributes
    };
    // SAFETY: attributes of the caller's, or those made above; writes a number.
    if unsafe { libc::pthread_attr_getstacksize(attributes, &raw mut size) } == 0 { size } else { 0 }
}

fn allocate_start(work: ThreadStart) -> Option<*mut ThreadStart> {
    // SAFETY: has no precondition.
    let memory = unsafe { libc::malloc(size_of::<ThreadStart>()) }.cast::<ThreadStart>();
    if memory.is_null() {
        return None;
    }
    // SAFETY: new memory of that size, aligned for anything.
    unsafe { memory.write(work) };
    Some(memory)
}

/// Where a sampled thread begins. Nothing in this frame has a destructor: `pthread_exit` and cancellation unwind
/// through it.
extern "C-unwind" fn run_sampled(work: *mut c_void) -> *mut c_void {
    // SAFETY: made by `create` for this thread alone.
    let ThreadStart { start, argument, stack_size } = unsafe { work.cast::<ThreadStart>().read() };
    // SAFETY: from `malloc`, and read above.
    unsafe { libc::free(work) };
    let _ = std::panic::catch_unwind(|| adopt_this_thread(start as usize as u64, stack_size));
    start(argument)
}

/// Samples the calling thread, which runs this function on a stack of that size (0: not known), until it ends.
pub(crate) fn adopt_this_thread(start: u64, stack_size: usize) {
    if !ACTIVE.load(Ordering::Acquire) {
        return;
    }
    let _host_state = HostStateGuard::enter();
    let tid = clock::own_tid();
    // On a busy machine the scan has found it before it ran.
    if let Some(slot) = threads::arm(tid).or_else(|| threads::find_armed(tid)) {
        // The recording may have ended meanwhile, and what ended it have seen no timer here.
        if !ACTIVE.load(Ordering::SeqCst) {
            threads::disarm(slot);
        }
        slot.thread_function.store(start, Ordering::Relaxed);
        record_stack_bounds(slot, stack_size as u64);
        install_signal_stack(slot);
        if let Some(key) = exit_key() {
            // SAFETY: a key that is never deleted; the slot lives for ever.
            unsafe { libc::pthread_setspecific(key, ptr::from_ref(slot).cast()) };
        }
    }
}

/// glibc has the thread's block (`pthread_self`) right above its frames, on the same mapping.
fn record_stack_bounds(slot: &Slot, size: u64) {
    const PAGE: u64 = 4096;
    // SAFETY: has no precondition.
    let block = unsafe { libc::pthread_self() } as u64;
    let high = (block & !(PAGE - 1)) + PAGE;
    let low = high.saturating_sub(size);
    let here = &raw const high as u64;
    if (low..high).contains(&here) {
        slot.set_stack(low, high);
    }
}

/// A signal stack for a thread that has none: the thread may be about to use up its own one.
fn install_signal_stack(slot: &Slot) {
    if sanitizer::may_give_signal_stack() && signal_stack().is_null() {
        let stack = libc::stack_t { ss_sp: slot.signal_stack().cast(), ss_flags: 0, ss_size: SIGNAL_STACK_BYTES };
        // SAFETY: memory that is never unmapped, and of no other thread until this one is gone.
        unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) };
    }
}

/// Where the calling thread has a stack for signals; null if there is none or it cannot be read.
pub(crate) fn signal_stack() -> *mut c_void {
    let mut now = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: writable memory for it; nothing is changed.
    if unsafe { libc::sigaltstack(ptr::null(), now.as_mut_ptr()) } != 0 {
        return ptr::null_mut();
    }
    // SAFETY: the call has written it.
    let now = unsafe { now.assume_init() };
    if now.ss_flags & libc::SS_DISABLE != 0 { ptr::null_mut() } else { now.ss_sp }
}

/// What the key has may be of before a fork: then the slot is another thread's, or none's.
unsafe extern "C" fn handle_thread_exit(slot: *mut c_void) {
    let _host_state = HostStateGuard::enter();
    // SAFETY: set by `adopt_this_thread`; slots live for ever.
    let slot = unsafe { &*slot.cast::<Slot>() };
    if slot.tid.load(Ordering::Acquire) == clock::own_tid() {
        threads::retire_slot(slot);
        let _ = std::panic::catch_unwind(leaving::end_before_last_thread);
    }
}

/// The key whose destructor says that a thread ends, however it does.
fn exit_key() -> Option<libc::pthread_key_t> {
    match EXIT_KEY.load(Ordering::Acquire) {
        0 if EXIT_KEY.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() => {
            let mut key = 0;
            // SAFETY: the destructor is a function of this library, which is never unloaded.
            if unsafe { libc::pthread_key_create(&raw mut key, Some(handle_thread_exit)) } != 0 {
                return None;
            }
            EXIT_KEY.store(key + 2, Ordering::Release);
            Some(key)
        }
        // No keys left, or another thread makes it just now: the scan will see the end of this one.
        0 | 1 => None,
        made => Some(made - 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot;

    /// In the child of a fork, where the slot is another thread's by now.
    #[test]
    fn a_thread_that_ends_leaves_the_slots_of_others_alone() {
        let _lock = slot::lock_for_test();
        for (tid, state) in [(clock::own_tid() + 1, slot::ARMED), (clock::own_tid(), slot::ENDED)] {
            let slot = slot::claim(tid).unwrap().1;
            slot.timer.store(-1, Ordering::Relaxed);
            slot.state.store(slot::ARMED, Ordering::Release);
            // SAFETY: a slot.
            unsafe { handle_thread_exit(ptr::from_ref(slot).cast_mut().cast()) };
            assert_eq!(slot.state.swap(slot::FREE, Ordering::AcqRel), state);
        }
    }
}
