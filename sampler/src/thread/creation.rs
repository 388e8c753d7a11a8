//! Interposed `pthread_create`: a new thread arms itself before its function runs.
//!
//! The preloaded library exports a `pthread_create` that calls this function; outside a recording, it only calls
//! libc's. A periodic scan alone is not enough, because threads may have exited by then: a scan every 50 ms saw only 40
//! of 100 threads that ran for 20 ms.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering;

use jitlisten::plumbing::HostStateGuard;

use crate::handler::clock;
use crate::recording::current::{self, Recording};
use crate::recording::pause;
use crate::thread::arming;
use crate::thread::run_queue::SchedulerTimes;
use crate::thread::slot::{SIGNAL_STACK_BYTES, Slot};
use crate::transparency::exit;
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

/// Creates a thread of our own, which is not sampled.
pub(crate) unsafe fn create_unsampled(
    thread: *mut libc::pthread_t,
    start: ThreadFunction,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { next::pthread_create(thread, ptr::null(), start, argument) }
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

/// Samples the calling thread until it exits. A new thread is about to run `start`; 0 for others. Its stack has
/// `stack_size` bytes (0: unknown).
pub(crate) fn adopt_this_thread(start: u64, stack_size: usize) {
    let Some(recording) = current::sampling() else { return };
    let _host_state = HostStateGuard::enter();
    let tid = clock::own_tid();
    let is_new = start != 0;
    let before = if is_new { SchedulerTimes::default() } else { SchedulerTimes::read(tid).unwrap_or_default() };
    // On a busy machine the scan may have found the thread before it ran.
    if let Some(slot) = arming::arm(recording, tid, before).or_else(|| arming::find_armed(tid)) {
        // The recording may have ended in the meantime, before this timer existed and could be deleted.
        if !recording.is_sampling() {
            arming::disarm(slot);
        }
        slot.thread_function.store(start, Ordering::Relaxed);
        record_stack_bounds(slot, stack_size as u64);
        install_signal_stack(recording, slot);
        if let Some(key) = recording.exit_key {
            // SAFETY: the key is never deleted, and the slot lives forever.
            unsafe { libc::pthread_setspecific(key, ptr::from_ref(slot).cast()) };
        }
    }
}

/// Records the bounds of the calling thread's stack. glibc keeps the thread's block (`pthread_self`) right above its
/// frames, in the same mapping.
fn record_stack_bounds(slot: &Slot, size: u64) {
    const PAGE: u64 = 4096;
    // SAFETY: `pthread_self` has no precondition.
    let thread_block = unsafe { libc::pthread_self() } as u64;
    let high = (thread_block & !(PAGE - 1)) + PAGE;
    let low = high.saturating_sub(size);
    let local_address = &raw const high as u64;
    if (low..high).contains(&local_address) {
        slot.stack.set_exact(low, high);
    }
}

/// Installs a signal stack if the thread lacks one, because a signal may arrive when the thread has almost used up its
/// own stack.
fn install_signal_stack(recording: &Recording, slot: &Slot) {
    if recording.gives_signal_stacks && signal_stack().is_none() {
        let stack = libc::stack_t { ss_sp: slot.signal_stack().cast(), ss_flags: 0, ss_size: SIGNAL_STACK_BYTES };
        // SAFETY: the memory is never unmapped, and no other thread uses it while this thread exists.
        unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) };
    }
}

/// Returns the calling thread's signal stack. `None` if the thread lacks one, or if it cannot be read.
pub(crate) fn signal_stack() -> Option<libc::stack_t> {
    let mut stack = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: the call only writes the current state to valid memory.
    let result = unsafe { libc::sigaltstack(ptr::null(), stack.as_mut_ptr()) };
    // SAFETY: a successful call has initialized `stack`.
    (result == 0).then(|| unsafe { stack.assume_init() }).filter(|stack| stack.ss_flags & libc::SS_DISABLE == 0)
}

/// Stops sampling an exiting thread. The slot may date from before a fork; in that case it belongs to another thread,
/// or is free.
unsafe extern "C" fn handle_thread_exit(slot: *mut c_void) {
    let _host_state = HostStateGuard::enter();
    // SAFETY: `adopt_this_thread` stored the address of a slot, and slots live forever.
    let slot = unsafe { &*slot.cast::<Slot>() };
    if slot.state.tid() == clock::own_tid() {
        arming::retire_slot(slot);
        let _ = std::panic::catch_unwind(exit::end_before_last_thread);
    }
}

/// Creates the thread-specific key whose destructor reports a thread's exit, however the thread ends. `None` if no key
/// is available; the thread scan then notices the exit of threads.
pub(crate) fn create_exit_key() -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: the destructor is a function of this library, which is never unloaded.
    (unsafe { libc::pthread_key_create(&raw mut key, Some(handle_thread_exit)) } == 0).then_some(key)
}

/// Separates the calling thread of a fork child from its slot, which describes a thread of the parent.
pub(crate) fn forget_exit_key(recording: &Recording) {
    if let Some(key) = recording.exit_key {
        // SAFETY: the key is never deleted.
        unsafe { libc::pthread_setspecific(key, ptr::null()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::slot_state::State;
    use crate::thread::slots;

    /// In a fork child, a slot may have a new owner.
    #[test]
    fn an_exiting_thread_leaves_the_slots_of_others_alone() {
        let _lock = slots::lock_for_test();
        for (tid, state) in [(clock::own_tid() + 1, State::Armed), (clock::own_tid(), State::Ended)] {
            let slot = slots::claim(tid).unwrap().1;
            slot.state.set(State::Armed);
            // SAFETY: the argument is the address of a slot, as for the key's destructor.
            unsafe { handle_thread_exit(ptr::from_ref(slot).cast_mut().cast()) };
            assert!(slot.state.change(state, State::Free));
        }
    }
}
