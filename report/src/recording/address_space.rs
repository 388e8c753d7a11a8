//! What was mapped where, and when, in each process.
//!
//! Records of mappings and samples do not come in the order of their times, and a recording need not fit into memory.
//! So the mappings are read first, put in order, and replayed into rectangles: an address range for a span of time. A
//! sample then finds its rectangle, whenever it is read.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// `pid` of the kernel's mappings.
pub(super) const KERNEL: u32 = u32::MAX;
/// So many rectangles are kept; a recording that needs more is hostile, or of thousands of processes with thousands of
/// libraries.
const MOST_PIECES: usize = 4 << 20;
/// How many rectangles a lookup looks at.
const LONGEST_WALK: usize = 4096;

/// What a record of a mapping says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset in the file of `start`.
    pub(super) offset: u64,
    /// Index of the file.
    pub(super) file: u32,
}

/// What changed in a process.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Mapped(Mapping),
    /// The process was made by this one.
    ForkedFrom(u32),
    /// Another program, with an empty address space.
    Executed,
}

/// A rectangle.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) mapping: Mapping,
    from: u64,
    to: u64,
}

/// The pieces of one process, in order of their addresses.
#[derive(Debug, Default)]
pub(super) struct Space {
    pieces: Vec<Piece>,
    /// The furthest end of a piece up to this one.
    furthest: Vec<u64>,
}

impl Space {
    /// The mapping of `address` at `time`, and from when to when the finding holds.
    pub(super) fn find(&self, address: u64, time: u64) -> Found<'_> {
        let mut found = Found { mapping: None, from: 0, to: u64::MAX };
        let before = self.pieces.partition_point(|piece| piece.mapping.start <= address);
        for at in (0..before).rev().take(LONGEST_WALK) {
            if self.furthest[at] <= address {
                break;
            }
            let piece = &self.pieces[at];
            if piece.mapping.end <= address {
                continue;
            }
            if piece.from <= time && time < piece.to {
                return Found { mapping: Some(&piece.mapping), from: piece.from, to: piece.to };
            }
            // Nothing was mapped then, from the end of what was before to the beginning of what comes.
            if piece.from > time {
                found.to = found.to.min(piece.from);
            } else {
                found.from = found.from.max(piece.to);
            }
        }
        found
    }

    fn new(mut pieces: Vec<Piece>) -> Space {
        pieces.sort_by_key(|piece| (piece.mapping.start, piece.from));
        let mut end = 0;
        let furthest = pieces
            .iter()
            .map(|piece| {
                end = end.max(piece.mapping.end);
                end
            })
            .collect();
        Space { pieces, furthest }
    }
}

/// What [`Space::find`] returns.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) mapping: Option<&'a Mapping>,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// Takes in changes in any order.
#[derive(Debug, Default)]
pub(super) struct History {
    changes: Vec<(u64, u32, Change)>,
}

impl History {
    pub(super) fn add(&mut self, time: u64, pid: u32, change: Change) {
        self.changes.push((time, pid, change));
    }

    /// Replays all of it. Says whether it was too much.
    pub(super) fn spaces(&mut self) -> (FxHashMap<u32, Space>, bool) {
        self.changes.sort_by_key(|(time, ..)| *time);
        let mut live: FxHashMap<u32, Live> = FxHashMap::default();
        let mut count = 0;
        for (time, pid, change) in &self.changes {
            let (time, pid) = (*time, *pid);
            if count > MOST_PIECES {
                break;
            }
            match change {
                Change::Mapped(mapping) => {
                    live.entry(pid).or_default().map(mapping.clone(), time);
                    count += 1;
                }
                Change::ForkedFrom(parent) => {
                    let inherited = live.get(parent).map(|parent| parent.now.clone()).unwrap_or_default();
                    count += inherited.len();
                    let child = live.entry(pid).or_default();
                    child.clear(time);
                    child.now = inherited;
                }
                Change::Executed => live.entry(pid).or_default().clear(time),
            }
        }
        let spaces = live.into_iter().map(|(pid, live)| (pid, live.finish())).collect();
        (spaces, count > MOST_PIECES)
    }
}

