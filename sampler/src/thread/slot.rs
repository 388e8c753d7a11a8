//! Per-thread resources of the sampler: a timer, a sample ring, a rule cache and a signal stack.
//!
//! ```text
//!   handler (one thread) --words--> ring --words--> writer
//!   word 0: word count << 8 | outcome of the walk    1: time    2: period
//!   3..: Python frames, then native addresses, innermost first (`python`); no words: the stack of the previous sample
//! ```
//! Slots are allocated in blocks that are never unmapped: a signal may arrive late, and a thread may use the signal
//! stack in its slot.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::thread::pace::Pace;
use crate::unwind::{Outcome, RuleCache};

/// Value of `stack_probes` for a stack whose bounds are known exactly; it is never probed.
pub(crate) const EXACT_STACK_BOUNDS: u32 = u32::MAX;
/// Limit for the anchors of one stack. Evaluators beyond it are joined in order.
pub(crate) const MAX_ANCHORS: usize = MAX_NATIVE_FRAMES as usize;

/// PID of the recorded process; 0 if none. A vfork child, which shares this memory, must not sample.
pub(crate) static RECORDED_PID: AtomicU32 = AtomicU32::new(0);

/// Words in a ring: space for one sample of maximal depth and about a second of ordinary ones. Untouched pages
/// take no memory.
const RING_WORDS: usize = 1 << 15;
/// Words before the stack of a sample.
const HEADER_WORDS: u64 = 3;
/// A sample is dropped if the ring has fewer free words than this.
const MIN_FREE_WORDS: u64 = 256;
/// Limit for the native frames of one sample.
pub(crate) const MAX_NATIVE_FRAMES: u64 = 4096;
/// Limit for the words of one sample: native frames, Python frames and evaluator marks.
const MAX_SAMPLE_WORDS: u64 = 3 * MAX_NATIVE_FRAMES;
/// Size of the signal stack for a thread that has none.
pub(crate) const SIGNAL_STACK_BYTES: usize = 64 << 10;

/// Size of the buffer for stack memory that the kernel copies.
pub(crate) const STACK_COPY_BYTES: usize = 64 << 10;

const SLOTS_PER_BLOCK: usize = 32;
const MAX_BLOCKS: usize = 512;

/// Slot state: free for any thread.
pub(crate) const FREE: u32 = 0;
/// Slot state: being filled in.
pub(crate) const CLAIMED: u32 = 1;
/// Slot state: the timer is running.
pub(crate) const ARMED: u32 = 2;
/// Slot state: no timer is running. The thread may still be alive, and the ring may hold samples to write.
pub(crate) const ENDED: u32 = 3;

