//! Facts about each LLVM instance in a process, published by our library in that process and read from its memory.
//! `shim/src/doctor/facts.rs` defines the layout. A library without the symbol, or with another layout, yields no
//! facts; doctor then only uses information that it can read from outside the process.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use serde::Deserialize;

use crate::memory::{self, words};
use crate::process::Process;
use crate::symbols;

const SYMBOL: &str = "jitlisten_facts";
const MAGIC: u64 = u64::from_ne_bytes(*b"JLFACTS\0");
const LAYOUT: u64 = 1;
const LLVM_SLOTS: usize = 16;
const COUNTS_PER_LLVM: usize = 4;
/// Number of words before the totals: magic, layout, capacity, sequence, length.
const TOTALS_WORD: usize = 5;
const HEAD_WORDS: usize = TOTALS_WORD + 8;
const TEXT_OFFSET: usize = (HEAD_WORDS + LLVM_SLOTS * COUNTS_PER_LLVM) * 8;
/// Maximum size of the JSON text; no library publishes that much.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Maximum number of attempts to read the facts. The library rewrites them within microseconds.
const MAX_READS: usize = 50;

/// Facts published by the library.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) llvms: Vec<ObservedLlvm>,
    pub(super) unobserved: Vec<UnobservedLlvm>,
    pub(super) left_out: usize,
    pub(super) totals: Totals,
}

/// Totals counted by the session since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) objects: u64,
    pub(super) functions: u64,
    pub(super) without_frame_pointer: u64,
    pub(super) objects_with_lines: u64,
    pub(super) images: u64,
    pub(super) images_without_padding: u64,
    pub(super) remark_handlers: u64,
    pub(super) remarks: u64,
}

/// LLVM instance that the library observes.
#[derive(Debug, Deserialize)]
pub(super) struct ObservedLlvm {
    slot: usize,
    start: u64,
    /// Path of the LLVM library, as in the facts.
    pub(super) file: String,
    pub(super) version: Option<String>,
    pub(super) heard_by: Vec<String>,
    pub(super) missing: Vec<String>,
    #[serde(skip)]
    pub(super) counts: Counts,
}

/// Number of objects of one LLVM instance, by the hook that reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) runtime_dyld: u64,
    pub(super) for_jitlink: u64,
    pub(super) jitlink: u64,
    pub(super) listed: u64,
}

/// LLVM instance that the library does not observe.
#[derive(Debug, Deserialize)]
pub(super) struct UnobservedLlvm {
    start: u64,
    pub(super) file: String,
    pub(super) why: String,
}

#[derive(Deserialize)]
struct FactsJson {
    llvms: Vec<ObservedLlvm>,
    unheard: Vec<UnobservedLlvm>,
    left_out: usize,
}

impl Facts {
    /// Reads the facts. Returns `None` if the library publishes no facts, because it is old or inactive, or if it
    /// rewrites them during every attempt.
    pub(super) fn read_from(process: &Process, library: &Path) -> Option<Facts> {
        let address = symbols::address(process, library, SYMBOL)?;
        for _ in 0..MAX_READS {
            match Facts::read(|offset, size| memory::read(process.pid, address + offset as u64, size).ok()) {
                Reading::Good(facts) => return Some(*facts),
                Reading::Nothing => return None,
                Reading::Changing => sleep(Duration::from_millis(1)),
            }
        }
        None
    }

    fn read(read: impl Fn(usize, usize) -> Option<Vec<u8>>) -> Reading {
        let read_head = || Some(words::<HEAD_WORDS>(&read(0, HEAD_WORDS * 8)?));
        let Some(head) = read_head() else { return Reading::Nothing };
        let [magic, layout, capacity, sequence, length, ..] = head;
        if magic != MAGIC || layout != LAYOUT || capacity > MAX_TEXT_BYTES || length > capacity {
            return Reading::Nothing;
        }
        let Some(bytes) = read(HEAD_WORDS * 8, TEXT_OFFSET - HEAD_WORDS * 8 + length as usize) else {
            return Reading::Nothing;
        };
        let Some([_, _, _, sequence_after, ..]) = read_head() else { return Reading::Nothing };
        if sequence % 2 == 1 || sequence_after != sequence {
            return Reading::Changing;
        }
        let (counts, text) = bytes.split_at(TEXT_OFFSET - HEAD_WORDS * 8);
        let Ok(FactsJson { mut llvms, unheard, left_out }) = serde_json::from_slice(text) else {
            return Reading::Nothing;
        };
        for llvm in &mut llvms {
            let slot_bytes = counts.chunks_exact(COUNTS_PER_LLVM * 8).nth(llvm.slot);
            let [runtime_dyld, for_jitlink, jitlink, listed] = words::<COUNTS_PER_LLVM>(slot_bytes.unwrap_or_default());
            llvm.counts = Counts { runtime_dyld, for_jitlink, jitlink, listed };
        }
        let total = |index| head[TOTALS_WORD + index];
        let totals = Totals {
            objects: total(0),
            functions: total(1),
            without_frame_pointer: total(2),
            objects_with_lines: total(3),
            images: total(4),
            images_without_padding: total(5),
            remark_handlers: total(6),
            remarks: total(7),
        };
        Reading::Good(Box::new(Facts { llvms, unobserved: unheard, left_out, totals }))
    }
}

