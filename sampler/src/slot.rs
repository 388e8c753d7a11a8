//! The resources of one sampled thread: a timer, a ring for its samples, a cache of rules, a signal stack.
//!
//! ```text
//!   handler (one thread) --words--> ring --words--> writer
//!   word 0: count of words << 8 | how the walk ended    1: time    2: nanoseconds
//!   3..: the interpreter's frames, then addresses, innermost first (`python`); none: those of the sample before
//! ```
//! Slots are allocated in blocks that are never unmapped: a signal may arrive late, and a thread may have its signal
//! stack here.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::pace::Pace;
use crate::unwind::{Outcome, RuleCache};

/// Of a stack that is not probed: where it ends is known.
pub(crate) const EXACT: u32 = u32::MAX;
/// Anchors of one stack, at most. Evaluators beyond them are joined in their order.
pub(crate) const MOST_ANCHORS: usize = MOST_FRAMES as usize;

/// The process that samples; a child that shares memory or handlers does not.
pub(crate) static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Words of a ring: a deepest stack, and a second of others. What is never used is never there.
const RING: usize = 1 << 15;
const HEAD: u64 = 3;
/// A sample is not written where there is space for fewer words.
const FEWEST: u64 = 256;
/// Native frames of one sample at most.
pub(crate) const MOST_FRAMES: u64 = 4096;
/// Words of one sample at most: both kinds of frames, and marks of evaluators.
const MOST_WORDS: u64 = 3 * MOST_FRAMES;
/// For the signals of a thread that has no stack for them.
pub(crate) const SIGNAL_STACK: usize = 64 << 10;

/// Bytes of a stack that are copied at once, at most.
pub(crate) const COPY: usize = 64 << 10;

const BLOCK: usize = 32;
const BLOCKS: usize = 512;

/// Free for any thread.
pub(crate) const FREE: u32 = 0;
/// Being filled in.
pub(crate) const CLAIMED: u32 = 1;
/// A timer runs.
pub(crate) const ARMED: u32 = 2;
/// No timer runs; the thread may live, and what is in the ring is to be written.
pub(crate) const ENDED: u32 = 3;

/// See the module's head. All zeros is a free one.
#[repr(C, align(4096))]
pub(crate) struct Slot {
    pub(crate) state: AtomicU32,
    pub(crate) tid: AtomicU32,
    /// Distinguishes the signals of the slot's owners.
    pub(crate) generation: AtomicU32,
    /// The timer's number, or the counter's descriptor; -1: none.
    pub(crate) timer: AtomicI32,
    /// The counter's number; 0: it is a timer.
    pub(crate) counter: AtomicU64,
    /// Handlers that run: of this thread, and for a moment of one that the slot was before.
    pub(crate) running: AtomicU64,
    pub(crate) lost: AtomicU64,
    /// Signals without a sample, because samples take long; and their periods, which the next sample gets.
    pub(crate) skipped: AtomicU64,
    pub(crate) owed: AtomicU64,
    /// By wall-clock time: for how long the thread has been where its last sample was (`waiting`).
    pub(crate) idle: AtomicU64,
    /// The system call that the thread was found in when it was sent a signal: where it returns to << 16 | its number;
    /// 0: none. And where the stack was.
    pub(crate) call: AtomicU64,
    pub(crate) call_stack: AtomicU64,
    pub(crate) pace: Pace,
    /// What the writer has made a record of.
    pub(crate) announced: AtomicU32,
    /// How much of the thread's clock, or of its counter, is in the periods of samples so far.
    pub(crate) clock: AtomicU64,
    /// Nanoseconds between two signals of the timer; for the next one, if it is the first, so many.
    pub(crate) period: AtomicU64,
    pub(crate) first: AtomicU64,
    /// Where the thread's own stack is: all of it above a stack pointer between these is mapped. 0: not known.
    pub(crate) stack_low: AtomicU64,
    pub(crate) stack_high: AtomicU64,
    pub(crate) stack_attempts: AtomicU32,
    /// The thread's function, where it is known.
    pub(crate) start: AtomicU64,
    /// The interpreter's state of the thread, where it had to be looked for, and how often it was not found.
    pub(crate) python_state: AtomicU64,
    pub(crate) python_misses: AtomicU32,
    /// Where in the ring its last sample begins, and one; 0: none.
    last: AtomicU64,
    written: AtomicU64,
    read: AtomicU64,
    cache: UnsafeCell<RuleCache>,
    anchors: UnsafeCell<[u64; MOST_ANCHORS]>,
    ring: UnsafeCell<[u64; RING]>,
    stack: UnsafeCell<[u8; SIGNAL_STACK]>,
    /// What the kernel has copied of a stack.
    copied: UnsafeCell<[u64; COPY / 8]>,
}