/// The resources of one sampled thread. Zeroed memory is a free slot.
#[repr(C, align(4096))]
pub(crate) struct Slot {
    pub(crate) state: AtomicU32,
    pub(crate) tid: AtomicU32,
    /// Generation of the owner; distinguishes the signals of successive owners.
    pub(crate) generation: AtomicU32,
    /// Timer id, or file descriptor of the counter; -1 if none.
    pub(crate) timer: AtomicI32,
    /// Id of the perf counter; 0 if the slot uses a timer.
    pub(crate) counter_id: AtomicU64,
    /// Number of handlers now running for this slot: the owner's, and briefly that of a previous owner.
    pub(crate) running_handlers: AtomicU64,
    /// Samples dropped for lack of space since the writer last looked.
    pub(crate) lost: AtomicU64,
    /// Signals skipped because samples take too long.
    pub(crate) skipped: AtomicU64,
    /// Time or events of skipped signals; the next sample's period includes them.
    pub(crate) pending_period: AtomicU64,
    /// Wall-clock mode: time the thread has waited at the stack of its last sample, in ns (`wall_clock`).
    pub(crate) idle_ns: AtomicU64,
    /// Wall-clock mode: the system call in which the signal found the thread, as return address << 16 | number; 0 if
    /// none.
    pub(crate) interrupted_call: AtomicU64,
    /// Stack pointer in `interrupted_call`.
    pub(crate) interrupted_stack: AtomicU64,
    pub(crate) pace: Pace,
    /// Number of COMM records written for the owner (saturating).
    pub(crate) comm_records: AtomicU32,
    /// Thread time, or counter value, that the periods of all samples so far add up to.
    pub(crate) accounted_total: AtomicU64,
    /// Timer period in ns.
    pub(crate) period: AtomicU64,
    /// Delay before the timer's first signal in ns; 0 after that signal.
    pub(crate) first_period: AtomicU64,
    /// Lower bound of the thread's own stack. Above a stack pointer between the bounds, everything is mapped. 0 if
    /// unknown.
    pub(crate) stack_low: AtomicU64,
    /// Upper bound of the thread's own stack; 0 if unknown.
    pub(crate) stack_high: AtomicU64,
    /// Number of attempts to find the bounds, or [`EXACT_STACK_BOUNDS`].
    pub(crate) stack_probes: AtomicU32,
    /// Address of the function that `pthread_create` was given; 0 if unknown.
    pub(crate) thread_function: AtomicU64,
    /// CPython's state of this thread, if it had to be searched for in the interpreter's lists.
    pub(crate) python_state: AtomicU64,
    /// Number of searches that found no such state.
    pub(crate) python_misses: AtomicU32,
    /// Ring position of the last sample plus one; 0 if none.
    last_sample: AtomicU64,
    write_position: AtomicU64,
    read_position: AtomicU64,
    cache: UnsafeCell<RuleCache>,
    anchors: UnsafeCell<[u64; MAX_ANCHORS]>,
    ring: UnsafeCell<[u64; RING_WORDS]>,
    signal_stack: UnsafeCell<[u8; SIGNAL_STACK_BYTES]>,
    /// Stack memory copied by the kernel.
    stack_copy: UnsafeCell<[u64; STACK_COPY_BYTES / 8]>,
}

// SAFETY: the handler owns `cache`, `anchors`, `stack_copy` and the free part of `ring`; it runs in one thread and
// never nests. The writer owns the filled part of `ring`. `signal_stack` is only passed to the kernel.
unsafe impl Sync for Slot {}

static SLOT_BLOCKS: [AtomicPtr<Slot>; MAX_BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_BLOCKS];
/// Number of slots that were ever used.
static USED_SLOTS: AtomicUsize = AtomicUsize::new(0);
/// Index below which all slots are in use, except recently released ones.
static FIRST_FREE_HINT: AtomicUsize = AtomicUsize::new(0);
/// Owner of each slot, in one array: the slots themselves are far apart, and visiting thousands of them is slow.
static OWNER_TIDS: [AtomicU32; SLOTS_PER_BLOCK * MAX_BLOCKS] =
    [const { AtomicU32::new(0) }; SLOTS_PER_BLOCK * MAX_BLOCKS];

/// A sample read from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) time: u64,
    pub(crate) period: u64,
    pub(crate) outcome: Outcome,
    pub(crate) count: u64,
}

/// Returns the slot with this index, if its block is allocated.
pub(crate) fn get(index: usize) -> Option<&'static Slot> {
    let block = SLOT_BLOCKS.get(index / SLOTS_PER_BLOCK)?.load(Ordering::Acquire);
    if block.is_null() {
        return None;
    }
    // SAFETY: a block has this many slots, is never unmapped, and all zeros is a valid slot.
    Some(unsafe { &*block.add(index % SLOTS_PER_BLOCK) })
}

/// Iterates over all slots that were ever used, with their indexes.
pub(crate) fn iter() -> impl Iterator<Item = (usize, &'static Slot)> {
    (0..USED_SLOTS.load(Ordering::Acquire)).filter_map(|index| Some((index, get(index)?)))
}

