//! A thread arms itself, so that it is sampled, and frees its slot when it exits.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering;

use jitlisten::plumbing::HostStateGuard;

use crate::recording::current::{self, Recording};
use crate::system::clock;
use crate::thread::arming;
use crate::thread::run_queue::SchedulerTimes;
use crate::thread::slot::{SIGNAL_STACK_BYTES, Slot};
use crate::transparency::exit;

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
    let host_state = HostStateGuard::enter();
    // SAFETY: `adopt_this_thread` stored the address of a slot, and slots live forever.
    let slot = unsafe { &*slot.cast::<Slot>() };
    if slot.state.tid() == clock::own_tid() {
        arming::retire_slot(slot);
        // The last thread runs the handlers of `exit(3)`, which may need its signals.
        if std::panic::catch_unwind(exit::end_before_last_thread).unwrap_or(false) {
            host_state.leave_in_exiting_thread();
        }
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