// SAFETY: `cache`, `anchors`, `copied` and the free part of `ring` are the handler's, which runs in one thread and not
// nested; the filled part is the writer's. `stack` is only handed to the kernel.
unsafe impl Sync for Slot {}

static SLOTS: [AtomicPtr<Slot>; BLOCKS] = [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];
/// No slot from here on was ever used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Slots below are in use, except those released meanwhile.
static FREE_FROM: AtomicUsize = AtomicUsize::new(0);
/// The thread of each slot, close together: with thousands of slots, which are far apart, a look at each of them takes
/// long.
static TIDS: [AtomicU32; BLOCK * BLOCKS] = [const { AtomicU32::new(0) }; BLOCK * BLOCKS];

/// A sample as it was read from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) time: u64,
    pub(crate) period: u64,
    pub(crate) outcome: Outcome,
    pub(crate) count: u64,
}

/// The slot of that number, if there is one.
pub(crate) fn get(index: usize) -> Option<&'static Slot> {
    let block = SLOTS.get(index / BLOCK)?.load(Ordering::Acquire);
    if block.is_null() {
        return None;
    }
    // SAFETY: a block has that many slots, is never unmapped, and all zeros is a valid slot.
    Some(unsafe { &*block.add(index % BLOCK) })
}

/// All slots that were ever used, with their numbers.
pub(crate) fn all() -> impl Iterator<Item = (usize, &'static Slot)> {
    (0..USED.load(Ordering::Acquire)).filter_map(|index| Some((index, get(index)?)))
}

/// The slots that were last this thread's.
pub(crate) fn of(tid: u32) -> impl Iterator<Item = (usize, &'static Slot)> {
    let used = TIDS.iter().take(USED.load(Ordering::Acquire)).enumerate();
    let slots = used.filter(move |(_, owner)| owner.load(Ordering::Acquire) == tid);
    slots.filter_map(|(index, _)| Some((index, get(index)?)))
}

/// A slot for a thread, in the state [`CLAIMED`]; `None` if there are none left. The one that it had, if it had one:
/// its signal stack may be there.
pub(crate) fn claim(tid: u32) -> Option<(usize, &'static Slot)> {
    for (index, slot) in of(tid) {
        if slot.state.compare_exchange(ENDED, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            if slot.is_taken(index, tid) {
                return Some((index, slot));
            }
            slot.state.store(ENDED, Ordering::Release);
        }
    }
    let (from, mut busy) = (FREE_FROM.load(Ordering::Acquire), None);
    for index in (from..BLOCK * BLOCKS).chain(0..from) {
        let slot = match get(index) {
            Some(slot) => slot,
            None => {
                make_block(index / BLOCK)?;
                get(index)?
            }
        };
        if slot.state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            USED.fetch_max(index + 1, Ordering::AcqRel);
            FREE_FROM.fetch_max(index + 1, Ordering::AcqRel);
            if slot.is_taken(index, tid) {
                // One of those that were passed over is free in a moment.
                FREE_FROM.fetch_min(busy.unwrap_or(usize::MAX), Ordering::AcqRel);
                return Some((index, slot));
            }
            slot.state.store(FREE, Ordering::Release);
            busy = busy.or(Some(index));
        }
    }
    None
}