/// Iterates over the slots whose last owner is this thread.
pub(crate) fn find_by_tid(tid: u32) -> impl Iterator<Item = (usize, &'static Slot)> {
    let owner_tids = OWNER_TIDS.iter().take(USED_SLOTS.load(Ordering::Acquire)).enumerate();
    let slots = owner_tids.filter(move |(_, owner)| owner.load(Ordering::Acquire) == tid);
    slots.filter_map(|(index, _)| Some((index, get(index)?)))
}

/// Claims a slot for a thread and leaves it [`CLAIMED`]. Returns `None` if all are in use. Prefers the thread's
/// previous slot: the thread may still use the signal stack in it.
pub(crate) fn claim(tid: u32) -> Option<(usize, &'static Slot)> {
    for (index, slot) in find_by_tid(tid) {
        if slot.state.compare_exchange(ENDED, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            if slot.reset_for_owner(index, tid) {
                return Some((index, slot));
            }
            slot.state.store(ENDED, Ordering::Release);
        }
    }
    let (start, mut first_busy) = (FIRST_FREE_HINT.load(Ordering::Acquire), None);
    for index in (start..SLOTS_PER_BLOCK * MAX_BLOCKS).chain(0..start) {
        let slot = match get(index) {
            Some(slot) => slot,
            None => {
                make_block(index / SLOTS_PER_BLOCK)?;
                get(index)?
            }
        };
        if slot.state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            USED_SLOTS.fetch_max(index + 1, Ordering::AcqRel);
            FIRST_FREE_HINT.fetch_max(index + 1, Ordering::AcqRel);
            if slot.reset_for_owner(index, tid) {
                // A slot that was passed over, because a late handler was still in it, will be free soon.
                FIRST_FREE_HINT.fetch_min(first_busy.unwrap_or(usize::MAX), Ordering::AcqRel);
                return Some((index, slot));
            }
            slot.state.store(FREE, Ordering::Release);
            first_busy = first_busy.or(Some(index));
        }
    }
    None
}

fn make_block(number: usize) -> Option<()> {
    let size = SLOTS_PER_BLOCK * size_of::<Slot>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory at an address that the kernel chooses.
    let block = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
    if block == libc::MAP_FAILED {
        return None;
    }
    let entry = SLOT_BLOCKS.get(number)?;
    let published = entry.compare_exchange(ptr::null_mut(), block.cast(), Ordering::AcqRel, Ordering::Acquire);
    if published.is_err() {
        // Another thread has allocated this block in the meantime.
        // SAFETY: mapped above, and not published.
        unsafe { libc::munmap(block, size) };
    }
    Some(())
}

impl Slot {
    /// Resets the slot for a new owner or recording. Returns false if a late handler of the previous owner is still in
    /// it.
    fn reset_for_owner(&self, index: usize, tid: u32) -> bool {
        self.set_owner(index, tid);
        self.generation.fetch_add(1, Ordering::SeqCst);
        // A handler that saw the previous owner has raised the count by now; any later one sees the new owner.
        if self.running_handlers.load(Ordering::SeqCst) != 0 {
            return false;
        }
        self.comm_records.store(0, Ordering::Relaxed);
        self.thread_function.store(0, Ordering::Relaxed);
        self.python_state.store(0, Ordering::Relaxed);
        self.python_misses.store(0, Ordering::Relaxed);
        self.last_sample.store(0, Ordering::Relaxed);
        self.pace.reset();
        for field in [
            &self.first_period,
            &self.pending_period,
            &self.idle_ns,
            &self.interrupted_call,
            &self.stack_low,
            &self.stack_high,
        ] {
            field.store(0, Ordering::Relaxed);
        }
        self.stack_probes.store(0, Ordering::Relaxed);
        true
    }

    fn set_owner(&self, index: usize, tid: u32) {
        OWNER_TIDS.get(index).inspect(|owner| owner.store(tid, Ordering::Release));
        self.tid.store(tid, Ordering::SeqCst);
    }

