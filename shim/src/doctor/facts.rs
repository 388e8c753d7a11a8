//! Facts about each LLVM of this process, for `jitlisten doctor PID`, which reads them with `process_vm_readv(2)` while
//! this process runs.
//!
//! The symbol `jitlisten_facts` is exported so that it survives `strip`; it is not part of the C API (programs have
//! `jitlisten_llvms()`). All words have 64 bits and native byte order:
//!
//! ```text
//!     0  magic      "JLFACTS\0", once the session observes the process
//!     8  layout     1
//!    16  capacity   of the text, in bytes
//!    24  sequence   odd while the text changes: a reading is valid if it was even before, and the same after
//!    32  length     of the text
//!    40  totals[8]  of the session, since it began: see `Total`
//!   104  counts[16][4]  of the LLVM in each slot: see `Count`
//!   616  text       JSON: {"llvms": [{"slot": n, "start": n, "file": s, ..}], "unheard": [{"start": n, "file": s,
//!                   "why": s}], "left_out": n}; "start" is where the library is mapped, "left_out" how many do not fit
//! ```
//!
//! The text is rewritten when an LLVM is loaded, closed or reclassified, never per object: counts are separate words,
//! and those in the text are from the time of writing. It lies in zeroed memory of the library, so it is never
//! allocated or freed under a reader, costs nothing until written, and a child of `fork(2)` has its own copy. All
//! writers except those of counts hold the shim's lock, which is held across `fork(2)`, too, so a child's text is
//! whole.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use jitlisten::Statistics;

use crate::doctor::discovered::{DiscoveredLlvm, UnheardLlvm};
use crate::hook_table::SLOTS;

const MAGIC: u64 = u64::from_ne_bytes(*b"JLFACTS\0");
const LAYOUT: u64 = 1;
/// Sixteen LLVMs with long paths and many sentences each.
const CAPACITY: usize = 32 << 10;
const WORD: usize = size_of::<u64>();

/// What is counted of each LLVM.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    /// Objects that RuntimeDyld has reported.
    RuntimeDyld = 0,
    /// Objects with code that were handed to JITLink.
    ForJitLink = 1,
    /// Of those, objects that were found in memory.
    JitLink = 2,
    /// Objects in its GDB JIT list, when that was read last.
    Listed = 3,
}

/// What is counted of all of them.
#[derive(Clone, Copy)]
enum Total {
    /// Objects that became final.
    Final = 0,
    Functions = 1,
    FunctionsWithoutFramePointer = 2,
    /// Objects with a line table; written by [`add_object_with_lines`].
    WithLines = 3,
    Images = 4,
    /// Images whose unwind tables perf cannot use.
    ImagesWithoutPadding = 5,
    /// Handlers of diagnostics that are observed; written by [`add_remark_handler`].
    RemarkHandlers = 6,
    /// Remarks of LLVM's vectoriser; written by [`add_remark`].
    Remarks = 7,
}

/// See the module's head.
#[repr(C)]
struct Facts {
    magic: AtomicU64,
    layout: AtomicU64,
    capacity: AtomicU64,
    sequence: AtomicU64,
    length: AtomicU64,
    totals: [AtomicU64; 8],
    counts: [[AtomicU64; 4]; SLOTS],
    text: [AtomicU64; CAPACITY / WORD],
}

const _: () = assert!(std::mem::offset_of!(Facts, totals) == 40 && std::mem::offset_of!(Facts, counts) == 104);
const _: () = assert!(std::mem::offset_of!(Facts, text) == 616);

// SAFETY: no other symbol has this name.
#[unsafe(export_name = "jitlisten_facts")]
static FACTS: Facts = Facts::new();

fn cell(slot: usize, what: Count) -> Option<&'static AtomicU64> {
    FACTS.counts.get(slot).map(|counts| &counts[what as usize])
}

/// One more.
pub(crate) fn count(slot: usize, what: Count) {
    if let Some(cell) = cell(slot, what) {
        cell.fetch_add(1, Ordering::Relaxed);
    }
}

/// So many.
pub(crate) fn set_count(slot: usize, what: Count, number: u64) {
    if let Some(cell) = cell(slot, what) {
        cell.store(number, Ordering::Relaxed);
    }
}

pub(crate) fn counted(slot: usize, what: Count) -> u64 {
    cell(slot, what).map_or(0, |cell| cell.load(Ordering::Relaxed))
}