fn make_block(number: usize) -> Option<()> {
    let size = BLOCK * size_of::<Slot>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory, at an address of the kernel's choice.
    let block = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, -1, 0) };
    if block == libc::MAP_FAILED {
        return None;
    }
    let place = SLOTS.get(number)?;
    let exchanged = place.compare_exchange(ptr::null_mut(), block.cast(), Ordering::AcqRel, Ordering::Acquire);
    if exchanged.is_err() {
        // Another thread was first.
        // SAFETY: mapped above, and known nowhere else.
        unsafe { libc::munmap(block, size) };
    }
    Some(())
}

impl Slot {
    /// For another thread, or another recording, unless a late handler of the owner before is in it.
    fn is_taken(&self, index: usize, tid: u32) -> bool {
        self.belongs_to(index, tid);
        self.generation.fetch_add(1, Ordering::SeqCst);
        // A handler that has seen the owner before has raised it by now; any other one sees that it is another's.
        if self.running.load(Ordering::SeqCst) != 0 {
            return false;
        }
        self.announced.store(0, Ordering::Relaxed);
        self.start.store(0, Ordering::Relaxed);
        self.python_state.store(0, Ordering::Relaxed);
        self.python_misses.store(0, Ordering::Relaxed);
        self.last.store(0, Ordering::Relaxed);
        self.pace.reset();
        for fact in [&self.first, &self.owed, &self.idle, &self.call, &self.stack_low, &self.stack_high] {
            fact.store(0, Ordering::Relaxed);
        }
        self.stack_attempts.store(0, Ordering::Relaxed);
        true
    }

    fn belongs_to(&self, index: usize, tid: u32) {
        TIDS.get(index).inspect(|owner| owner.store(tid, Ordering::Release));
        self.tid.store(tid, Ordering::SeqCst);
    }

    /// Makes a slot free that is [`CLAIMED`].
    pub(crate) fn give_back(&self, index: usize) {
        self.state.store(FREE, Ordering::Release);
        FREE_FROM.fetch_min(index, Ordering::AcqRel);
    }

    /// The cache of the thread's rules, for the handler of that thread.
    pub(crate) fn cache(&self) -> *mut RuleCache {
        self.cache.get()
    }

    /// Where the thread's own stack is, for certain.
    pub(crate) fn set_stack(&self, low: u64, high: u64) {
        self.stack_low.store(low, Ordering::Relaxed);
        self.stack_high.store(high, Ordering::Relaxed);
        self.stack_attempts.store(EXACT, Ordering::Relaxed);
    }

    /// Where the interpreter's evaluators are on the C stack, for the handler of that thread.
    pub(crate) fn anchors(&self) -> *mut [u64; MOST_ANCHORS] {
        self.anchors.get()
    }

    pub(crate) fn signal_stack(&self) -> *mut u8 {
        self.stack.get().cast()
    }

    /// Space for [`COPY`] bytes, for the handler of the slot's thread.
    pub(crate) fn copied(&self) -> *mut u64 {
        self.copied.get().cast()
    }

    fn word(&self, position: u64) -> *mut u64 {
        // SAFETY: the remainder is inside of the ring.
        unsafe { self.ring.get().cast::<u64>().add(position as usize % RING) }
    }

    /// For how many addresses there is space now; `None` if too few.
    pub(crate) fn space(&self) -> Option<u64> {
        let used = self.written.load(Ordering::Relaxed).wrapping_sub(self.read.load(Ordering::Acquire));
        (RING as u64).checked_sub(used + HEAD).filter(|&space| space >= FEWEST).map(|space| space.min(MOST_WORDS))
    }

    /// Whether the writer had better come soon.
    pub(crate) fn is_half_full(&self) -> bool {
        let used = self.written.load(Ordering::Relaxed).wrapping_sub(self.read.load(Ordering::Relaxed));
        used > RING as u64 / 2
    }

    /// Puts address `number` of the sample that is being made. It must be less than what [`Slot::space`] has returned.
    ///
    /// # Safety
    /// Only from the handler of the thread whose slot it is.
    pub(crate) unsafe fn put(&self, number: u64, address: u64) {
        let position = self.written.load(Ordering::Relaxed) + HEAD + number;
        // SAFETY: this word is free, so it is the handler's.
        unsafe { self.word(position).write(address) };
    }

