//! The facts that the library in a process publishes about each LLVM, read from its memory. `shim/src/doctor/facts.rs`
//! defines the layout.
//!
//! A library without the symbol or with another layout yields no facts; doctor then uses only what it reads from
//! outside.

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
const SLOTS: usize = 16;
const COUNTS: usize = 4;
/// Words in front of the counts: magic, layout, capacity, sequence, length, and eight totals.
const TOTALS: usize = 5;
const HEAD: usize = TOTALS + 8;
const TEXT: usize = (HEAD + SLOTS * COUNTS) * 8;
/// No library writes more.
const LARGEST: u64 = 1 << 20;
/// A text is written in microseconds.
const TRIES: usize = 50;

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) llvms: Vec<HeardLlvm>,
    pub(super) unheard: Vec<UnheardLlvm>,
    pub(super) left_out: usize,
    pub(super) totals: Totals,
}

/// What the session has counted since it began.
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

/// An LLVM that the library observes.
#[derive(Debug, Deserialize)]
pub(super) struct HeardLlvm {
    slot: usize,
    start: u64,
    /// As the library names it.
    pub(super) file: String,
    pub(super) version: Option<String>,
    pub(super) heard_by: Vec<String>,
    pub(super) missing: Vec<String>,
    #[serde(skip)]
    pub(super) counts: Counts,
}

/// How many of its objects were reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) runtime_dyld: u64,
    pub(super) for_jitlink: u64,
    pub(super) jitlink: u64,
    pub(super) listed: u64,
}

/// An LLVM that it does not observe.
#[derive(Debug, Deserialize)]
pub(super) struct UnheardLlvm {
    start: u64,
    pub(super) file: String,
    pub(super) why: String,
}

#[derive(Deserialize)]
struct Text {
    llvms: Vec<HeardLlvm>,
    unheard: Vec<UnheardLlvm>,
    left_out: usize,
}

impl Facts {
    /// Reads them; `None` where the library shows nothing: it is old, does not listen, or changes them all the time.
    pub(super) fn of(process: &Process, library: &Path) -> Option<Facts> {
        let address = symbols::address(process, library, SYMBOL)?;
        for _ in 0..TRIES {
            match Facts::read(|offset, size| memory::read(process.pid, address + offset as u64, size).ok()) {
                Reading::Good(facts) => return Some(*facts),
                Reading::Nothing => return None,
                Reading::Changing => sleep(Duration::from_millis(1)),
            }
        }
        None
    }

    fn read(read: impl Fn(usize, usize) -> Option<Vec<u8>>) -> Reading {
        let head = || Some(words::<HEAD>(&read(0, HEAD * 8)?));
        let Some(before) = head() else { return Reading::Nothing };
        let [magic, layout, capacity, sequence, length, ..] = before;
        if magic != MAGIC || layout != LAYOUT || capacity > LARGEST || length > capacity {
            return Reading::Nothing;
        }
        let Some(bytes) = read(HEAD * 8, TEXT - HEAD * 8 + length as usize) else { return Reading::Nothing };
        let Some([_, _, _, sequence_after, ..]) = head() else { return Reading::Nothing };
        if sequence % 2 == 1 || sequence_after != sequence {
            return Reading::Changing;
        }
        let (counts, text) = bytes.split_at(TEXT - HEAD * 8);
        let Ok(Text { mut llvms, unheard, left_out }) = serde_json::from_slice(text) else { return Reading::Nothing };
        for llvm in &mut llvms {
            let of_slot = counts.chunks_exact(COUNTS * 8).nth(llvm.slot);
            let [runtime_dyld, for_jitlink, jitlink, listed] = words::<COUNTS>(of_slot.unwrap_or_default());
            llvm.counts = Counts { runtime_dyld, for_jitlink, jitlink, listed };
        }
        let total = |number| before[TOTALS + number];
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
        Reading::Good(Box::new(Facts { llvms, unheard, left_out, totals }))
    }
}

enum Reading {
    Good(Box<Facts>),
    /// It changed meanwhile.
    Changing,
    Nothing,
}

impl HeardLlvm {
    pub(super) fn library(&self, process: &Process) -> PathBuf {
        library(process, self.start, &self.file)
    }
}

impl UnheardLlvm {
    pub(super) fn library(&self, process: &Process) -> PathBuf {
        library(process, self.start, &self.file)
    }
}

/// The file that is mapped there, or as the library names it: by the name it was opened by.
fn library(process: &Process, start: u64, file: &str) -> PathBuf {
    let below = process.mappings.iter().filter(|mapping| mapping.start <= start);
    let mapped = below.max_by_key(|mapping| mapping.start).map(|mapping| &mapping.path);
    mapped.filter(|path| path.is_absolute()).cloned().unwrap_or_else(|| file.into())
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
        assert_eq!((facts.left_out, facts.unheard[0].why.as_str()), (2, "no names"));
        let counts = Counts { runtime_dyld: 104, for_jitlink: 105, jitlink: 106, listed: 107 };
        assert_eq!((facts.llvms[0].counts, facts.llvms[0].version.as_deref()), (counts, None));
        let totals = facts.totals;
        assert_eq!((totals.objects, totals.functions, totals.without_frame_pointer), (5, 40, 3));
        assert_eq!((totals.objects_with_lines, totals.images, totals.images_without_padding), (1, 5, 2));
        assert_eq!((totals.remark_handlers, totals.remarks), (6, 7));
    }

    #[test]
    fn what_is_no_good_is_not_taken() {
        let read = |bytes: &[u8]| Facts::read(|from, size| Some(bytes.get(from..from + size)?.to_vec()));
        assert!(matches!(read(&memory(3, JSON)), Reading::Changing));
        let mut other = memory(2, JSON);
        for (at, byte) in [(0, b'X'), (8, 2), (20, 1), (33, 0xff)] {
            let old = std::mem::replace(&mut other[at], byte);
            assert!(matches!(read(&other), Reading::Nothing), "{at}");
            other[at] = old;
        }
        assert!(matches!(read(&other), Reading::Good(_)));
        assert!(matches!(read(&memory(2, "{\"llvms\": [")), Reading::Nothing));
        assert!(matches!(read(&[]), Reading::Nothing));
        // Written between two looks.
        let (bytes, looks) = (memory(2, JSON), Cell::new(0));
        let changing = Facts::read(|from, size| {
            let mut bytes = bytes.clone();
            bytes[24] += 2 * looks.replace(looks.get() + 1) as u8;
            Some(bytes[from..from + size].to_vec())
        });
        assert!(matches!(changing, Reading::Changing));
    }
}
