//! Facts about the LLVMs of a process, which the library keeps in the exported symbol [`SYMBOL`]. `jitlisten doctor
//! PID` reads them with `process_vm_readv(2)` while the process runs.
//!
//! The list of LLVMs is rewritten when one is loaded, closed or reclassified, never per object: counts are separate
//! words. The list lies within [`Facts`]. It is therefore never allocated or freed under a reader, costs nothing until
//! written, and a child of `fork(2)` has its own copy.

mod llvm;

use std::sync::atomic::{AtomicU64, Ordering, fence};

pub use llvm::{Channel, Missing, NO_SYMBOLS_OR_RTTI, ObservedLlvm, Part, UnobservedLlvm};

use llvm::Bytes;

/// Symbol of the library's [`Facts`].
pub const SYMBOL: &str = "jitlisten_facts";
/// Maximum number of observed LLVMs in a process; each has a slot.
pub const MAX_LLVMS: usize = 16;

const MAGIC: u64 = u64::from_ne_bytes(*b"JLFACTS\0");
/// Version of the layout, including that of the list.
const VERSION: u64 = 2;
/// Enough for [`MAX_LLVMS`] with long paths and explanations.
const MAX_LIST_BYTES: usize = 32 << 10;
const WORD_BYTES: usize = size_of::<u64>();

/// Counter of the whole session, since it began.
#[derive(Clone, Copy, Debug)]
pub enum Total {
    /// Objects that became final.
    Final,
    /// Functions in them.
    Functions,
    /// Functions that do not set up a frame pointer.
    FunctionsWithoutFramePointer,
    /// Objects with a line table.
    WithLines,
    /// Images.
    Images,
    /// Images whose unwind tables perf cannot use.
    ImagesWithoutPadding,
    /// Observed diagnostic handlers.
    RemarkHandlers,
    /// Remarks of LLVM's vectoriser.
    Remarks,
}

/// Counter of one LLVM.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Objects that RuntimeDyld has reported.
    RuntimeDyld,
    /// Objects with code that were handed to JITLink.
    ForJitLink,
    /// JITLink objects that were found in memory.
    JitLink,
    /// Objects in its GDB JIT list at the last reading.
    Listed,
}

const TOTALS: usize = Total::Remarks as usize + 1;
const COUNTS: usize = Count::Listed as usize + 1;

/// Value of each [`Total`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals([u64; TOTALS]);

impl Totals {
    /// Value of a counter.
    pub fn get(&self, total: Total) -> u64 {
        self.0[total as usize]
    }
}

/// Memory that a library and its readers share. Words have native byte order.
#[repr(C)]
#[derive(Debug)]
pub struct Facts {
    /// [`MAGIC`] once the session observes the process.
    magic: AtomicU64,
    version: AtomicU64,
    /// Size of this structure in bytes.
    size: AtomicU64,
    /// Odd while the list changes: a read is valid if it was even before and is unchanged after.
    sequence: AtomicU64,
    /// Size of the list in bytes.
    length: AtomicU64,
    /// Number of LLVMs that the list omits for lack of space.
    omitted: AtomicU64,
    totals: [AtomicU64; TOTALS],
    counts: [[AtomicU64; COUNTS]; MAX_LLVMS],
    list: [AtomicU64; MAX_LIST_BYTES / WORD_BYTES],
}

/// Bytes before the totals, which decide whether the rest is valid.
const HEAD_BYTES: usize = std::mem::offset_of!(Facts, totals);
const LIST_OFFSET: usize = std::mem::offset_of!(Facts, list);

/// Copy of the [`Facts`] of a process.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Observed LLVMs.
    pub observed: Vec<ObservedLlvm>,
    /// LLVMs that are not observed.
    pub unobserved: Vec<UnobservedLlvm>,
    /// Number of other LLVMs.
    pub omitted: u64,
    /// Counters of the session.
    pub totals: Totals,
}

/// Result of reading the facts of a process.
#[derive(Debug)]
pub enum Reading {
    /// Consistent facts.
    Complete(Box<Snapshot>),
    /// The facts changed during the read.
    Changing,
    /// The process publishes no facts, or facts of another version.
    Absent,
}

impl Facts {
    /// Facts of a process that is not observed yet.
    pub const fn zeroed() -> Facts {
        Facts {
            magic: AtomicU64::new(0),
            version: AtomicU64::new(0),
            size: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            length: AtomicU64::new(0),
            omitted: AtomicU64::new(0),
            totals: [const { AtomicU64::new(0) }; TOTALS],
            counts: [const { [const { AtomicU64::new(0) }; COUNTS] }; MAX_LLVMS],
            list: [const { AtomicU64::new(0) }; MAX_LIST_BYTES / WORD_BYTES],
        }
    }