    /// Ends the sample that is being made.
    ///
    /// # Safety
    /// Only from the handler of the thread whose slot it is.
    pub(crate) unsafe fn finish(&self, sample: Sample) {
        self.last.store(self.written.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.append(sample) };
    }

    /// The thread is elsewhere by now: the stack of its last sample once more, without words, for as long as it was
    /// there.
    ///
    /// # Safety
    /// As [`Slot::finish`].
    pub(crate) unsafe fn end_idle(&self, time: u64) {
        if self.idle.load(Ordering::Relaxed) != 0 && self.space().is_some() {
            let period = self.idle.swap(0, Ordering::Relaxed);
            // SAFETY: the caller's promise.
            unsafe { self.append(Sample { time, period, outcome: Outcome::Complete, count: 0 }) };
        }
    }

    unsafe fn append(&self, sample: Sample) {
        let start = self.written.load(Ordering::Relaxed);
        let head = sample.count << 8 | sample.outcome as u64;
        for (number, word) in (0..).zip([head, sample.time, sample.period]) {
            // SAFETY: the callers checked that there is space, so these words are the handler's.
            unsafe { self.word(start + number).write(word) };
        }
        self.written.store(start + HEAD + sample.count, Ordering::Release);
    }

    /// The thread ends: what it has done since its last sample, it has done where that was, or else in its function.
    ///
    /// # Safety
    /// Only in the thread whose slot it is, when its handler does not run any more.
    pub(crate) unsafe fn close(&self, time: u64, period: u64) {
        // SAFETY: the caller's promise.
        unsafe { self.end_idle(time) };
        if self.space().is_none() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut sample = Sample { time, period, outcome: Outcome::Complete, count: 0 };
        match self.last.load(Ordering::Relaxed).checked_sub(1) {
            Some(last) => {
                // Not overwritten yet: the ring is much larger than a sample.
                // SAFETY: only this thread writes.
                let head = unsafe { self.word(last).read() };
                sample.count = (head >> 8).min(MOST_WORDS).min(self.space().unwrap_or(0));
                sample.outcome = outcome(head);
                for number in 0..sample.count {
                    // SAFETY: only this thread writes.
                    let address = unsafe { self.word(last + HEAD + number).read() };
                    // SAFETY: the caller's promise; `count` is at most the free space.
                    unsafe { self.put(number, address) };
                }
            }
            None => {
                let start = self.start.load(Ordering::Relaxed);
                if start == 0 {
                    return;
                }
                sample.count = 1;
                // SAFETY: the caller's promise; there is space for one sample.
                unsafe { self.put(0, start) };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.finish(sample) };
    }

    /// Makes the slot of a thread that is gone free, unless a new one has got its number, and the slot with it.
    pub(crate) fn free_ended(&self, index: usize) {
        if self.state.compare_exchange(ENDED, CLAIMED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.give_back(index);
        }
    }

    fn forget(&self, index: usize, tid: u32, signal_stack: *mut c_void) {
        self.running.store(0, Ordering::Relaxed);
        self.read.store(self.written.load(Ordering::Relaxed), Ordering::Relaxed);
        if self.counter.load(Ordering::Relaxed) == 0 {
            self.timer.store(-1, Ordering::Relaxed);
        }
        let is_kept = self.signal_stack().cast() == signal_stack;
        if is_kept {
            self.belongs_to(index, tid);
        }
        self.state.store(if is_kept { ENDED } else { FREE }, Ordering::Relaxed);
        FREE_FROM.store(0, Ordering::Relaxed);
    }

    /// Copies the oldest sample out of the ring; its words are put into `stack`. For the one writer.
    pub(crate) fn peek(&self, stack: &mut Vec<u64>) -> Option<Sample> {
        let start = self.read.load(Ordering::Relaxed);
        if self.written.load(Ordering::Acquire) == start {
            return None;
        }
        // SAFETY: words before `written` are the reader's, and there is one reader.
        let [head, time, period] = [0, 1, 2].map(|number| unsafe { self.word(start + number).read() });
        let count = (head >> 8).min(MOST_WORDS);
        stack.clear();
        // SAFETY: a sample's words are before `written`, too.
        stack.extend((0..count).map(|number| unsafe { self.word(start + HEAD + number).read() }));
        Some(Sample { time, period, outcome: outcome(head), count })
    }

    /// Whether every sample has been seen.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.load(Ordering::Relaxed) == self.written.load(Ordering::Acquire)
    }