/// Another LLVM has come to this slot.
pub(crate) fn begin(slot: usize) {
    for cell in FACTS.counts.get(slot).into_iter().flatten() {
        cell.store(0, Ordering::Relaxed);
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

/// Takes the counters of the session over.
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

/// Publishes these LLVMs, by slot, and those that are not observed. Under the shim's lock.
pub(crate) fn publish(llvms: &[(usize, DiscoveredLlvm)], unheard: &[UnheardLlvm]) {
    FACTS.publish(text(llvms, unheard, CAPACITY).as_bytes());
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
            text: [const { AtomicU64::new(0) }; CAPACITY / WORD],
        }
    }

    fn publish(&self, text: &[u8]) {
        self.layout.store(LAYOUT, Ordering::Relaxed);
        self.capacity.store(CAPACITY as u64, Ordering::Relaxed);
        // Odd already where a thread is missing that was at this in the parent of a `clone(2)` without handlers.
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, bytes) in self.text.iter().zip(text.chunks(WORD)) {
            let mut padded = [0; WORD];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        self.length.store(text.len().min(CAPACITY) as u64, Ordering::Relaxed);
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
        self.magic.store(MAGIC, Ordering::Release);
    }
}

/// The JSON, of at most so many bytes.
fn text(llvms: &[(usize, DiscoveredLlvm)], unheard: &[UnheardLlvm], most: usize) -> String {
    /// For what is behind the entries.
    const END: usize = 64;
    let mut left_out = 0;
    let mut entries = |text: &mut String, all: &mut dyn Iterator<Item = String>| {
        let mut separator = "";
        for entry in all {
            if text.len() + entry.len() + END > most {
                left_out += 1;
                continue;
            }
            let _ = write!(text, "{separator}{entry}");
            separator = ", ";
        }
    };
    let mut text = String::from("{\"llvms\": [");
    entries(&mut text, &mut llvms.iter().map(|(slot, llvm)| llvm.json_in(*slot)));
    text.push_str("], \"unheard\": [");
    entries(&mut text, &mut unheard.iter().map(UnheardLlvm::json));
    let _ = write!(text, "], \"left_out\": {left_out}}}");
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

    /// As another process reads it.
    fn read(facts: &Facts) -> Option<Vec<u8>> {
        let before = facts.sequence.load(Ordering::Acquire);
        let words: Vec<u64> = facts.text.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let length = facts.length.load(Ordering::Relaxed) as usize;
        fence(Ordering::Acquire);
        let is_good = before.is_multiple_of(2) && facts.sequence.load(Ordering::Relaxed) == before;
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        is_good.then(|| bytes[..length].to_vec())
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let llvms: Vec<_> = (0..40).map(|slot| (slot, llvm(&"p".repeat(1000)))).collect();
        let unheard = [UnheardLlvm { path: "/odd.so".into(), start: 1, why: "no names".to_owned() }];
        let text = text(&llvms, &unheard, CAPACITY);
        assert!(text.len() <= CAPACITY && text.len() > CAPACITY - 2000, "{}", text.len());
        let shown = text.matches("\"slot\"").count();
        assert!(text.ends_with(&format!("\"left_out\": {}}}", 40 - shown)), "{}", &text[text.len() - 200..]);
        assert!(text.contains("{\"start\": 1, \"file\": \"/odd.so\", \"why\": \"no names\"}"));
    }

    #[test]
    fn a_text_is_read_whole_or_not_at_all() {
        static HERE: Facts = Facts::new();
        static DONE: AtomicBool = AtomicBool::new(false);
        HERE.publish(b"a");
        let writer = thread::spawn(|| {
            let rounds = if cfg!(miri) { 3 } else { 2000 };
            for round in 0..rounds {
                HERE.publish(&[b'a' + (round % 26) as u8].repeat(1 + round % 3000));
            }
            DONE.store(true, Ordering::Relaxed);
        });
        let mut good = 0;
        while !DONE.load(Ordering::Relaxed) || good == 0 {
            let Some(text) = read(&HERE) else { continue };
            good += 1;
            assert!(text.iter().all(|byte| *byte == text[0]), "torn");
        }
        writer.join().unwrap();
        // A writer that was lost in the middle does not stop the next one.
        HERE.sequence.fetch_add(1, Ordering::Relaxed);
        assert_eq!(read(&HERE), None);
        HERE.publish(b"whole");
        assert_eq!(read(&HERE).as_deref(), Some(&b"whole"[..]));
    }
}
