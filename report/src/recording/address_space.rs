//! Mappings of each process over time.
//!
//! Mapping and sample records are not sorted by time, and a recording may not fit into memory. Hence the mappings are
//! read first, sorted by time, and replayed. The replay produces pieces; each covers an address range for a time span.
//! A sample then finds its piece regardless of the order of the records.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

/// Placeholder pid for kernel mappings.
pub(super) const KERNEL: u32 = u32::MAX;
/// Maximum number of pieces. A recording that needs more is hostile, or has thousands of processes with thousands of
/// libraries.
const MAX_PIECES: usize = 4 << 20;
/// Maximum number of pieces that a lookup examines.
const MAX_LOOKUP_STEPS: usize = 4096;

/// Mapping that a record describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    /// File offset of `start`.
    pub(super) offset: u64,
    /// Index of the file.
    pub(super) file: u32,
}

/// Change of a process's address space.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Mapped(Mapping),
    /// Fork; holds the pid of the parent process.
    ForkedFrom(u32),
    /// The process executed another program and has an empty address space.
    Executed,
}

/// Mapping during a span of time.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) mapping: Mapping,
    from: u64,
    to: u64,
}

/// Pieces of one process, ordered by address.
#[derive(Debug, Default)]
pub(super) struct Space {
    pieces: Vec<Piece>,
    /// For each piece, the highest end address of that piece and all pieces before it.
    max_ends: Vec<u64>,
}

impl Space {
    /// Returns the mapping of `address` at `time`, and the time span for which the result is valid.
    pub(super) fn find(&self, address: u64, time: u64) -> MappingAt<'_> {
        let mut gap = MappingAt { mapping: None, from: 0, to: u64::MAX };
        let count = self.pieces.partition_point(|piece| piece.mapping.start <= address);
        for index in (0..count).rev().take(MAX_LOOKUP_STEPS) {
            if self.max_ends[index] <= address {
                break;
            }
            let piece = &self.pieces[index];
            if piece.mapping.end <= address {
                continue;
            }
            if piece.from <= time && time < piece.to {
                return MappingAt { mapping: Some(&piece.mapping), from: piece.from, to: piece.to };
            }
            // Nothing is mapped between the end of an earlier piece and the start of a later one.
            if piece.from > time {
                gap.to = gap.to.min(piece.from);
            } else {
                gap.from = gap.from.max(piece.to);
            }
        }
        gap
    }

    fn new(mut pieces: Vec<Piece>) -> Space {
        pieces.sort_by_key(|piece| (piece.mapping.start, piece.from));
        let mut end = 0;
        let max_ends = pieces
            .iter()
            .map(|piece| {
                end = end.max(piece.mapping.end);
                end
            })
            .collect();
        Space { pieces, max_ends }
    }
}

/// Result of [`Space::find`].
#[derive(Debug)]
pub(super) struct MappingAt<'a> {
    pub(super) mapping: Option<&'a Mapping>,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// Changes of all processes, added in any order.
#[derive(Debug, Default)]
pub(super) struct History {
    changes: Vec<(u64, u32, Change)>,
}

impl History {
    pub(super) fn add(&mut self, time: u64, pid: u32, change: Change) {
        self.changes.push((time, pid, change));
    }

    /// Replays all changes into address spaces. The flag is true if there were too many pieces.
    pub(super) fn build_spaces(&mut self) -> (FxHashMap<u32, Space>, bool) {
        self.changes.sort_by_key(|(time, ..)| *time);
        let mut live: FxHashMap<u32, LiveProcess> = FxHashMap::default();
        let mut count = 0;
        for (time, pid, change) in &self.changes {
            let (time, pid) = (*time, *pid);
            if count > MAX_PIECES {
                break;
            }
            match change {
                Change::Mapped(mapping) => {
                    live.entry(pid).or_default().map(mapping.clone(), time);
                    count += 1;
                }
                Change::ForkedFrom(parent) => {
                    let inherited = live.get(parent).map(|parent| parent.mappings.clone()).unwrap_or_default();
                    count += inherited.len();
                    let child = live.entry(pid).or_default();
                    child.unmap_all(time);
                    child.mappings = inherited;
                }
                Change::Executed => live.entry(pid).or_default().unmap_all(time),
            }
        }
        let spaces = live.into_iter().map(|(pid, live)| (pid, live.finish())).collect();
        (spaces, count > MAX_PIECES)
    }
}

