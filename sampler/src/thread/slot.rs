//! Per-thread resources of the sampler: a timer, a sample ring, a rule cache and a signal stack.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::recording::current::Recording;
use crate::system::clock::ThreadUsage;
use crate::thread::clock_choice::ClockChoice;
use crate::thread::pace::Pace;
use crate::thread::ring::{MAX_NATIVE_FRAMES, Ring, Sample};
use crate::thread::run_queue::RunQueue;
use crate::thread::slot_state::SlotState;
use crate::thread::source::{Measure, Source};
use crate::thread::stack_bounds::StackBounds;
use crate::thread::ticks::Ticks;
use crate::thread::wait::Wait;
use crate::unwind::{Outcome, RuleCache};

/// Maximum number of anchors per stack. Evaluators beyond the limit are matched with Python frames by their order.
pub(crate) const MAX_ANCHORS: usize = MAX_NATIVE_FRAMES as usize;
/// Size of the signal stack for a thread without one of its own.
pub(crate) const SIGNAL_STACK_BYTES: usize = 64 << 10;
/// Size of the buffer for stack memory that the kernel copies.
pub(crate) const STACK_COPY_BYTES: usize = 64 << 10;
/// Number of samples that a thread should have had by the time it ends, for its lack of samples not to be chance.
const MIN_BLOCKED_SAMPLES: u64 = 32;

/// The resources of one sampled thread. Zeroed memory is a free slot.
#[repr(C, align(4096))]
pub(crate) struct Slot {
    pub(crate) state: SlotState,
    pub(crate) source: Source,
    pub(crate) ticks: Ticks,
    pub(crate) clock_choice: ClockChoice,
    pub(crate) stack: StackBounds,
    pub(crate) pace: Pace,
    pub(crate) wait: Wait,
    pub(crate) run_queue: RunQueue,
    pub(crate) python: PythonThread,
    /// Number of COMM records written for the owner (saturating).
    pub(crate) comm_records: AtomicU32,
    /// Address of the function that `pthread_create` was given; 0 if unknown.
    pub(crate) thread_function: AtomicU64,
    pub(crate) ring: Ring,
    cache: UnsafeCell<RuleCache>,
    anchors: UnsafeCell<[u64; MAX_ANCHORS]>,
    signal_stack: UnsafeCell<[u8; SIGNAL_STACK_BYTES]>,
    /// Stack memory copied by the kernel.
    stack_copy: UnsafeCell<[u64; STACK_COPY_BYTES / 8]>,
}

// SAFETY: the handler owns `cache`, `anchors` and `stack_copy`; it runs in one thread and never nests. `signal_stack`
// is only passed to the kernel.
unsafe impl Sync for Slot {}

/// CPython's state of a thread, if it had to be searched for in the interpreter's lists. All zeros: not searched.
#[derive(Debug)]
pub(crate) struct PythonThread {
    state: AtomicU64,
    /// Number of searches that found no state.
    misses: AtomicU32,
}

impl PythonThread {
    /// State that the last search found; 0 if none.
    pub(crate) fn last(&self) -> u64 {
        self.state.load(Ordering::Relaxed)
    }

    /// Returns true if this sample should search for the state. Threads without a state skip most searches.
    pub(crate) fn may_search(&self) -> bool {
        let misses = self.misses.fetch_add(1, Ordering::Relaxed);
        misses <= 4 || misses.is_multiple_of(32)
    }

    pub(crate) fn set(&self, state: u64) {
        self.state.store(state, Ordering::Relaxed);
    }
}

impl Slot {
    /// Resets the slot for a new owner or recording. Returns false if a late handler of the previous owner is still
    /// using it.
    pub(super) fn reset_for_owner(&self, tid: u32) -> bool {
        let is_mine = self.state.change_owner(tid);
        if is_mine {
            self.comm_records.store(0, Ordering::Relaxed);
            self.thread_function.store(0, Ordering::Relaxed);
            self.python.set(0);
            self.python.misses.store(0, Ordering::Relaxed);
            self.source.reset();
            self.stack.reset();
            self.pace.reset();
            self.wait.reset();
            self.clock_choice.reset();
            self.ring.forget_samples();
        }
        is_mine
    }

    /// Resets the slot in a fork child, because the timer and the samples belong to the parent.
    pub(super) fn reset_in_child(&self) {
        self.state.forget_handlers();
        self.ring.discard_unread();
        self.source.forget_timer();
    }

    /// Returns the thread's time, or its counted events, since the previous call.
    pub(crate) fn take_unaccounted(&self) -> u64 {
        self.source.take_unaccounted(self.state.tid())
    }

    /// Re-enables the slot's counter, if any, after a signal.
    pub(crate) fn resume_counter(&self) {
        self.source.resume_counter();
    }

    /// Appends a sample without a stack, for the time that the thread has waited since the last sample. Called once the
    /// thread no longer waits.
    ///
    /// # Safety
    /// Same contract as [`Ring::finish_sample`].
    pub(crate) unsafe fn flush_idle(&self, time: u64) {
        if self.wait.idle_ns() != 0 && self.ring.free_words().is_some() {
            // SAFETY: the caller upholds this function's contract, and the ring has space for a sample.
            unsafe { self.ring.repeat_last(time, self.wait.take_idle()) };
        }
    }

    /// Stores the thread's total. The time since the last sample is charged to no stack, because the thread has not
    /// spent it where it exits. Only a thread that has blocked signals all the time gets a sample of its function.
    ///
    /// # Safety
    /// Only call in the slot's thread, when its handler can no longer run.
    pub(super) unsafe fn close(&self, time: u64, recording: &Recording) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.flush_idle(time) };
        self.source.set_final_total(self.state.tid());
        if self.source.measure() != Measure::CpuTime {
            return;
        }
        let (period, function) = (self.take_unaccounted(), self.thread_function.load(Ordering::Relaxed));
        let has_user_clock = self.source.counter().is_some();
        self.ticks.end(recording.ticks, &recording.short_threads, ThreadUsage::of_caller(), period, has_user_clock);
        let is_blocked = !self.ring.has_sample() && period >= recording.ticks.sample_ns * MIN_BLOCKED_SAMPLES;
        if is_blocked && function != 0 && self.ring.free_words().is_some() {
            // SAFETY: the caller upholds this function's contract, and the ring has space for a sample.
            unsafe {
                self.ring.put_word(0, function);
                self.ring.finish_sample(Sample { time, period, outcome: Outcome::Complete, count: 1 });
            }
        }
    }

    /// Rule cache, for the handler of the slot's thread.
    pub(crate) fn cache(&self) -> *mut RuleCache {
        self.cache.get()
    }

    /// Addresses of evaluator data on the C stack, for the handler of the slot's thread.
    pub(crate) fn anchors(&self) -> *mut [u64; MAX_ANCHORS] {
        self.anchors.get()
    }

    pub(crate) fn signal_stack(&self) -> *mut u8 {
        self.signal_stack.get().cast()
    }

    /// Buffer of [`STACK_COPY_BYTES`], for the handler of the slot's thread.
    pub(crate) fn stack_copy(&self) -> *mut u64 {
        self.stack_copy.get().cast()
    }
}
