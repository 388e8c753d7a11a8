//! Code objects that handlers met for the first time: a ring of all threads, read by the writer.
//!
//! ```text
//!   word 0: words << 1 | 1, when the rest is there     1: number     2: time
//!   3: first line | bytes of the line table << 32      4, 5: name, file: bytes of each, and its `state` << 32
//!   6..: name, file, line table, each from a whole word on
//! ```
//! Unused words are zero. A record that a thread is still writing delays the following records, and the samples that
//! need them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the ring.
const RING: usize = 1 << 16;
/// Of one record.
const MOST: u64 = 1 << 13;
const HEAD: u64 = 6;

static WORDS: [AtomicU64; RING] = [const { AtomicU64::new(0) }; RING];
static WRITTEN: AtomicU64 = AtomicU64::new(0);
static READ: AtomicU64 = AtomicU64::new(0);

/// A piece of a record.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Piece {
    /// The bytes in the interpreter's memory.
    pub(super) address: u64,
    pub(super) size: u32,
    /// How characters are stored, where it is text.
    pub(super) state: u32,
}

/// A code object in the words of a handler.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) first_line: u32,
    pub(super) name: Piece,
    pub(super) file: Piece,
    pub(super) lines: Piece,
}

/// A code object as the writer gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Definition {
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) first_line: u32,
    pub(super) name: (u32, Vec<u8>),
    pub(super) file: (u32, Vec<u8>),
    pub(super) lines: Vec<u8>,
}

fn place(position: u64) -> &'static AtomicU64 {
    WORDS.get(position as usize % RING).unwrap_or(&WORDS[0])
}

fn words_of(piece: Piece) -> u64 {
    u64::from(piece.size).div_ceil(8)
}

/// Words that one record may have.
fn reserve(words: u64) -> Option<u64> {
    // A few attempts: others may be at it.
    for _ in 0..16 {
        let start = WRITTEN.load(Ordering::Relaxed);
        let to_end = RING as u64 - start % RING as u64;
        let padding = if to_end < words { to_end } else { 0 };
        if start + padding + words - READ.load(Ordering::Acquire) > RING as u64 {
            return None;
        }
        let end = start + padding + words;
        if WRITTEN.compare_exchange(start, end, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            if padding != 0 {
                place(start).store(padding << 1 | 1, Ordering::Release);
            }
            return Some(start + padding);
        }
    }
    None
}

/// Writes a record. `copy` copies bytes to an address; where it cannot, the piece is empty. `None`: there is no space.
pub(super) fn write(found: &Found, mut copy: impl FnMut(u64, *mut u8, usize) -> bool) -> Option<()> {
    let pieces = [found.name, found.file, found.lines];
    let words = HEAD + pieces.into_iter().map(words_of).sum::<u64>();
    if words > MOST {
        return None;
    }
    let start = reserve(words)?;
    let head = [
        found.number,
        found.time,
        u64::from(found.first_line) | u64::from(found.lines.size) << 32,
        u64::from(found.name.size) | u64::from(found.name.state) << 32,
        u64::from(found.file.size) | u64::from(found.file.state) << 32,
    ];
    for (at, word) in (1..).zip(head) {
        place(start + at).store(word, Ordering::Relaxed);
    }
    let mut at = start + HEAD;
    let mut is_whole = true;
    for piece in pieces {
        is_whole &= copy(piece.address, place(at).as_ptr().cast(), piece.size as usize);
        at += words_of(piece);
    }
    if !is_whole {
        // Number 0 is never asked for.
        place(start + 1).store(0, Ordering::Relaxed);
    }
    place(start).store(words << 1 | 1, Ordering::Release);
    is_whole.then_some(())
}

/// Forgets everything, also what a thread of the parent has begun. While no handler writes.
pub(super) fn clear() {
    let (start, end) = (READ.load(Ordering::Acquire), WRITTEN.load(Ordering::Acquire));
    (start..end).for_each(|at| place(at).store(0, Ordering::Relaxed));
    READ.store(end, Ordering::Release);
}

/// Takes out what is there. For the one writer.
pub(super) fn take(mut each: impl FnMut(Definition)) {
    loop {
        let start = READ.load(Ordering::Relaxed);
        let head = place(start).load(Ordering::Acquire);
        if head & 1 == 0 || WRITTEN.load(Ordering::Acquire) == start {
            return;
        }
        let words = (head >> 1).clamp(1, RING as u64);
        if words >= HEAD
            && let Some(definition) = read(start, words).filter(|definition| definition.number != 0)
        {
            each(definition);
        }
        for at in 0..words {
            place(start + at).store(0, Ordering::Relaxed);
        }
        READ.store(start + words, Ordering::Release);
    }
}

fn read(start: u64, words: u64) -> Option<Definition> {
    let word = |at: u64| place(start + at).load(Ordering::Relaxed);
    let half = |at: u64| (word(at) as u32, (word(at) >> 32) as u32);
    let ((first_line, lines), (name, name_state), (file, file_state)) = (half(3), half(4), half(5));
    let mut at = HEAD;
    let mut piece = |size: u32| {
        let end = at + u64::from(size).div_ceil(8);
        if end > words {
            return None;
        }
        let mut bytes: Vec<u8> = (at..end).flat_map(|at| word(at).to_ne_bytes()).collect();
        bytes.truncate(size as usize);
        at = end;
        Some(bytes)
    };
    Some(Definition {
        number: word(1),
        time: word(2),
        first_line,
        name: (name_state, piece(name)?),
        file: (file_state, piece(file)?),
        lines: piece(lines)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bytes: &[u8], state: u32) -> Piece {
        Piece { address: bytes.as_ptr() as u64, size: bytes.len() as u32, state }
    }

    fn copy(from: u64, to: *mut u8, size: usize) -> bool {
        // SAFETY: of the test's own bytes, to the ring, which has so many.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, size) };
        true
    }

    #[test]
    fn records_come_out_as_they_went_in_and_a_full_ring_says_so() {
        let _lock = crate::slot::lock_for_test();
        clear();
        let (name, file, lines) = (b"outer.<locals>.inner", b"/tmp/a.py", vec![7_u8; 3001]);
        let mut number = 1;
        for _ in 0..5 {
            let first = number;
            let found = |number| Found {
                number,
                time: 5,
                first_line: 12,
                name: piece(name, 1),
                file: piece(file, 2),
                lines: piece(&lines, 0),
            };
            while write(&found(number), copy).is_some() {
                number += 1;
            }
            assert!(number - first > 150);
            let mut next = first;
            take(|definition| {
                assert_eq!((definition.number, definition.first_line, definition.time), (next, 12, 5));
                assert_eq!(definition.name, (1, name.to_vec()));
                assert_eq!((definition.file, definition.lines), ((2, file.to_vec()), lines.clone()));
                next += 1;
            });
            assert_eq!(next, number);
        }
        // Bytes that are not there any more.
        let gone = Found { number, name: piece(name, 1), ..Found::default() };
        assert_eq!(write(&gone, |_, _, _| false), None);
        take(|_| panic!("it has no number"));
    }
}