    /// That sample has been seen.
    pub(crate) fn pop(&self, sample: &Sample) {
        self.read.store(self.read.load(Ordering::Relaxed) + HEAD + sample.count, Ordering::Release);
    }
}

fn outcome(head: u64) -> Outcome {
    match head & 0xff {
        0 => Outcome::Complete,
        1 => Outcome::Truncated,
        2 => Outcome::UnknownCode,
        _ => Outcome::Broken,
    }
}

/// Before a recording, while nothing writes: what came too late for the one before is not of this one.
pub(crate) fn discard_all() {
    for (_, slot) in all() {
        slot.read.store(slot.written.load(Ordering::Acquire), Ordering::Release);
        slot.lost.store(0, Ordering::Relaxed);
        slot.skipped.store(0, Ordering::Relaxed);
    }
}

/// In the child of a fork: the threads that were sampled are not here, and timers are not inherited: those that have
/// their numbers are the program's. The one thread, `tid` by now, may have its signal stack in a slot, which is no
/// other thread's then.
pub(crate) fn forget_all(tid: u32, signal_stack: *mut c_void) {
    all().for_each(|(index, slot)| slot.forget(index, tid, signal_stack));
}

/// Held by tests that use what a process has one of: slots, published code, the recorder.
#[cfg(test)]
pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_come_out_as_they_went_in_and_a_full_ring_says_so() {
        let _alone = alone();
        let (index, slot) = claim(7).unwrap();
        assert!(std::ptr::eq(get(index).unwrap(), slot));
        let mut stack = Vec::new();
        let mut number = 0;
        for _ in 0..3 {
            let first = number;
            while slot.space().is_some() {
                let sample = Sample { time: number, period: 5, outcome: Outcome::Broken, count: 20 };
                // SAFETY: this is the only thread.
                (0..20).for_each(|address| unsafe { slot.put(address, number + address) });
                // SAFETY: this is the only thread.
                unsafe { slot.finish(sample) };
                number += 1;
                assert_eq!(slot.is_half_full(), (number - first) * 23 > RING as u64 / 2);
            }
            assert!(number - first > 300);
            for expected in first..number {
                let sample = slot.peek(&mut stack).unwrap();
                slot.pop(&sample);
                assert_eq!((sample.time, sample.period, sample.outcome), (expected, 5, Outcome::Broken));
                assert!(stack.iter().copied().eq(expected..expected + 20));
            }
            assert_eq!(slot.peek(&mut stack), None);
        }
    }

    /// It has seen that the slot is its thread's, and then the slot became another's: two would write to one ring.
    #[test]
    fn a_slot_that_a_late_handler_is_in_is_no_new_threads() {
        let _alone = alone();
        let (index, slot) = claim(15).unwrap();
        slot.running.fetch_add(1, Ordering::SeqCst);
        slot.give_back(index);
        let (other, _) = claim(16).unwrap();
        assert_ne!(other, index);
        slot.running.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(claim(17).unwrap().0, index);
        for index in [index, other] {
            get(index).unwrap().give_back(index);
        }
    }

    /// Two threads with one stack for their signals would overwrite each other's frames.
    #[test]
    fn in_a_child_the_thread_that_forked_keeps_its_signal_stack() {
        let _alone = alone();
        let ((at, kept), (other_at, other)) = (claim(11).unwrap(), claim(12).unwrap());
        for (index, slot) in [(at, kept), (other_at, other)] {
            slot.timer.store(0, Ordering::Relaxed);
            slot.state.store(ARMED, Ordering::Relaxed);
            slot.forget(index, 13, kept.signal_stack().cast());
            assert_eq!(slot.timer.load(Ordering::Relaxed), -1, "the program may have a timer of that number");
        }
        assert_eq!(other.state.load(Ordering::Relaxed), FREE);
        assert!(!std::ptr::eq(claim(14).unwrap().1, kept) && std::ptr::eq(claim(13).unwrap().1, kept));
    }
}
