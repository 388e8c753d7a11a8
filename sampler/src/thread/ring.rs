//! A ring of samples of one thread, written by its signal handler and read by the writer thread.
//!
//! ```text
//!   handler (one thread) --words--> ring --words--> writer
//!   word 0: word count << 8 | outcome of the walk    1: time    2: period
//!   3..: Python frames, then native addresses, innermost first (`python`); if none, the previous sample's stack
//! ```
//! Unread words before `write_position` belong to the writer, all other words to the handler. A sample under
//! construction lies after `write_position`.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::unwind::Outcome;

/// Number of words in a ring: space for one sample of maximum depth, or about a second of ordinary samples. Untouched
/// pages take no memory.
const RING_WORDS: usize = 1 << 15;
/// Words before the stack of a sample.
const HEADER_WORDS: u64 = 3;
/// A sample is dropped if the ring has fewer free words than this.
const MIN_FREE_WORDS: u64 = 256;
/// Maximum number of native frames per sample.
pub(crate) const MAX_NATIVE_FRAMES: u64 = 4096;
/// Maximum number of words per sample: native frames, Python frames and evaluator marks.
pub(crate) const MAX_SAMPLE_WORDS: u64 = 3 * MAX_NATIVE_FRAMES;

/// A sample read from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) time: u64,
    pub(crate) period: u64,
    pub(crate) outcome: Outcome,
    pub(crate) count: u64,
}

/// A ring of samples. All zeros: empty.
pub(crate) struct Ring {
    /// True if the thread has had a sample.
    has_sample: AtomicBool,
    write_position: AtomicU64,
    read_position: AtomicU64,
    /// Samples dropped for lack of space since the writer last checked.
    lost: AtomicU64,
    words: UnsafeCell<[u64; RING_WORDS]>,
}

// SAFETY: the handler owns the free part of `words`, the writer the filled part; the positions separate them.
unsafe impl Sync for Ring {}

impl Ring {
    fn word(&self, position: u64) -> *mut u64 {
        // SAFETY: the remainder is within the ring.
        unsafe { self.words.get().cast::<u64>().add(position as usize % RING_WORDS) }
    }

    fn used_words(&self) -> u64 {
        self.write_position.load(Ordering::Relaxed).wrapping_sub(self.read_position.load(Ordering::Acquire))
    }

    /// Returns how many stack words the next sample may have; `None` if too few are free.
    pub(crate) fn free_words(&self) -> Option<u64> {
        (RING_WORDS as u64)
            .checked_sub(self.used_words() + HEADER_WORDS)
            .filter(|&space| space >= MIN_FREE_WORDS)
            .map(|space| space.min(MAX_SAMPLE_WORDS))
    }

    /// True if the ring is more than half full and should be drained soon.
    pub(crate) fn is_half_full(&self) -> bool {
        self.used_words() > RING_WORDS as u64 / 2
    }

    /// Counts a sample that is dropped.
    pub(crate) fn count_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of dropped samples since the last call. Only for the writer.
    pub(crate) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }

    /// Writes one word of the sample under construction. `number` must be less than the result of [`Ring::free_words`].
    ///
    /// # Safety
    /// Only call from the handler of the ring's thread.
    pub(crate) unsafe fn put_word(&self, number: u64, address: u64) {
        let position = self.write_position.load(Ordering::Relaxed) + HEADER_WORDS + number;
        // SAFETY: this word is free, so it belongs to the handler.
        unsafe { self.word(position).write(address) };
    }

    /// Completes the sample under construction.
    ///
    /// # Safety
    /// Only call from the handler of the ring's thread.
    pub(crate) unsafe fn finish_sample(&self, sample: Sample) {
        self.has_sample.store(true, Ordering::Relaxed);
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.append(sample) };
    }

    /// True if the thread has had a sample.
    pub(super) fn has_sample(&self) -> bool {
        self.has_sample.load(Ordering::Relaxed)
    }

    /// Forgets that the previous owner has had samples.
    pub(super) fn forget_samples(&self) {
        self.has_sample.store(false, Ordering::Relaxed);
    }

    /// Appends a sample without a stack, which repeats the last one. There must be free words.
    ///
    /// # Safety
    /// Same contract as [`Ring::finish_sample`].
    pub(crate) unsafe fn repeat_last(&self, time: u64, period: u64) {
        // SAFETY: the caller upholds this function's contract.
        unsafe { self.append(Sample { time, period, outcome: Outcome::Complete, count: 0 }) };
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

    /// Removes the oldest sample, which [`Ring::peek`] has returned.
    pub(crate) fn pop(&self, sample: &Sample) {
        self.read_position
            .store(self.read_position.load(Ordering::Relaxed) + HEADER_WORDS + sample.count, Ordering::Release);
    }

    /// True if every sample has been read.
    pub(crate) fn is_drained(&self) -> bool {
        self.read_position.load(Ordering::Relaxed) == self.write_position.load(Ordering::Acquire)
    }

    /// Discards all samples. Only call while no handler writes.
    pub(crate) fn discard_unread(&self) {
        self.read_position.store(self.write_position.load(Ordering::Acquire), Ordering::Release);
        self.lost.store(0, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_survive_the_ring_and_a_full_ring_refuses_more() {
        // SAFETY: all zeros is an empty ring.
        let ring = unsafe { Box::<Ring>::new_zeroed().assume_init() };
        let mut stack = Vec::new();
        let mut number = 0;
        for _ in 0..3 {
            let first = number;
            while ring.free_words().is_some() {
                let sample = Sample { time: number, period: 5, outcome: Outcome::Broken, count: 20 };
                // SAFETY: this test is the only user of the ring.
                (0..20).for_each(|address| unsafe { ring.put_word(address, number + address) });
                // SAFETY: this test is the only user of the ring.
                unsafe { ring.finish_sample(sample) };
                number += 1;
                assert_eq!(ring.is_half_full(), (number - first) * 23 > RING_WORDS as u64 / 2);
            }
            assert!(number - first > 300);
            for expected_number in first..number {
                let sample = ring.peek(&mut stack).unwrap();
                ring.pop(&sample);
                assert_eq!((sample.time, sample.period, sample.outcome), (expected_number, 5, Outcome::Broken));
                assert!(stack.iter().copied().eq(expected_number..expected_number + 20));
            }
            assert_eq!(ring.peek(&mut stack), None);
        }
    }
}
