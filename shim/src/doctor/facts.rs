//! Facts about each LLVM instance in this process. `jitlisten doctor PID` reads them with `process_vm_readv(2)` while
//! this process runs.
//!
//! The symbol `jitlisten_facts` is exported so that it survives `strip`; it is not part of the C API (programs have
//! `jitlisten_llvms()`). All words have 64 bits and native byte order:
//!
//! ```text
//!     0  magic      "JLFACTS\0", once the session observes the process
//!     8  layout     1
//!    16  capacity   of the text, in bytes
//!    24  sequence   odd while the text changes: a read is valid if it was even before and is unchanged after
//!    32  length     of the text
//!    40  totals[8]  of the session, since it began: see `Total`
//!   104  counts[16][4]  of the LLVM instance in each slot: see `Count`
//!   616  text       JSON: {"llvms": [{"slot": n, "start": n, "file": s, ..}], "unheard": [{"start": n, "file": s,
//!                   "why": s}], "left_out": n}; "start" is the library's address, "left_out" counts omitted LLVMs
//! ```
//!
//! The text is rewritten when an LLVM instance is loaded, closed or reclassified, but never for an object. Counts are
//! separate words; the counts in the text date from the time of writing. The text is stored in a zero-initialised
//! static. It is therefore never freed while another process reads it, and it costs nothing until written. A child of
//! `fork(2)` has its own copy. All writers hold the shim's lock, except those that only change a count. That lock is
//! also held across `fork(2)`, so the child's copy of the text is complete.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use jitlisten::Statistics;

use crate::doctor::discovered::{DiscoveredLlvm, UnobservedLlvm};
use crate::hook_table::SLOTS;

const MAGIC: u64 = u64::from_ne_bytes(*b"JLFACTS\0");
const LAYOUT: u64 = 1;
/// Capacity of the text in bytes: enough for sixteen LLVM instances with long paths and explanations.
const TEXT_CAPACITY: usize = 32 << 10;
const WORD: usize = size_of::<u64>();

/// Per-instance counters.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    /// Objects that RuntimeDyld has reported.
    RuntimeDyld = 0,
    /// Objects with code that were handed to JITLink.
    ForJitLink = 1,
    /// JITLink objects that were found in memory.
    JitLink = 2,
    /// Objects in the GDB JIT list at its last reading.
    Listed = 3,
}

/// Counters of the whole session.
#[derive(Clone, Copy)]
enum Total {
    /// Objects that became final.
    Final = 0,
    Functions = 1,
    FunctionsWithoutFramePointer = 2,
    /// Objects with a line table; written by [`add_object_with_lines`].
    WithLines = 3,
    Images = 4,
    /// Images with unwind tables that perf cannot use.
    ImagesWithoutPadding = 5,
    /// Diagnostic handlers that are observed; written by [`add_remark_handler`].
    RemarkHandlers = 6,
    /// Remarks of LLVM's vectoriser; written by [`add_remark`].
    Remarks = 7,
}

/// The published facts. Other processes rely on this layout, which the module documentation describes.
#[repr(C)]
struct Facts {
    magic: AtomicU64,
    layout: AtomicU64,
    capacity: AtomicU64,
    sequence: AtomicU64,
    length: AtomicU64,
    totals: [AtomicU64; 8],
    counts: [[AtomicU64; 4]; SLOTS],
    text: [AtomicU64; TEXT_CAPACITY / WORD],
}

const _: () = assert!(std::mem::offset_of!(Facts, totals) == 40 && std::mem::offset_of!(Facts, counts) == 104);
const _: () = assert!(std::mem::offset_of!(Facts, text) == 616);

// SAFETY: no other symbol has the name `jitlisten_facts`.
#[unsafe(export_name = "jitlisten_facts")]
static FACTS: Facts = Facts::new();

fn counter_cell(slot: usize, counter: Count) -> Option<&'static AtomicU64> {
    FACTS.counts.get(slot).map(|counts| &counts[counter as usize])
}