    /// Counter of the session.
    pub fn total(&self, total: Total) -> &AtomicU64 {
        &self.totals[total as usize]
    }

    /// Counter of the LLVM in a slot; `None` beyond the last slot.
    pub fn count(&self, slot: usize, count: Count) -> Option<&AtomicU64> {
        self.counts.get(slot).map(|counts| &counts[count as usize])
    }

    /// Resets the counters of a slot for a new LLVM.
    pub fn reset_counts(&self, slot: usize) {
        for count in self.counts.get(slot).into_iter().flatten() {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Replaces the list. The caller holds a lock that excludes other writers, also across `fork(2)`.
    pub fn publish(&self, observed: &[ObservedLlvm], unobserved: &[UnobservedLlvm]) {
        let (list, omitted) = llvm::encode(observed, unobserved, MAX_LIST_BYTES);
        self.version.store(VERSION, Ordering::Relaxed);
        self.size.store(size_of::<Facts>() as u64, Ordering::Relaxed);
        // The sequence is already odd if `clone(2)` without fork handlers copied the parent during a write.
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, bytes) in self.list.iter().zip(list.chunks(WORD_BYTES)) {
            let mut padded = [0; WORD_BYTES];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        self.length.store(list.len() as u64, Ordering::Relaxed);
        self.omitted.store(omitted, Ordering::Relaxed);
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Reads the facts of a process, whose bytes at an offset `read` returns. The process may have written anything.
    pub fn read(read: impl Fn(usize, usize) -> Option<Vec<u8>>) -> Reading {
        Facts::try_read(read).unwrap_or(Reading::Absent)
    }

    fn try_read(read: impl Fn(usize, usize) -> Option<Vec<u8>>) -> Option<Reading> {
        let head = read(0, HEAD_BYTES)?;
        let mut words = Bytes(&head);
        let expected = [MAGIC, VERSION, size_of::<Facts>() as u64].map(Some);
        if [words.number(), words.number(), words.number()] != expected {
            return None;
        }
        let (sequence, length, omitted) = (words.number()?, words.number()?, words.number()?);
        let length = usize::try_from(length).ok().filter(|&length| length <= MAX_LIST_BYTES)?;
        let body = read(HEAD_BYTES, LIST_OFFSET - HEAD_BYTES + length)?;
        if sequence % 2 == 1 || read(0, HEAD_BYTES)? != head {
            return Some(Reading::Changing);
        }
        let (counters, list) = body.split_at_checked(LIST_OFFSET - HEAD_BYTES)?;
        let mut counters = Bytes(counters);
        let totals = Totals(counters.numbers()?);
        let mut counts = [[0; COUNTS]; MAX_LLVMS];
        for counts in &mut counts {
            *counts = counters.numbers()?;
        }
        let (observed, unobserved) = llvm::decode(list, &counts)?;
        Some(Reading::Complete(Box::new(Snapshot { observed, unobserved, omitted, totals })))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn llvm(file: &str, slot: usize) -> ObservedLlvm {
        ObservedLlvm {
            slot,
            start: 0x1000,
            file: file.to_owned(),
            channels: vec![Channel::JitLink],
            missing: vec![Missing::new(Part::List, "not found")],
            ..ObservedLlvm::default()
        }
    }

    /// Bytes of the facts as another process would read them.
    fn bytes(facts: &Facts, offset: usize, size: usize) -> Option<Vec<u8>> {
        let head = [&facts.magic, &facts.version, &facts.size, &facts.sequence, &facts.length, &facts.omitted];
        let words = head.into_iter().chain(&facts.totals).chain(facts.counts.iter().flatten()).chain(&facts.list);
        let words = words.skip(offset / WORD_BYTES).take(size.div_ceil(WORD_BYTES));
        let mut bytes: Vec<u8> = words.flat_map(|word| word.load(Ordering::Acquire).to_ne_bytes()).collect();
        bytes.truncate(size);
        Some(bytes)
    }

    fn snapshot(facts: &Facts) -> Option<Snapshot> {
        match Facts::read(|offset, size| bytes(facts, offset, size)) {
            Reading::Complete(snapshot) => Some(*snapshot),
            Reading::Changing | Reading::Absent => None,
        }
    }

    #[test]
    fn what_a_library_publishes_is_read() {
        let facts = Facts::zeroed();
        assert!(matches!(Facts::read(|offset, size| bytes(&facts, offset, size)), Reading::Absent));
        let unobserved = UnobservedLlvm { start: 1, file: "/odd.so".to_owned(), reason: "no names".to_owned() };
        let observed = ObservedLlvm { version: Some("14".to_owned()), ..llvm("/lib/h.so", 3) };
        facts.publish(&[observed], &[unobserved]);
        facts.total(Total::Remarks).store(7, Ordering::Relaxed);
        facts.count(3, Count::Listed).unwrap().store(5, Ordering::Relaxed);
        assert!(facts.count(MAX_LLVMS, Count::Listed).is_none());
        let snapshot = snapshot(&facts).unwrap();
        let (observed, unobserved) = (&snapshot.observed[0], &snapshot.unobserved[0]);
        assert_eq!((observed.slot, observed.start, observed.file.as_str()), (3, 0x1000, "/lib/h.so"));
        assert_eq!((observed.version.as_deref(), &observed.channels[..]), (Some("14"), &[Channel::JitLink][..]));
        assert_eq!(observed.missing, [Missing::new(Part::List, "not found")]);
        assert_eq!((observed.count(Count::Listed), observed.count(Count::JitLink)), (5, 0));
        assert_eq!(
            (unobserved.start, unobserved.file.as_str(), unobserved.reason.as_str()),
            (1, "/odd.so", "no names")
        );
        assert_eq!((snapshot.totals.get(Total::Remarks), snapshot.totals.get(Total::Final)), (7, 0));
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let llvms: Vec<_> = (0..40).map(|slot| llvm(&"p".repeat(1000), slot)).collect();
        let facts = Facts::zeroed();
        facts.publish(&llvms, &[UnobservedLlvm::default()]);
        let snapshot = snapshot(&facts).unwrap();
        assert!((20..40).contains(&snapshot.observed.len()), "{}", snapshot.observed.len());
        assert_eq!((snapshot.omitted, snapshot.unobserved.len()), (40 - snapshot.observed.len() as u64, 1));
    }

    #[test]
    fn what_is_no_good_is_not_taken() {
        let facts = Facts::zeroed();
        facts.publish(&[llvm("/lib/h.so", usize::MAX)], &[]);
        let mut memory = bytes(&facts, 0, size_of::<Facts>()).unwrap();
        let read = |memory: &[u8]| Facts::read(|offset, size| Some(memory.get(offset..offset + size)?.to_vec()));
        assert!(matches!(read(&memory), Reading::Complete(_)), "a slot that does not exist has no counts");
        // The magic, the version, the size, the length of the list, the length of a text in it.
        for (offset, byte) in [(0, b'X'), (8, 3), (17, 0), (35, 1), (LIST_OFFSET + 31, 0xff)] {
            let old_byte = std::mem::replace(&mut memory[offset], byte);
            assert!(matches!(read(&memory), Reading::Absent), "{offset}");
            memory[offset] = old_byte;
        }
        assert!(matches!(read(&[]), Reading::Absent));
        assert!(matches!(read(&memory[..LIST_OFFSET]), Reading::Absent));
        let reads = Cell::new(0);
        let changing = Facts::read(|offset, size| {
            let mut memory = memory.clone();
            memory[24] += 2 * reads.replace(reads.get() + 1);
            Some(memory[offset..offset + size].to_vec())
        });
        assert!(matches!(changing, Reading::Changing));
    }

    #[test]
    fn a_list_is_read_whole_or_not_at_all() {
        static FACTS: Facts = Facts::zeroed();
        static DONE: AtomicBool = AtomicBool::new(false);
        FACTS.publish(&[llvm("a", 0)], &[]);
        let writer = thread::spawn(|| {
            let rounds = if cfg!(miri) { 3 } else { 2000 };
            for round in 0..rounds {
                let letter = char::from(b'a' + (round % 26) as u8).to_string();
                FACTS.publish(&[llvm(&letter.repeat(1 + round % 3000), 0)], &[]);
            }
            DONE.store(true, Ordering::Relaxed);
        });
        let mut complete_reads = 0;
        while !DONE.load(Ordering::Relaxed) || complete_reads == 0 {
            let Some(snapshot) = snapshot(&FACTS) else { continue };
            complete_reads += 1;
            let file = snapshot.observed[0].file.as_bytes();
            assert!(file.iter().all(|byte| *byte == file[0]), "torn");
        }
        writer.join().unwrap();
        // A writer that died in the middle does not block the next one.
        FACTS.sequence.fetch_add(1, Ordering::Relaxed);
        assert!(snapshot(&FACTS).is_none());
        FACTS.publish(&[llvm("whole", 0)], &[]);
        assert_eq!(snapshot(&FACTS).unwrap().observed[0].file, "whole");
    }
}