    /// Frees a slot that is [`CLAIMED`].
    pub(crate) fn release(&self, index: usize) {
        self.state.store(FREE, Ordering::Release);
        FIRST_FREE_HINT.fetch_min(index, Ordering::AcqRel);
    }

    /// Rule cache, for the handler of the slot's thread.
    pub(crate) fn cache(&self) -> *mut RuleCache {
        self.cache.get()
    }

    /// Sets the exact bounds of the thread's own stack.
    pub(crate) fn set_stack(&self, low: u64, high: u64) {
        self.stack_low.store(low, Ordering::Relaxed);
        self.stack_high.store(high, Ordering::Relaxed);
        self.stack_probes.store(EXACT_STACK_BOUNDS, Ordering::Relaxed);
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

    fn word(&self, position: u64) -> *mut u64 {
        // SAFETY: the remainder is within the ring.
        unsafe { self.ring.get().cast::<u64>().add(position as usize % RING_WORDS) }
    }

    /// Returns how many stack words the next sample may have; `None` if too few are free.
    pub(crate) fn free_words(&self) -> Option<u64> {
        let used_words =
            self.write_position.load(Ordering::Relaxed).wrapping_sub(self.read_position.load(Ordering::Acquire));
        (RING_WORDS as u64)
            .checked_sub(used_words + HEADER_WORDS)
            .filter(|&space| space >= MIN_FREE_WORDS)
            .map(|space| space.min(MAX_SAMPLE_WORDS))
    }

    /// True if the ring is more than half full and should be drained soon.
    pub(crate) fn is_half_full(&self) -> bool {
        let used_words =
            self.write_position.load(Ordering::Relaxed).wrapping_sub(self.read_position.load(Ordering::Relaxed));
        used_words > RING_WORDS as u64 / 2
    }

    /// Writes one word of the sample under construction. `number` must be less than the result of [`Slot::free_words`].
    ///
    /// # Safety
    /// Only call from the handler of the slot's thread.
    pub(crate) unsafe fn put_word(&self, number: u64, address: u64) {
        let position = self.write_position.load(Ordering::Relaxed) + HEADER_WORDS + number;
        // SAFETY: this word is free, so it belongs to the handler.
        unsafe { self.word(position).write(address) };
    }

    /// Completes the sample under construction.
    ///
    /// # Safety
    /// Only call from the handler of the slot's thread.
    pub(crate) unsafe fn finish_sample(&self, sample: Sample) {
        self.last_sample.store(self.write_position.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.append(sample) };
    }

    /// Appends a sample without a stack, which repeats the last one for the time that the thread has waited there.
    /// Called when the thread has moved on.
    ///
    /// # Safety
    /// Same contract as [`Slot::finish_sample`].
    pub(crate) unsafe fn flush_idle(&self, time: u64) {
        if self.idle_ns.load(Ordering::Relaxed) != 0 && self.free_words().is_some() {
            let period = self.idle_ns.swap(0, Ordering::Relaxed);
            // SAFETY: the caller upholds this function's contract.
            unsafe { self.append(Sample { time, period, outcome: Outcome::Complete, count: 0 }) };
        }
    }

    unsafe fn append(&self, sample: Sample) {
        let start = self.write_position.load(Ordering::Relaxed);
        let head = sample.count << 8 | sample.outcome as u64;
        for (number, word) in (0..).zip([head, sample.time, sample.period]) {
            // SAFETY: the callers checked that there is space, so these words belong to the handler.
            unsafe { self.word(start + number).write(word) };
        }
        self.write_position.store(start + HEADER_WORDS + sample.count, Ordering::Release);
    }

    /// Writes the thread's final sample. The time since the last sample is charged to that sample's stack, or to the
    /// thread's function.
    ///
    /// # Safety
    /// Only call in the slot's thread, when its handler can no longer run.
    pub(crate) unsafe fn close_ring(&self, time: u64, period: u64) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.flush_idle(time) };
        if self.free_words().is_none() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut sample = Sample { time, period, outcome: Outcome::Complete, count: 0 };
        match self.last_sample.load(Ordering::Relaxed).checked_sub(1) {
            Some(last_start) => {
                // The last sample is not overwritten yet: the ring is much larger than a sample.
                // SAFETY: only this thread writes to the ring.
                let head = unsafe { self.word(last_start).read() };
                sample.count = (head >> 8).min(MAX_SAMPLE_WORDS).min(self.free_words().unwrap_or(0));
                sample.outcome = decode_outcome(head);
                for number in 0..sample.count {
                    // SAFETY: only this thread writes to the ring.
                    let address = unsafe { self.word(last_start + HEADER_WORDS + number).read() };
                    // SAFETY: the caller upholds this function's contract; `count` is at most the free space.
                    unsafe { self.put_word(number, address) };
                }
            }
            None => {
                let start = self.thread_function.load(Ordering::Relaxed);
                if start == 0 {
                    return;
                }
                sample.count = 1;
                // SAFETY: the caller upholds this function's contract; there is space for one sample.
                unsafe { self.put_word(0, start) };
            }
        }
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.finish_sample(sample) };
    }

    /// Frees the slot of a thread that has exited, unless a new thread with the same id has claimed it.
    pub(crate) fn free_ended(&self, index: usize) {
        if self.state.compare_exchange(ENDED, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.release(index);
        }
    }

    /// Resets the slot in a fork child. Keeps it for the only thread `tid` if that thread uses its signal stack.
    fn reset_in_child(&self, index: usize, tid: u32, signal_stack: *mut c_void) {
        self.running_handlers.store(0, Ordering::Relaxed);
        self.read_position.store(self.write_position.load(Ordering::Relaxed), Ordering::Relaxed);
        if self.counter_id.load(Ordering::Relaxed) == 0 {
            self.timer.store(-1, Ordering::Relaxed);
        }
        let uses_signal_stack = self.signal_stack().cast() == signal_stack;
        if uses_signal_stack {
            self.set_owner(index, tid);
        }
        self.state.store(if uses_signal_stack { ENDED } else { FREE }, Ordering::Relaxed);
        FIRST_FREE_HINT.store(0, Ordering::Relaxed);
    }

    /// Copies the oldest sample out of the ring, and its words into `stack`. Only for the writer.
    pub(crate) fn peek(&self, stack: &mut Vec<u64>) -> Option<Sample> {
        let start = self.read_position.load(Ordering::Relaxed);
        if self.write_position.load(Ordering::Acquire) == start {
            return None;
        }
        // SAFETY: words before `write_position` belong to the reader, and there is only one reader.
        let [head, time, period] = [0, 1, 2].map(|number| unsafe { self.word(start + number).read() });
        let count = (head >> 8).min(MAX_SAMPLE_WORDS);
        stack.clear();
        // SAFETY: all words of a sample are before `write_position`.
        stack.extend((0..count).map(|number| unsafe { self.word(start + HEADER_WORDS + number).read() }));
        Some(Sample { time, period, outcome: decode_outcome(head), count })
    }

    /// True if every sample has been read.
    pub(crate) fn is_drained(&self) -> bool {
        self.read_position.load(Ordering::Relaxed) == self.write_position.load(Ordering::Acquire)
    }

    /// Removes the oldest sample, which [`Slot::peek`] has returned.
    pub(crate) fn pop(&self, sample: &Sample) {
        self.read_position
            .store(self.read_position.load(Ordering::Relaxed) + HEADER_WORDS + sample.count, Ordering::Release);
    }
}