/// Increments a counter of the LLVM instance in `slot`.
pub(crate) fn count(slot: usize, counter: Count) {
    if let Some(counter_cell) = counter_cell(slot, counter) {
        counter_cell.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sets a counter of the LLVM instance in `slot`.
pub(crate) fn set_count(slot: usize, counter: Count, number: u64) {
    if let Some(counter_cell) = counter_cell(slot, counter) {
        counter_cell.store(number, Ordering::Relaxed);
    }
}

/// Returns a counter of the LLVM instance in `slot`.
pub(crate) fn read_count(slot: usize, counter: Count) -> u64 {
    counter_cell(slot, counter).map_or(0, |counter_cell| counter_cell.load(Ordering::Relaxed))
}

/// Resets the counters of a slot for a new LLVM instance.
pub(crate) fn reset_counts(slot: usize) {
    for counter_cell in FACTS.counts.get(slot).into_iter().flatten() {
        counter_cell.store(0, Ordering::Relaxed);
    }
}

pub(crate) fn add_object_with_lines() {
    FACTS.totals[Total::WithLines as usize].fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn add_remark_handler() {
    FACTS.totals[Total::RemarkHandlers as usize].fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn add_remark() {
    FACTS.totals[Total::Remarks as usize].fetch_add(1, Ordering::Relaxed);
}

/// Copies the session's statistics to the published totals.
pub(crate) fn set_totals(statistics: &Statistics) {
    let totals = [
        (Total::Final, statistics.objects_finalized),
        (Total::Functions, statistics.functions),
        (Total::FunctionsWithoutFramePointer, statistics.functions_without_frame_pointer),
        (Total::Images, statistics.images.written),
        (Total::ImagesWithoutPadding, statistics.images.without_padding),
    ];
    for (total, number) in totals {
        FACTS.totals[total as usize].store(number, Ordering::Relaxed);
    }
}

/// Publishes the observed LLVM instances, by slot, and the unobserved ones. The caller must hold the shim's lock.
pub(crate) fn publish(llvms: &[(usize, DiscoveredLlvm)], unheard: &[UnobservedLlvm]) {
    FACTS.publish(format_json(llvms, unheard, TEXT_CAPACITY).as_bytes());
}

impl Facts {
    const fn new() -> Facts {
        Facts {
            magic: AtomicU64::new(0),
            layout: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            sequence: AtomicU64::new(0),
            length: AtomicU64::new(0),
            totals: [const { AtomicU64::new(0) }; 8],
            counts: [const { [const { AtomicU64::new(0) }; 4] }; SLOTS],
            text: [const { AtomicU64::new(0) }; TEXT_CAPACITY / WORD],
        }
    }

    fn publish(&self, text: &[u8]) {
        self.layout.store(LAYOUT, Ordering::Relaxed);
        self.capacity.store(TEXT_CAPACITY as u64, Ordering::Relaxed);
        // The sequence is already odd if a write was in progress in the parent when a `clone(2)` call bypassed the fork
        // handlers.
        let odd_sequence = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd_sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, bytes) in self.text.iter().zip(text.chunks(WORD)) {
            let mut padded = [0; WORD];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        self.length.store(text.len().min(TEXT_CAPACITY) as u64, Ordering::Relaxed);
        self.sequence.store(odd_sequence.wrapping_add(1), Ordering::Release);
        self.magic.store(MAGIC, Ordering::Release);
    }
}

/// Formats the text as JSON of at most `max_bytes` bytes.
fn format_json(llvms: &[(usize, DiscoveredLlvm)], unheard: &[UnobservedLlvm], max_bytes: usize) -> String {
    /// Bytes reserved for the end of the JSON.
    const TRAILER_BYTES: usize = 64;
    let mut omitted_count = 0;
    let mut append_entries = |text: &mut String, entries: &mut dyn Iterator<Item = String>| {
        let mut separator = "";
        for entry in entries {
            if text.len() + entry.len() + TRAILER_BYTES > max_bytes {
                omitted_count += 1;
                continue;
            }
            let _ = write!(text, "{separator}{entry}");
            separator = ", ";
        }
    };
    let mut text = String::from("{\"llvms\": [");
    append_entries(&mut text, &mut llvms.iter().map(|(slot, llvm)| llvm.json_with_slot(*slot)));
    text.push_str("], \"unheard\": [");
    append_entries(&mut text, &mut unheard.iter().map(UnobservedLlvm::json));
    let _ = write!(text, "], \"left_out\": {omitted_count}}}");
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    fn llvm(path: &str) -> DiscoveredLlvm {
        DiscoveredLlvm {
            path: path.into(),
            start: 0x1000,
            detoured: true,
            objects: 0,
            version: None,
            heard_by: vec!["jitlink"],
            linked: 0,
            missing: vec![],
        }
    }

    /// Reads the text the way another process would.
    fn read(facts: &Facts) -> Option<Vec<u8>> {
        let sequence_before = facts.sequence.load(Ordering::Acquire);
        let words: Vec<u64> = facts.text.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let length = facts.length.load(Ordering::Relaxed) as usize;
        fence(Ordering::Acquire);
        let is_consistent =
            sequence_before.is_multiple_of(2) && facts.sequence.load(Ordering::Relaxed) == sequence_before;
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        is_consistent.then(|| bytes[..length].to_vec())
    }

    #[test]
    fn entries_that_do_not_fit_are_counted() {
        let llvms: Vec<_> = (0..40).map(|slot| (slot, llvm(&"p".repeat(1000)))).collect();
        let unheard = [UnobservedLlvm { path: "/odd.so".into(), start: 1, why: "no names".to_owned() }];
        let text = format_json(&llvms, &unheard, TEXT_CAPACITY);
        assert!(text.len() <= TEXT_CAPACITY && text.len() > TEXT_CAPACITY - 2000, "{}", text.len());
        let entry_count = text.matches("\"slot\"").count();
        assert!(text.ends_with(&format!("\"left_out\": {}}}", 40 - entry_count)), "{}", &text[text.len() - 200..]);
        assert!(text.contains("{\"start\": 1, \"file\": \"/odd.so\", \"why\": \"no names\"}"));
    }

    #[test]
    fn readers_never_see_a_partial_text() {
        static SHARED_FACTS: Facts = Facts::new();
        static DONE: AtomicBool = AtomicBool::new(false);
        SHARED_FACTS.publish(b"a");
        let writer = thread::spawn(|| {
            let rounds = if cfg!(miri) { 3 } else { 2000 };
            for round in 0..rounds {
                SHARED_FACTS.publish(&[b'a' + (round % 26) as u8].repeat(1 + round % 3000));
            }
            DONE.store(true, Ordering::Relaxed);
        });
        let mut complete_reads = 0;
        while !DONE.load(Ordering::Relaxed) || complete_reads == 0 {
            let Some(text) = read(&SHARED_FACTS) else { continue };
            complete_reads += 1;
            assert!(text.iter().all(|byte| *byte == text[0]), "torn");
        }
        writer.join().unwrap();
        // A writer that was interrupted in the middle of an update does not block the next one.
        SHARED_FACTS.sequence.fetch_add(1, Ordering::Relaxed);
        assert_eq!(read(&SHARED_FACTS), None);
        SHARED_FACTS.publish(b"whole");
        assert_eq!(read(&SHARED_FACTS).as_deref(), Some(&b"whole"[..]));
    }
}
