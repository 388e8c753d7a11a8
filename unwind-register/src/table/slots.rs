//! One table: 16384 slots in address order, changed by single stores. The picture and the proof are in the module
//! above.

use crate::memory::zeroed_cells;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

/// Slots in a table. Fixed, because an info's table pointer and table length cannot be changed in one store.
/// (Miri takes minutes for so many.)
pub(crate) const SLOTS: usize = if cfg!(miri) { 256 } else { 16384 };

/// What a gap at the upper end of the table holds as its start: behind every address a table can be asked for.
const BEHIND_ALL: u32 = i32::MAX as u32;

/// More distinct gap values than this in one run are tidied up on the way.
const UNTIDY: usize = 8;

/// A gap of fewer bytes is padding, in which no function will be placed.
const ROOMY: u32 = 16;

/// Spare slots for a gap, at most: space for this many half functions.
const SPARE: usize = 8;

/// A function as a slot says it: offsets from the leaf's base, and the FDE's place in the arena (never 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) fde: u32,
}

/// There is no spare slot where one is needed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSpace;

/// The table. One more cell than slots: libunwind 1.6 loads the entry behind the one it found, also behind the last.
pub(crate) struct Slots {
    cells: &'static [AtomicU64],
    functions: usize,
    /// Cells below this one have never been written since the table was cleared.
    written: usize,
}

/// Gap slots `left..right` between two functions (or the ends of the table), and the start values that enclose them.
struct Gap {
    left: usize,
    right: usize,
    low: u32,
    high: u32,
    tidy: bool,
}

impl Slots {
    pub(crate) fn new() -> Self {
        // Zeroed memory is a valid table: all gaps.
        Slots { cells: zeroed_cells(SLOTS + 1), functions: 0, written: SLOTS }
    }