fn decode_outcome(head: u64) -> Outcome {
    match head & 0xff {
        0 => Outcome::Complete,
        1 => Outcome::Truncated,
        2 => Outcome::UnknownCode,
        _ => Outcome::Broken,
    }
}

/// Discards samples that arrived after the end of the previous recording. Only call while no handler writes.
pub(crate) fn discard_unread_samples() {
    for (_, slot) in iter() {
        slot.read_position.store(slot.write_position.load(Ordering::Acquire), Ordering::Release);
        slot.lost.store(0, Ordering::Relaxed);
        slot.skipped.store(0, Ordering::Relaxed);
    }
}

/// Resets all slots in a fork child. The sampled threads do not exist there, and timers are not inherited: timers with
/// the same ids belong to the program. The only thread, now `tid`, keeps the slot that contains its signal stack.
pub(crate) fn reset_all_in_child(tid: u32, signal_stack: *mut c_void) {
    iter().for_each(|(index, slot)| slot.reset_in_child(index, tid, signal_stack));
}

/// Serializes tests that use process-wide state: slots, published code, the recorder.
#[cfg(test)]
pub(crate) fn lock_for_test() -> std::sync::MutexGuard<'static, ()> {
    static TEST_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TEST_LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_come_out_as_they_went_in_and_a_full_ring_says_so() {
        let _lock = lock_for_test();
        let (index, slot) = claim(7).unwrap();
        assert!(std::ptr::eq(get(index).unwrap(), slot));
        let mut stack = Vec::new();
        let mut number = 0;
        for _ in 0..3 {
            let first = number;
            while slot.free_words().is_some() {
                let sample = Sample { time: number, period: 5, outcome: Outcome::Broken, count: 20 };
                // SAFETY: this test is the only user of the slot.
                (0..20).for_each(|address| unsafe { slot.put_word(address, number + address) });
                // SAFETY: this test is the only user of the slot.
                unsafe { slot.finish_sample(sample) };
                number += 1;
                assert_eq!(slot.is_half_full(), (number - first) * 23 > RING_WORDS as u64 / 2);
            }
            assert!(number - first > 300);
            for expected_number in first..number {
                let sample = slot.peek(&mut stack).unwrap();
                slot.pop(&sample);
                assert_eq!((sample.time, sample.period, sample.outcome), (expected_number, 5, Outcome::Broken));
                assert!(stack.iter().copied().eq(expected_number..expected_number + 20));
            }
            assert_eq!(slot.peek(&mut stack), None);
        }
    }

    /// A handler that has checked the slot's owner must not share the ring with the next owner.
    #[test]
    fn a_slot_that_a_late_handler_is_in_is_no_new_threads() {
        let _lock = lock_for_test();
        let (index, slot) = claim(15).unwrap();
        slot.running_handlers.fetch_add(1, Ordering::SeqCst);
        slot.release(index);
        let (second_index, _) = claim(16).unwrap();
        assert_ne!(second_index, index);
        slot.running_handlers.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(claim(17).unwrap().0, index);
        for index in [index, second_index] {
            get(index).unwrap().release(index);
        }
    }

    /// With a common signal stack, two threads would overwrite each other's frames.
    #[test]
    fn in_a_child_the_thread_that_forked_keeps_its_signal_stack() {
        let _lock = lock_for_test();
        let ((kept_index, kept), (other_index, other_slot)) = (claim(11).unwrap(), claim(12).unwrap());
        for (index, slot) in [(kept_index, kept), (other_index, other_slot)] {
            slot.timer.store(0, Ordering::Relaxed);
            slot.state.store(ARMED, Ordering::Relaxed);
            slot.reset_in_child(index, 13, kept.signal_stack().cast());
            assert_eq!(slot.timer.load(Ordering::Relaxed), -1, "the program may have a timer of that number");
        }
        assert_eq!(other_slot.state.load(Ordering::Relaxed), FREE);
        assert!(!std::ptr::eq(claim(14).unwrap().1, kept) && std::ptr::eq(claim(13).unwrap().1, kept));
    }
}