enum Reading {
    Good(Box<Facts>),
    /// The library rewrote the facts during the read.
    Changing,
    Nothing,
}

impl ObservedLlvm {
    pub(super) fn library(&self, process: &Process) -> PathBuf {
        library_path(process, self.start, &self.file)
    }
}

impl UnobservedLlvm {
    pub(super) fn library(&self, process: &Process) -> PathBuf {
        library_path(process, self.start, &self.file)
    }
}

/// Returns the path of the mapping at `start`, or else the path by which the library was opened.
fn library_path(process: &Process, start: u64, file: &str) -> PathBuf {
    let mappings_below = process.mappings.iter().filter(|mapping| mapping.start <= start);
    let mapped_path = mappings_below.max_by_key(|mapping| mapping.start).map(|mapping| &mapping.path);
    mapped_path.filter(|path| path.is_absolute()).cloned().unwrap_or_else(|| file.into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const JSON: &str = r#"{"llvms": [{"slot": 1, "start": 4096, "file": "/lib/h.so", "version": null,
        "heard_by": ["jitlink"],
        "linked": 0, "listed": 0, "missing": ["RuntimeDyld: no vtable of RuntimeDyldELF"]}],
        "unheard": [{"start": 1, "file": "/odd.so", "why": "no names"}], "left_out": 2, "more": true}"#;

    fn memory(sequence: u64, text: &str) -> Vec<u8> {
        let mut words = vec![MAGIC, LAYOUT, 32 << 10, sequence, text.len() as u64, 5, 40, 3, 1, 5, 2, 6, 7];
        words.extend((0..64).map(|count| 100 + count));
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_ne_bytes).collect();
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn what_a_library_shows() {
        let bytes = memory(2, JSON);
        let Reading::Good(facts) = Facts::read(|from, size| Some(bytes.get(from..from + size)?.to_vec())) else {
            panic!("good")
        };
        assert_eq!((facts.left_out, facts.unobserved[0].why.as_str()), (2, "no names"));
        let counts = Counts { runtime_dyld: 104, for_jitlink: 105, jitlink: 106, listed: 107 };
        assert_eq!((facts.llvms[0].counts, facts.llvms[0].version.as_deref()), (counts, None));
        let totals = facts.totals;
        assert_eq!((totals.objects, totals.functions, totals.without_frame_pointer), (5, 40, 3));
        assert_eq!((totals.objects_with_lines, totals.images, totals.images_without_padding), (1, 5, 2));
        assert_eq!((totals.remark_handlers, totals.remarks), (6, 7));
    }

    #[test]
    fn what_is_no_good_is_not_taken() {
        let read_facts = |bytes: &[u8]| Facts::read(|from, size| Some(bytes.get(from..from + size)?.to_vec()));
        assert!(matches!(read_facts(&memory(3, JSON)), Reading::Changing));
        let mut bytes = memory(2, JSON);
        for (offset, byte) in [(0, b'X'), (8, 2), (20, 1), (33, 0xff)] {
            let old_byte = std::mem::replace(&mut bytes[offset], byte);
            assert!(matches!(read_facts(&bytes), Reading::Nothing), "{offset}");
            bytes[offset] = old_byte;
        }
        assert!(matches!(read_facts(&bytes), Reading::Good(_)));
        assert!(matches!(read_facts(&memory(2, "{\"llvms\": [")), Reading::Nothing));
        assert!(matches!(read_facts(&[]), Reading::Nothing));
        // The sequence number changes with every read.
        let (bytes, reads) = (memory(2, JSON), Cell::new(0));
        let changing = Facts::read(|from, size| {
            let mut bytes = bytes.clone();
            bytes[24] += 2 * reads.replace(reads.get() + 1) as u8;
            Some(bytes[from..from + size].to_vec())
        });
        assert!(matches!(changing, Reading::Changing));
    }
}