    pub(crate) fn cells(&self) -> &'static [AtomicU64] {
        self.cells
    }

    pub(crate) fn functions(&self) -> usize {
        self.functions
    }

    /// Bytes of it that were touched.
    pub(crate) fn resident(&self) -> usize {
        (SLOTS - self.written) * 8
    }

    fn start(&self, slot: usize) -> u32 {
        self.cells[slot].load(Relaxed) as u32
    }

    fn fde(&self, slot: usize) -> u32 {
        (self.cells[slot].load(Relaxed) >> 32) as u32
    }

    fn set(&mut self, slot: usize, start: u32, fde: u32) {
        self.written = self.written.min(slot);
        self.cells[slot].store(u64::from(start) | u64::from(fde) << 32, Release);
    }

    fn set_all(&mut self, slots: std::ops::Range<usize>, start: u32) {
        for slot in slots {
            self.set(slot, start, 0);
        }
    }

    /// The number of slots whose start is not above `offset`.
    fn upto(&self, offset: u32) -> usize {
        self.cells[..SLOTS].partition_point(|cell| cell.load(Relaxed) as u32 <= offset)
    }

    /// Where the function in `slot` ends.
    fn end(&self, slot: usize) -> u32 {
        if slot + 1 < SLOTS { self.start(slot + 1) } else { BEHIND_ALL }
    }

    /// The functions that have an address in `start..end`.
    pub(crate) fn overlapping(&self, start: u32, end: u32) -> Vec<Function> {
        let first = self.upto(start).saturating_sub(1);
        let slots = (first..SLOTS).take_while(|&slot| self.start(slot) < end);
        let functions = slots.filter(|&slot| self.fde(slot) != 0).map(|slot| self.function(slot));
        functions.filter(|function| function.end > start).collect()
    }

    fn function(&self, slot: usize) -> Function {
        Function { start: self.start(slot), end: self.end(slot), fde: self.fde(slot) }
    }

    /// All functions, in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Function> + '_ {
        (self.written..SLOTS).filter(|&slot| self.fde(slot) != 0).map(|slot| self.function(slot))
    }

    /// The run of gap slots around the boundary between starts `<= offset` and starts above it.
    fn gap(&self, boundary: usize) -> Gap {
        let (mut left, mut right, mut values) = (boundary, boundary, 0);
        while left > 0 && self.fde(left - 1) == 0 {
            let value = self.start(left - 1);
            left = self.cells[..left].partition_point(|cell| (cell.load(Relaxed) as u32) < value);
            values += 1;
        }
        while right < SLOTS && self.fde(right) == 0 {
            // Of equal starts only the last can be a function: a gap of length 0 lies before it.
            let last = self.upto(self.start(right)) - 1;
            right = if self.fde(last) == 0 { last + 1 } else { last };
            values += 1;
        }
        let low = if left == 0 || left == right { 0 } else { self.start(left) };
        let high = if right == SLOTS { BEHIND_ALL } else { self.start(right) };
        Gap { left, right, low, high, tidy: values <= UNTIDY }
    }

    /// Adds a function that overlaps no other; `want` counts the functions that will follow above it, this one
    /// included.
    pub(crate) fn insert(&mut self, function: Function, want: usize) -> Result<(), NoSpace> {
        let Function { start, end, fde } = function;
        let boundary = self.upto(start);
        let gap = self.gap(boundary);
        let at = self.place(&gap, start, end, want).ok_or(NoSpace)?;
        // Left of the function: gap slots that begin behind its start would break the order.
        let from = if gap.tidy { boundary.min(at) } else { gap.left };
        let value = if from > gap.left { self.start(from - 1) } else { gap.low };
        self.set_all(from..at, value);
        // Right of it: the slots that begin before its end.
        let rest = at + 1;
        let to = if gap.tidy { self.upto(end - 1).clamp(rest, gap.right.max(rest)) } else { gap.right.max(rest) };
        let value = if to < gap.right { self.start(to) } else { gap.high };
        self.set_all(rest..to, value);
        if rest < gap.right {
            self.set(rest, end, 0);
        }
        self.set(at, start, fde);
        self.functions += 1;
        Ok(())
    }

    /// The slot for a function in `gap`: the spare slots are divided like the addresses left and right of it, so that
    /// code placed upwards, downwards or anywhere always finds the spare slots where the next function is likely to
    /// come.
    fn place(&self, gap: &Gap, start: u32, end: u32, want: usize) -> Option<usize> {
        let slots = gap.right - gap.left;
        // A slot behind every function even where the next one follows directly: when one of them goes, there is space
        // for the two slots of a shorter one.
        let left_end = usize::from(gap.left > 0 && (gap.low < start || slots >= 3));
        let own_end = usize::from(end < gap.high || slots >= 3);
        let spare = slots.checked_sub(left_end + 1 + own_end)?;
        let below = u64::from(start - gap.low);
        let above = u64::from(gap.high.saturating_sub(end));
        let mut left = (spare as u64 * below / (below + above).max(1)) as usize;
        if gap.left == 0 {
            // The untouched front of the table: do not drag all of it behind the first function.
            left = left.max(spare.saturating_sub(self.functions.max(16)));
        }
        left = left.min(spare - spare.min(2 * (want.max(1) - 1)));
        Some(gap.left + left_end + left)
    }

    /// Removes the function that starts at `start` and has this FDE; anything else there stays.
    pub(crate) fn remove(&mut self, start: u32, fde: u32) -> bool {
        let Some(slot) = self.upto(start).checked_sub(1) else { return false };
        let found = self.start(slot) == start && self.fde(slot) == fde;
        if found {
            self.set(slot, start, 0);
            self.functions -= 1;
        }
        found
    }

    /// Forgets everything. Only for a table that no info points to any more.
    pub(crate) fn clear(&mut self) {
        for cell in &self.cells[self.written..] {
            cell.store(0, Relaxed);
        }
        (self.functions, self.written) = (0, SLOTS);
    }

    /// Fills an empty table with `functions`, in address order, and spreads spare slots: some in every gap, and space
    /// for at least `want` further functions in the gap that has `finger`.
    pub(crate) fn fill(&mut self, functions: &[Function], finger: u32, want: usize) {
        let count = functions.len();
        let space = SLOTS.saturating_sub(2 * count);
        let bonus = (count / 2).max(32).max(2 * want).min(space / 2);
        let spacious = functions.windows(2).filter(|pair| pair[1].start - pair[0].end >= ROOMY).count() + 1;
        let each = ((space - bonus) / spacious).min(SPARE) & !1;
        let hot = functions.partition_point(|function| function.start <= finger).checked_sub(1);
        let mut slot = SLOTS;
        let mut high = BEHIND_ALL;
        for (index, function) in functions.iter().enumerate().rev() {
            let spare = if high - function.end >= ROOMY { each } else { 0 };
            let spare = spare + if hot == Some(index) { bonus } else { 0 };
            self.set_all(slot - spare..slot, high);
            slot -= spare + 2;
            self.set(slot + 1, function.end, 0);
            self.set(slot, function.start, function.fde);
            high = function.start;
        }
        self.functions = count;
    }
}

/// What libunwind's search does, on the cells alone: the FDE of the last slot whose start is not above `offset`.
#[cfg(test)]
pub(crate) fn search(cells: &[AtomicU64], offset: u32) -> u32 {
    let (mut low, mut high) = (0, SLOTS);
    while low < high {
        let middle = usize::midpoint(low, high);
        if (offset as i32) < cells[middle].load(Relaxed) as u32 as i32 {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    match high {
        0 => 0,
        _ => (cells[high - 1].load(std::sync::atomic::Ordering::Acquire) >> 32) as u32,
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