/// State of a process during the replay.
#[derive(Debug, Default)]
struct LiveProcess {
    /// Current mappings by start address, without overlaps, each with the time at which it was mapped.
    mappings: BTreeMap<u64, (Mapping, u64)>,
    pieces: Vec<Piece>,
}

impl LiveProcess {
    fn map(&mut self, mapping: Mapping, time: u64) {
        let overlapping: Vec<u64> = self
            .mappings
            .range(..mapping.end)
            .rev()
            .take_while(|(_, (old, _))| old.end > mapping.start)
            .map(|(start, _)| *start)
            .collect();
        for start in overlapping {
            let Some((old, since)) = self.mappings.remove(&start) else { continue };
            let (left, rest) = split(old, mapping.start);
            let (covered, right) = match rest {
                Some(rest) => split(rest, mapping.end),
                None => (None, None),
            };
            for part in [left, right].into_iter().flatten() {
                self.mappings.insert(part.start, (part, since));
            }
            if let Some(covered) = covered
                && since < time
            {
                self.pieces.push(Piece { mapping: covered, from: since, to: time });
            }
        }
        self.mappings.insert(mapping.start, (mapping, time));
    }

    fn unmap_all(&mut self, time: u64) {
        for (mapping, since) in std::mem::take(&mut self.mappings).into_values() {
            if since < time {
                self.pieces.push(Piece { mapping, from: since, to: time });
            }
        }
    }

    fn finish(mut self) -> Space {
        self.unmap_all(u64::MAX);
        Space::new(self.pieces)
    }
}

/// Splits a mapping at an address, which may be outside of it.
fn split(mapping: Mapping, address: u64) -> (Option<Mapping>, Option<Mapping>) {
    if address <= mapping.start {
        return (None, Some(mapping));
    }
    if address >= mapping.end {
        return (Some(mapping), None);
    }
    let left = Mapping { end: address, ..mapping.clone() };
    let right = Mapping { start: address, offset: mapping.offset.wrapping_add(address - mapping.start), ..mapping };
    (Some(left), Some(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(start: u64, end: u64, file: u32) -> Mapping {
        Mapping { start, end, offset: 0, file }
    }

    fn file_at(spaces: &FxHashMap<u32, Space>, pid: u32, address: u64, time: u64) -> Option<(u32, u64)> {
        let mapping_at = spaces[&pid].find(address, time);
        assert!(mapping_at.from <= time && time < mapping_at.to);
        mapping_at.mapping.map(|mapping| (mapping.file, mapping.offset + (address - mapping.start)))
    }

    #[test]
    fn a_new_mapping_hides_an_older_one_from_then_on() {
        let mut history = History::default();
        history.add(20, 1, Change::Mapped(mapping(0x2000, 0x3000, 8)));
        history.add(10, 1, Change::Mapped(mapping(0x1000, 0x5000, 7)));
        let (spaces, too_much) = history.build_spaces();
        assert!(!too_much);
        assert_eq!(file_at(&spaces, 1, 0x2800, 15), Some((7, 0x1800)));
        assert_eq!(file_at(&spaces, 1, 0x2800, 20), Some((8, 0x800)));
        assert_eq!(file_at(&spaces, 1, 0x1fff, 30), Some((7, 0xfff)));
        assert_eq!(file_at(&spaces, 1, 0x3000, 30), Some((7, 0x2000)));
        assert_eq!(file_at(&spaces, 1, 0x3000, 9), None);
        assert_eq!(file_at(&spaces, 1, 0x5000, 30), None);
    }

    #[test]
    fn children_inherit_mappings_and_lose_them_with_exec() {
        let mut history = History::default();
        history.add(1, 1, Change::Mapped(mapping(0x1000, 0x2000, 7)));
        history.add(5, 2, Change::ForkedFrom(1));
        history.add(6, 1, Change::Mapped(mapping(0x1000, 0x2000, 8)));
        history.add(9, 2, Change::Executed);
        history.add(10, 2, Change::Mapped(mapping(0x1800, 0x2000, 9)));
        let (spaces, _) = history.build_spaces();
        assert_eq!(file_at(&spaces, 2, 0x1900, 8), Some((7, 0x900)));
        assert_eq!(file_at(&spaces, 2, 0x1900, 9), None);
        assert_eq!(file_at(&spaces, 2, 0x1900, 10), Some((9, 0x100)));
        assert_eq!(file_at(&spaces, 2, 0x1000, 10), None);
        assert_eq!(file_at(&spaces, 1, 0x1900, 8), Some((8, 0x900)));
    }
}
