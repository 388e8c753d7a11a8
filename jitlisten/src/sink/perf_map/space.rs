//! Reuse of space in the perf map, so that a service that compiles and frees code forever does not fill the disk.
//!
//! ```text
//!   | block, live | block, dead | 0 0 freed------- | block, live |  ...  | block, dead |
//!     one object    kept: its     a hole: the next
//!                   samples need  object that fits
//!                   their names   is written here
//! ```
//!
//! A *block* contains the lines of one object, written in one call. After its code is freed, the block is kept so that
//! samples keep their names. When more than [`MAX_DEAD_BYTES`] bytes are dead, the oldest blocks become holes. The
//! lines in a hole stay readable until the hole is filled, but are overwritten if their address is reused. An object
//! goes into the smallest hole that its lines fill exactly, or that leaves enough space for a tombstone. If no hole
//! fits, the file grows. Blocks never include lines of other writers.

use std::collections::{BTreeMap, VecDeque};

use crate::ObjectId;

/// Maximum number of bytes in dead lines: enough for about ten thousand functions.
pub(super) const MAX_DEAD_BYTES: u64 = 1 << 20;
/// Length of `0 0 freed\n`.
pub(super) const MIN_LINE_BYTES: u64 = 10;
/// Maximum size of a hole made by joining adjacent holes, because a hole is written as a whole.
const MAX_HOLE_BYTES: u64 = 1 << 14;

/// Lines of one object.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) offset: u64,
    pub(super) length: u64,
    /// Start addresses of the lines.
    pub(super) starts: Vec<u64>,
}

/// Bytes that may be overwritten.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hole {
    pub(super) length: u64,
    /// Start addresses of the lines that are still in the hole.
    pub(super) starts: Vec<u64>,
}

/// Live blocks, dead blocks and holes of one file.
#[derive(Debug)]
pub(super) struct Space {
    live: BTreeMap<ObjectId, Block>,
    /// Dead blocks, oldest first.
    dead: VecDeque<Block>,
    dead_bytes: u64,
    /// Holes, keyed by offset in the file.
    holes: BTreeMap<u64, Hole>,
    max_dead_bytes: u64,
}

impl Default for Space {
    fn default() -> Self {
        Space::with_dead_limit(MAX_DEAD_BYTES)
    }
}

impl Space {
    pub(super) fn with_dead_limit(max_dead_bytes: u64) -> Space {
        Space { live: BTreeMap::new(), dead: VecDeque::new(), dead_bytes: 0, holes: BTreeMap::new(), max_dead_bytes }
    }

    /// Records a block. An earlier block of the same object becomes dead.
    pub(super) fn record_written(&mut self, object: ObjectId, block: Block) {
        self.mark_freed(object);
        self.live.insert(object, block);
    }

    /// Marks the block of an object as dead.
    pub(super) fn mark_freed(&mut self, object: ObjectId) {
        if let Some(block) = self.live.remove(&object) {
            self.dead_bytes += block.length;
            self.dead.push_back(block);
        }
    }

    /// Marks all blocks as dead.
    pub(super) fn mark_all_freed(&mut self) {
        while let Some((&object, _)) = self.live.first_key_value() {
            self.mark_freed(object);
        }
    }

    /// Turns the oldest dead blocks into holes until at most [`MAX_DEAD_BYTES`] bytes are dead.
    pub(super) fn make_holes(&mut self) {
        while self.dead_bytes > self.max_dead_bytes
            && let Some(block) = self.dead.pop_front()
        {
            self.dead_bytes -= block.length;
            self.add_hole(block.offset, Hole { length: block.length, starts: block.starts });
        }
    }

    /// Takes the smallest hole that fits `length` bytes. The caller must fill it immediately, with a tombstone after
    /// the new lines.
    pub(super) fn take_hole(&mut self, length: u64) -> Option<(u64, Hole)> {
        let fits = |hole: u64| hole == length || hole >= length + MIN_LINE_BYTES;
        let fitting = self.holes.iter().filter(|(_, hole)| fits(hole.length));
        let (&offset, _) = fitting.min_by_key(|(_, hole)| hole.length)?;
        let hole = self.holes.remove(&offset)?;
        if hole.length > length {
            self.holes.insert(offset + length, Hole { length: hole.length - length, starts: Vec::new() });
        }
        Some((offset, hole))
    }

    fn add_hole(&mut self, mut offset: u64, mut hole: Hole) {
        if let Some((&previous_offset, previous)) = self.holes.range(..offset).next_back()
            && previous_offset + previous.length == offset
            && previous.length + hole.length <= MAX_HOLE_BYTES
            && let Some(previous) = self.holes.remove(&previous_offset)
        {
            (offset, hole) = (previous_offset, previous.join(hole));
        }
        let end = offset + hole.length;
        if let Some(next) = self.holes.get(&end)
            && next.length + hole.length <= MAX_HOLE_BYTES
            && let Some(next) = self.holes.remove(&end)
        {
            hole = hole.join(next);
        }
        self.holes.insert(offset, hole);
    }
}

impl Hole {
    fn join(mut self, mut next: Hole) -> Hole {
        self.length += next.length;
        self.starts.append(&mut next.starts);
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
    fn too_many_dead_lines_turn_the_oldest_into_holes() {
        let mut space = Space::with_dead_limit(150);
        for id in 0..3 {
            space.record_written(ObjectId(id), block(id * 100, 100));
        }
        space.mark_freed(ObjectId(1));
        space.make_holes();
        assert_eq!(space.take_hole(10), None, "one is kept");
        space.mark_freed(ObjectId(0));
        space.make_holes();
        assert_eq!(space.take_hole(101), None, "too small");
        assert_eq!(space.take_hole(91), None, "the rest is too short for a line");
        assert_eq!(space.take_hole(90), Some((100, Hole { length: 100, starts: vec![100] })));
        assert_eq!(space.take_hole(10), Some((190, Hole { length: 10, starts: vec![] })), "its lines are overwritten");
        assert_eq!(space.take_hole(1), None);
    }

    #[test]
    fn adjacent_holes_are_joined_and_the_smallest_is_taken() {
        let mut space = Space::with_dead_limit(0);
        for (id, (offset, length)) in [(0, 30), (30, 40), (70, 20), (200, 50)].into_iter().enumerate() {
            space.record_written(ObjectId(id as u64), block(offset, length));
        }
        space.mark_all_freed();
        space.make_holes();
        assert_eq!(space.take_hole(40), Some((200, Hole { length: 50, starts: vec![200] })));
        assert_eq!(space.take_hole(90), Some((0, Hole { length: 90, starts: vec![0, 30, 70] })));
    }

    #[test]
    fn an_object_that_is_reported_again_leaves_a_dead_block() {
        let mut space = Space::with_dead_limit(0);
        space.record_written(ObjectId(7), block(0, 30));
        space.record_written(ObjectId(7), block(30, 30));
        space.make_holes();
        assert_eq!(space.take_hole(30), Some((0, Hole { length: 30, starts: vec![0] })));
        assert_eq!(space.take_hole(30), None);
    }
}