/// A process during the replay.
#[derive(Debug, Default)]
struct Live {
    /// The present mappings, by start; nothing overlaps. With the time since when.
    now: BTreeMap<u64, (Mapping, u64)>,
    past: Vec<Piece>,
}

impl Live {
    fn map(&mut self, mapping: Mapping, time: u64) {
        let overlapping: Vec<u64> = self
            .now
            .range(..mapping.end)
            .rev()
            .take_while(|(_, (old, _))| old.end > mapping.start)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapping {
            let Some((old, from)) = self.now.remove(&start) else { continue };
            let (left, rest) = split(old, mapping.start);
            let (covered, right) = match rest {
                Some(rest) => split(rest, mapping.end),
                None => (None, None),
            };
            for part in [left, right].into_iter().flatten() {
                self.now.insert(part.start, (part, from));
            }
            if let Some(covered) = covered
                && from < time
            {
                self.past.push(Piece { mapping: covered, from, to: time });
            }
        }
        self.now.insert(mapping.start, (mapping, time));
    }

    fn clear(&mut self, time: u64) {
        for (mapping, from) in std::mem::take(&mut self.now).into_values() {
            if from < time {
                self.past.push(Piece { mapping, from, to: time });
            }
        }
    }

    fn finish(mut self) -> Space {
        self.clear(u64::MAX);
        Space::new(self.past)
    }
}

/// Cuts a mapping at an address, which need not be in it.
fn split(mapping: Mapping, at: u64) -> (Option<Mapping>, Option<Mapping>) {
    if at <= mapping.start {
        return (None, Some(mapping));
    }
    if at >= mapping.end {
        return (Some(mapping), None);
    }
    let left = Mapping { end: at, ..mapping.clone() };
    let right = Mapping { start: at, offset: mapping.offset.wrapping_add(at - mapping.start), ..mapping };
    (Some(left), Some(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, file: u32) -> Mapping {
        Mapping { start, end, offset: 0, file }
    }

    fn file_at(spaces: &FxHashMap<u32, Space>, pid: u32, address: u64, time: u64) -> Option<(u32, u64)> {
        let found = spaces[&pid].find(address, time);
        assert!(found.from <= time && time < found.to);
        found.mapping.map(|mapping| (mapping.file, mapping.offset + (address - mapping.start)))
    }

    #[test]
    fn a_mapping_over_another_hides_it_from_then_on() {
        let mut history = History::default();
        history.add(20, 1, Change::Mapped(mapping(0x2000, 0x3000, 8)));
        history.add(10, 1, Change::Mapped(mapping(0x1000, 0x5000, 7)));
        let (spaces, too_much) = history.spaces();
        assert!(!too_much);
        assert_eq!(file_at(&spaces, 1, 0x2800, 15), Some((7, 0x1800)));
        assert_eq!(file_at(&spaces, 1, 0x2800, 20), Some((8, 0x800)));
        assert_eq!(file_at(&spaces, 1, 0x1fff, 30), Some((7, 0xfff)));
        assert_eq!(file_at(&spaces, 1, 0x3000, 30), Some((7, 0x2000)));
        assert_eq!(file_at(&spaces, 1, 0x3000, 9), None);
        assert_eq!(file_at(&spaces, 1, 0x5000, 30), None);
    }

    #[test]
    fn children_have_what_the_parent_had_and_lose_it_with_exec() {
        let mut history = History::default();
        history.add(1, 1, Change::Mapped(mapping(0x1000, 0x2000, 7)));
        history.add(5, 2, Change::ForkedFrom(1));
        history.add(6, 1, Change::Mapped(mapping(0x1000, 0x2000, 8)));
        history.add(9, 2, Change::Executed);
        history.add(10, 2, Change::Mapped(mapping(0x1800, 0x2000, 9)));
        let (spaces, _) = history.spaces();
        assert_eq!(file_at(&spaces, 2, 0x1900, 8), Some((7, 0x900)));
        assert_eq!(file_at(&spaces, 2, 0x1900, 9), None);
        assert_eq!(file_at(&spaces, 2, 0x1900, 10), Some((9, 0x100)));
        assert_eq!(file_at(&spaces, 2, 0x1000, 10), None);
        assert_eq!(file_at(&spaces, 1, 0x1900, 8), Some((8, 0x900)));
    }
}
