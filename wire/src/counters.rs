//! Counters of the recorder, which show how complete the samples of a recording are. Our `perf.data` stores them in the
//! section of feature [`FEATURE`], after the sections of all features that perf knows.

/// Number of the feature: the last one of the 256 that a header has bits for.
pub const FEATURE: u32 = 255;

/// Counters of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Samples in the recording.
    pub samples: u64,
    /// Samples whose stacks do not reach the thread's entry function.
    pub incomplete: u64,
    /// Samples whose stacks are too deep.
    pub truncated: u64,
    /// Samples that were taken but not written.
    pub lost: u64,
    /// Samples that were not taken, because unwinding a stack takes too long at this rate.
    pub skipped: u64,
    /// Sampled threads.
    pub threads: u64,
    /// Threads that got no timer.
    pub threads_without_timer: u64,
    /// Samples by perf's `cpu-clock`, which threads that often switch use if it is permitted and affordable.
    pub by_user_clock: u64,
    /// Samples at the kernel's clock tick, of threads that often wait, or are short and preempted. Their shares are not
    /// exact.
    pub inexact: u64,
    /// Time in ns that threads were on the run queue: they wanted to run, but others ran.
    pub run_queue_ns: u64,
    /// Part of `run_queue_ns` of the thread with the most CPU time.
    pub busiest_run_queue_ns: u64,
    /// CPU time in ns of child processes that were not recorded, and that the process has waited for.
    pub unrecorded_children_ns: u64,
}

impl Counters {
    /// Encodes the counters as words, least significant byte first.
    pub fn encode(&self) -> Vec<u8> {
        let Counters { samples, incomplete, truncated, lost, skipped, threads, threads_without_timer, .. } = *self;
        let Counters { by_user_clock, inexact, run_queue_ns, busiest_run_queue_ns, unrecorded_children_ns, .. } = *self;
        let words = [samples, incomplete, truncated, lost, skipped, threads, threads_without_timer];
        let later_words = [by_user_clock, inexact, run_queue_ns, busiest_run_queue_ns, unrecorded_children_ns];
        [words.map(u64::to_le_bytes).concat(), later_words.map(u64::to_le_bytes).concat()].concat()
    }

    /// Decodes a section; `None` if it is too short. Later versions may append words.
    pub fn decode(bytes: &[u8]) -> Option<Counters> {
        let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        Some(Counters {
            samples: words.next()?,
            incomplete: words.next()?,
            truncated: words.next()?,
            lost: words.next()?,
            skipped: words.next()?,
            threads: words.next()?,
            threads_without_timer: words.next()?,
            // Earlier recorders write none of these.
            by_user_clock: words.next().unwrap_or(0),
            inexact: words.next().unwrap_or(0),
            run_queue_ns: words.next().unwrap_or(0),
            busiest_run_queue_ns: words.next().unwrap_or(0),
            unrecorded_children_ns: words.next().unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_decoded_as_they_were_encoded() {
        let counters = Counters {
            samples: 1,
            incomplete: 2,
            truncated: 3,
            lost: 4,
            skipped: 5,
            threads: 6,
            threads_without_timer: u64::MAX,
            by_user_clock: 7,
            inexact: 8,
            run_queue_ns: 9,
            busiest_run_queue_ns: 10,
            unrecorded_children_ns: 11,
        };
        let mut bytes = counters.encode();
        let earlier = Counters { run_queue_ns: 0, busiest_run_queue_ns: 0, unrecorded_children_ns: 0, ..counters };
        assert_eq!(Counters::decode(&bytes[..72]), Some(earlier));
        let earlier = Counters { by_user_clock: 0, inexact: 0, ..earlier };
        assert_eq!((Counters::decode(&bytes[..56]), Counters::decode(&bytes[..55])), (Some(earlier), None));
        bytes.push(0);
        assert_eq!(Counters::decode(&bytes), Some(counters));
    }
}
