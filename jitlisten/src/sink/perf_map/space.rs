//! Reuses bytes of the map: a service that compiles and frees forever must not fill the disk.
//!
//! ```text
//!   | block, alive | block, dead | 0 0 freed------- | block, alive |  ...  | block, dead |
//!     one object     kept: its     a hole: the next
//!                    samples want  object that fits
//!                    their name    goes here
//! ```
//!
//! A *block* is the lines of one object, written at once. It is kept when its code is freed, so that samples keep their
//! names; when more than [`KEPT`] bytes are dead, the oldest blocks become holes. The lines in a hole stay readable
//! until it is filled, and are overwritten if their address is reused. An object goes into the smallest hole that its
//! lines fill, or that leaves enough for a line without code. If there is none, the file grows. Other writers' lines
//! are in no block.

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

/// Bytes that may be written again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) length: u64,
    /// The addresses that lines in it begin with.
    pub(super) starts: Vec<u64>,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Space {
    alive: BTreeMap<ObjectId, Block>,
    /// The oldest first.
    dead: VecDeque<Block>,
    dead_bytes: u64,
    /// By offset.
    holes: BTreeMap<u64, Hole>,
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

    /// Makes holes of the oldest dead blocks, if there is more than is kept.
    pub(super) fn make_holes(&mut self) {
        while self.dead_bytes > self.kept
            && let Some(block) = self.dead.pop_front()
        {
            self.dead_bytes -= block.length;
            self.add_hole(block.offset, Hole { length: block.length, starts: block.starts });
        }
    }

    /// Takes the best hole for `length` bytes of lines. It must be filled at once, the rest of it with a line about
    /// no code.
    pub(super) fn take_hole(&mut self, length: u64) -> Option<(u64, Hole)> {
        let fits = |hole: u64| hole == length || hole >= length + SHORTEST_LINE;
        let fitting = self.holes.iter().filter(|(_, hole)| fits(hole.length));
        let (&offset, _) = fitting.min_by_key(|(_, hole)| hole.length)?;
        let hole = self.holes.remove(&offset)?;
        if hole.length > length {
            self.holes.insert(offset + length, Hole { length: hole.length - length, starts: Vec::new() });
        }
        Some((offset, hole))
    }

    fn add_hole(&mut self, mut offset: u64, mut hole: Hole) {
        if let Some((&at, before)) = self.holes.range(..offset).next_back()
            && at + before.length == offset
            && before.length + hole.length <= LARGEST_HOLE
            && let Some(before) = self.holes.remove(&at)
        {
            (offset, hole) = (at, before.and(hole));
        }
        let end = offset + hole.length;
        if let Some(behind) = self.holes.get(&end)
            && behind.length + hole.length <= LARGEST_HOLE
            && let Some(behind) = self.holes.remove(&end)
        {
            hole = hole.and(behind);
        }
        self.holes.insert(offset, hole);
    }
}

impl Hole {
    fn and(mut self, mut behind: Hole) -> Hole {
        self.length += behind.length;
        self.starts.append(&mut behind.starts);
        self
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
        space.make_holes();
        assert_eq!(space.take_hole(10), None, "one is kept");
        space.freed(ObjectId(0));
        space.make_holes();
        assert_eq!(space.take_hole(101), None, "too small");
        assert_eq!(space.take_hole(91), None, "the rest is too short for a line");
        assert_eq!(space.take_hole(90), Some((100, Hole { length: 100, starts: vec![100] })));
        assert_eq!(space.take_hole(10), Some((190, Hole { length: 10, starts: vec![] })), "its lines are overwritten");
        assert_eq!(space.take_hole(1), None);
    }

    #[test]
    fn holes_that_touch_are_one_and_the_smallest_is_taken() {
        let mut space = Space::keeping(0);
        for (id, (offset, length)) in [(0, 30), (30, 40), (70, 20), (200, 50)].into_iter().enumerate() {
            space.written(ObjectId(id as u64), block(offset, length));
        }
        space.all_freed();
        space.make_holes();
        assert_eq!(space.take_hole(40), Some((200, Hole { length: 50, starts: vec![200] })));
        assert_eq!(space.take_hole(90), Some((0, Hole { length: 90, starts: vec![0, 30, 70] })));
    }

    #[test]
    fn an_object_that_is_reported_again_leaves_a_dead_block() {
        let mut space = Space::keeping(0);
        space.written(ObjectId(7), block(0, 30));
        space.written(ObjectId(7), block(30, 30));
        space.make_holes();
        assert_eq!(space.take_hole(30), Some((0, Hole { length: 30, starts: vec![0] })));
        assert_eq!(space.take_hole(30), None);
    }
}
