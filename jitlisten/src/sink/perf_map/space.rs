//! Which bytes of the map may be written again: a service that compiles and frees for ever must not fill the disk.
//!
//! ```text
//!   | block, alive | block, dead | 0 0 freed------- | block, alive |  ...  | block, dead |
//!     one object     kept: its     a hole: the next
//!                    samples want  object that fits
//!                    their name    goes here
//! ```
//!
//! A *block* is the lines of one object, written at once. When its code is freed it is kept, so that samples taken in it
//! keep their names; when more than [`KEPT`] bytes are dead, the oldest become holes. An object goes into the smallest hole
//! that its lines leave nothing of, or enough for a line about no code; only where there is none is the file prolonged.
//! Other writers' lines are in no block.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use crate::ObjectId;

/// How many bytes of dead lines are kept: some ten thousand functions.
pub(super) const KEPT: u64 = 1 << 20;
/// `0 0 freed\n`
pub(super) const SHORTEST_LINE: u64 = 10;
/// Holes that touch become one, up to this size: it is written as a whole.
const LARGEST_HOLE: u64 = 1 << 14;

/// The lines of one object.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) length: u64,
    /// The addresses its lines begin with.
    pub(super) starts: Vec<u64>,
}

impl Block {
    pub(super) fn contains(&self, offset: u64) -> bool {
        (self.offset..self.offset + self.length).contains(&offset)
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Space {
    alive: BTreeMap<ObjectId, Block>,
    /// The oldest first.
    dead: VecDeque<Block>,
    dead_bytes: u64,
    /// By offset: length.
    holes: BTreeMap<u64, u64>,
    kept: u64,
}

impl Default for Space {
    fn default() -> Self {
        Space::keeping(KEPT)
    }
}

impl Space {
    pub(super) fn keeping(kept: u64) -> Space {
        Space { alive: BTreeMap::new(), dead: VecDeque::new(), dead_bytes: 0, holes: BTreeMap::new(), kept }
    }

    /// A block was written. One that was there for the same object is dead.
    pub(super) fn written(&mut self, object: ObjectId, block: Block) {
        self.freed(object);
        self.alive.insert(object, block);
    }

    /// An object's code is gone.
    pub(super) fn freed(&mut self, object: ObjectId) {
        if let Some(block) = self.alive.remove(&object) {
            self.dead_bytes += block.length;
            self.dead.push_back(block);
        }
    }

    /// What is alive is no longer known.
    pub(super) fn all_freed(&mut self) {
        while let Some((&object, _)) = self.alive.first_key_value() {
            self.freed(object);
        }
    }

    /// The oldest dead block, if there is more than is kept. Its lines are forgotten, and its bytes may be used again.
    pub(super) fn surplus(&mut self) -> Option<Block> {
        if self.dead_bytes <= self.kept {
            return None;
        }
        let block = self.dead.pop_front()?;
        self.dead_bytes -= block.length;
        self.add_hole(block.offset, block.length);
        Some(block)
    }

    /// Takes the best hole for `length` bytes of lines. What is left of it must be made a line at once.
    pub(super) fn take_hole(&mut self, length: u64) -> Option<(u64, u64)> {
        let fits = |hole: u64| hole == length || hole >= length + SHORTEST_LINE;
        let fitting = self.holes.iter().filter(|&(_, &hole)| fits(hole));
        let (&offset, &hole) = fitting.min_by_key(|&(_, &hole)| hole)?;
        self.holes.remove(&offset);
        if hole > length {
            self.holes.insert(offset + length, hole - length);
        }
        Some((offset, hole))
    }

    fn add_hole(&mut self, mut offset: u64, mut length: u64) {
        if let Some((&before, &size)) = self.holes.range(..offset).next_back()
            && before + size == offset
            && size + length <= LARGEST_HOLE
        {
            self.holes.remove(&before);
            (offset, length) = (before, size + length);
        }
        if let Some(&size) = self.holes.get(&(offset + length))
            && size + length <= LARGEST_HOLE
        {
            self.holes.remove(&(offset + length));
            length += size;
        }
        self.holes.insert(offset, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(offset: u64, length: u64) -> Block {
        Block { offset, length, starts: vec![offset] }
    }

    #[test]
    fn the_oldest_dead_lines_make_way_when_there_are_too_many() {
        let mut space = Space::keeping(150);
        for id in 0..3 {
            space.written(ObjectId(id), block(id * 100, 100));
        }
        space.freed(ObjectId(1));
        assert!(space.surplus().is_none(), "one is kept");
        space.freed(ObjectId(0));
        assert_eq!(space.surplus().unwrap().offset, 100);
        assert!(space.surplus().is_none());
        assert_eq!(space.take_hole(101), None, "too small");
        assert_eq!(space.take_hole(91), None, "what is left is no line");
        assert_eq!(space.take_hole(90), Some((100, 100)));
        assert_eq!(space.take_hole(10), Some((190, 10)));
        assert_eq!(space.take_hole(1), None);
    }

    #[test]
    fn holes_that_touch_are_one_and_the_smallest_is_taken() {
        let mut space = Space::keeping(0);
        for (id, (offset, length)) in [(0, 30), (30, 40), (70, 20), (200, 50)].into_iter().enumerate() {
            space.written(ObjectId(id as u64), block(offset, length));
        }
        space.all_freed();
        while space.surplus().is_some() {}
        assert_eq!(space.take_hole(40), Some((200, 50)));
        assert_eq!(space.take_hole(90), Some((0, 90)));
    }

    #[test]
    fn an_object_that_is_reported_again_leaves_a_dead_block() {
        let mut space = Space::keeping(0);
        space.written(ObjectId(7), block(0, 30));
        space.written(ObjectId(7), block(30, 30));
        assert_eq!(space.surplus().unwrap().offset, 0);
        assert!(space.surplus().is_none());
    }
}
