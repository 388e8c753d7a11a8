//! Definitions of code objects that handlers see for the first time: one ring for all threads, read by the writer.
//!
//! ```text
//!   word 0: words << 1 | 1 once the record is complete     1: number     2: time
//!   3: first line | line table bytes << 32                 4, 5: name, file: size in bytes | `state` << 32
//!   6..: name, file, line table, each starting at a whole word
//! ```
//! Unused words are zero. An incomplete record delays the following records, and the samples that need them.

use std::sync::atomic::{AtomicU64, Ordering};

const RING_WORDS: usize = 1 << 16;
const MAX_RECORD_WORDS: u64 = 1 << 13;
/// Words before the pieces of a record.
const HEADER_WORDS: u64 = 6;

struct Ring {
    words: [AtomicU64; RING_WORDS],
    write_position: AtomicU64,
    read_position: AtomicU64,
}

/// Static, so that it takes no memory until a handler writes to it.
static RING: Ring = Ring {
    words: [const { AtomicU64::new(0) }; RING_WORDS],
    write_position: AtomicU64::new(0),
    read_position: AtomicU64::new(0),
};

/// A part of a record, in the interpreter's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Piece {
    /// Start address of the piece in the interpreter's memory.
    pub(super) address: u64,
    pub(super) size: u32,
    /// Bytes per character of a string; unused for other pieces.
    pub(super) state: u32,
}

/// A code object that a handler defines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodeObject {
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) first_line: u32,
    pub(super) name: Piece,
    pub(super) file: Piece,
    pub(super) lines: Piece,
}

/// A code object's definition as the writer reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Definition {
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) first_line: u32,
    pub(super) name: (u32, Vec<u8>),
    pub(super) file: (u32, Vec<u8>),
    pub(super) lines: Vec<u8>,
}

fn ring_word(position: u64) -> &'static AtomicU64 {
    RING.words.get(position as usize % RING_WORDS).unwrap_or(&RING.words[0])
}

fn piece_words(piece: Piece) -> u64 {
    u64::from(piece.size).div_ceil(8)
}

/// Reserves contiguous space for a record. Returns its position; `None` if the ring is full.
fn reserve(words: u64) -> Option<u64> {
    // Retry, because other threads may reserve space at the same time.
    for _ in 0..16 {
        let start = RING.write_position.load(Ordering::Relaxed);
        let words_to_end = RING_WORDS as u64 - start % RING_WORDS as u64;
        let padding = if words_to_end < words { words_to_end } else { 0 };
        if start + padding + words - RING.read_position.load(Ordering::Acquire) > RING_WORDS as u64 {
            return None;
        }
        let end = start + padding + words;
        if RING.write_position.compare_exchange(start, end, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            if padding != 0 {
                ring_word(start).store(padding << 1 | 1, Ordering::Release);
            }
            return Some(start + padding);
        }
    }
    None
}

/// Writes a record. `copy` copies bytes from one address to another. If it fails, the record is written with number 0.
/// Returns `None` in that case, or if there is no space.
pub(super) fn write(code_object: &CodeObject, mut copy: impl FnMut(u64, *mut u8, usize) -> bool) -> Option<()> {
    let pieces = [code_object.name, code_object.file, code_object.lines];
    let words = HEADER_WORDS + pieces.into_iter().map(piece_words).sum::<u64>();
    if words > MAX_RECORD_WORDS {
        return None;
    }
    let start = reserve(words)?;
    let head = [
        code_object.number,
        code_object.time,
        u64::from(code_object.first_line) | u64::from(code_object.lines.size) << 32,
        u64::from(code_object.name.size) | u64::from(code_object.name.state) << 32,
        u64::from(code_object.file.size) | u64::from(code_object.file.state) << 32,
    ];
    for (position, word) in (1..).zip(head) {
        ring_word(start + position).store(word, Ordering::Relaxed);
    }
    let mut position = start + HEADER_WORDS;
    let mut is_whole = true;
    for piece in pieces {
        is_whole &= copy(piece.address, ring_word(position).as_ptr().cast(), piece.size as usize);
        position += piece_words(piece);
    }
    if !is_whole {
        // The writer never looks up number 0.
        ring_word(start + 1).store(0, Ordering::Relaxed);
    }
    ring_word(start).store(words << 1 | 1, Ordering::Release);
    is_whole.then_some(())
}

/// Clears the ring, including a record that another thread had begun before a fork. Only call while no handler writes.
pub(super) fn clear() {
    let (start, end) = (RING.read_position.load(Ordering::Acquire), RING.write_position.load(Ordering::Acquire));
    (start..end).for_each(|position| ring_word(position).store(0, Ordering::Relaxed));
    RING.read_position.store(end, Ordering::Release);
}

/// Reads and removes all complete records. Only for the writer.
pub(super) fn drain(mut visit: impl FnMut(Definition)) {
    loop {
        let start = RING.read_position.load(Ordering::Relaxed);
        let head = ring_word(start).load(Ordering::Acquire);
        if head & 1 == 0 || RING.write_position.load(Ordering::Acquire) == start {
            return;
        }
        let words = (head >> 1).clamp(1, RING_WORDS as u64);
        if words >= HEADER_WORDS
            && let Some(definition) = read_record(start, words).filter(|definition| definition.number != 0)
        {
            visit(definition);
        }
        for index in 0..words {
            ring_word(start + index).store(0, Ordering::Relaxed);
        }
        RING.read_position.store(start + words, Ordering::Release);
    }
}

fn read_record(start: u64, words: u64) -> Option<Definition> {
    let word = |index: u64| ring_word(start + index).load(Ordering::Relaxed);
    let read_halves = |index: u64| (word(index) as u32, (word(index) >> 32) as u32);
    let ((first_line, lines), (name, name_state), (file, file_state)) =
        (read_halves(3), read_halves(4), read_halves(5));
    let mut index = HEADER_WORDS;
    let mut piece = |size: u32| {
        let end = index + u64::from(size).div_ceil(8);
        if end > words {
            return None;
        }
        let mut bytes: Vec<u8> = (index..end).flat_map(|index| word(index).to_ne_bytes()).collect();
        bytes.truncate(size as usize);
        index = end;
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
        // SAFETY: `from` is the test's own memory, and the ring has space for the bytes.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, size) };
        true
    }

    #[test]
    fn records_survive_the_ring_and_a_full_ring_refuses_more() {
        let _lock = crate::thread::slots::lock_for_test();
        clear();
        let (name, file, lines) = (b"outer.<locals>.inner", b"/tmp/a.py", vec![7_u8; 3001]);
        let mut number = 1;
        for _ in 0..5 {
            let first = number;
            let code_object = |number| CodeObject {
                number,
                time: 5,
                first_line: 12,
                name: piece(name, 1),
                file: piece(file, 2),
                lines: piece(&lines, 0),
            };
            while write(&code_object(number), copy).is_some() {
                number += 1;
            }
            assert!(number - first > 150);
            let mut expected = first;
            drain(|definition| {
                assert_eq!((definition.number, definition.first_line, definition.time), (expected, 12, 5));
                assert_eq!(definition.name, (1, name.to_vec()));
                assert_eq!((definition.file, definition.lines), ((2, file.to_vec()), lines.clone()));
                expected += 1;
            });
            assert_eq!(expected, number);
        }
        // The bytes of this name have become unreadable.
        let unreadable_object = CodeObject { number, name: piece(name, 1), ..CodeObject::default() };
        assert_eq!(write(&unreadable_object, |_, _, _| false), None);
        drain(|_| panic!("it has no number"));
    }
}
