//! One table: 16384 slots in address order, modified by single stores. The documentation of `table` has a diagram and
//! the proof.

use crate::memory::zeroed_cells;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

/// Number of slots in a table. The number is constant, because one store cannot change both the table pointer and the
/// table length of an info. (Miri would take minutes for the full size.)
pub(crate) const SLOTS: usize = if cfg!(miri) { 256 } else { 16384 };

/// Start value of gap slots at the upper end of the table, greater than every offset in a leaf.
const MAX_START: u32 = i32::MAX as u32;

/// Maximum number of distinct values in a run of gap slots. Beyond it, the next insertion rewrites the whole run.
const MAX_GAP_VALUES: usize = 8;

/// Minimum size of a gap for a new function; smaller gaps are padding.
const MIN_GAP_BYTES: u32 = 16;

/// Maximum number of spare slots per gap. A function needs two slots.
const MAX_SPARE_SLOTS: usize = 8;

/// A function as stored in a slot: offsets relative to the leaf, and the offset of its FDE in the region (never 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) fde: u32,
}

/// Error for a table that lacks a spare slot where one is needed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSpace;

/// A table, with one more cell than slots: libunwind 1.6 also loads the entry after a match, even if the match is the
/// last entry.
pub(crate) struct Slots {
    cells: &'static [AtomicU64],
    functions: usize,
    /// Index of the first cell written since the table was cleared; all cells below are zero.
    first_written: usize,
}

/// A run of gap slots, `start_slot..end_slot`, between two functions or at an end of the table, and the addresses that
/// enclose it.
struct Gap {
    start_slot: usize,
    end_slot: usize,
    low: u32,
    high: u32,
    /// False if the run contains more than [`MAX_GAP_VALUES`] distinct values.
    is_tidy: bool,
}

impl Slots {
    pub(crate) fn new() -> Self {
        // Zeroed memory is a valid table that contains only gap slots.
        Slots { cells: zeroed_cells(SLOTS + 1), functions: 0, first_written: SLOTS }
    }

    pub(crate) fn cells(&self) -> &'static [AtomicU64] {
        self.cells
    }

    pub(crate) fn functions(&self) -> usize {
        self.functions
    }

    /// Returns the number of touched bytes.
    pub(crate) fn resident(&self) -> usize {
        (SLOTS - self.first_written) * 8
    }

    fn start(&self, slot: usize) -> u32 {
        self.cells[slot].load(Relaxed) as u32
    }

    fn fde(&self, slot: usize) -> u32 {
        (self.cells[slot].load(Relaxed) >> 32) as u32
    }

    fn set(&mut self, slot: usize, start: u32, fde: u32) {
        self.first_written = self.first_written.min(slot);
        self.cells[slot].store(u64::from(start) | u64::from(fde) << 32, Release);
    }

    fn set_all(&mut self, slots: std::ops::Range<usize>, start: u32) {
        for slot in slots {
            self.set(slot, start, 0);
        }
    }

    /// Returns the number of slots whose start is not above `offset`.
    fn count_up_to(&self, offset: u32) -> usize {
        self.cells[..SLOTS].partition_point(|cell| cell.load(Relaxed) as u32 <= offset)
    }

    fn end(&self, slot: usize) -> u32 {
        if slot + 1 < SLOTS { self.start(slot + 1) } else { MAX_START }
    }

    pub(crate) fn overlapping(&self, start: u32, end: u32) -> Vec<Function> {
        let first = self.count_up_to(start).saturating_sub(1);
        let slots = (first..SLOTS).take_while(|&slot| self.start(slot) < end);
        let functions = slots.filter(|&slot| self.fde(slot) != 0).map(|slot| self.function(slot));
        functions.filter(|function| function.end > start).collect()
    }

    fn function(&self, slot: usize) -> Function {
        Function { start: self.start(slot), end: self.end(slot), fde: self.fde(slot) }
    }

    /// Iterates over all functions in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Function> + '_ {
        (self.first_written..SLOTS).filter(|&slot| self.fde(slot) != 0).map(|slot| self.function(slot))
    }

    /// Returns the run of gap slots around slot `boundary`.
    fn gap(&self, boundary: usize) -> Gap {
        let (mut start_slot, mut end_slot, mut values) = (boundary, boundary, 0);
        while start_slot > 0 && self.fde(start_slot - 1) == 0 {
            let value = self.start(start_slot - 1);
            start_slot = self.cells[..start_slot].partition_point(|cell| (cell.load(Relaxed) as u32) < value);
            values += 1;
        }
        while end_slot < SLOTS && self.fde(end_slot) == 0 {
            // If several slots have equal starts, only the last can be a function; the others are empty gaps.
            let last = self.count_up_to(self.start(end_slot)) - 1;
            end_slot = if self.fde(last) == 0 { last + 1 } else { last };
            values += 1;
        }
        let low = if start_slot == 0 || start_slot == end_slot { 0 } else { self.start(start_slot) };
        let high = if end_slot == SLOTS { MAX_START } else { self.start(end_slot) };
        Gap { start_slot, end_slot, low, high, is_tidy: values <= MAX_GAP_VALUES }
    }

    /// Adds a function that overlaps no other. `expected` is the number of functions that will follow above it,
    /// including this one.
    pub(crate) fn insert(&mut self, function: Function, expected: usize) -> Result<(), NoSpace> {
        let Function { start, end, fde } = function;
        let boundary = self.count_up_to(start);
        let gap = self.gap(boundary);
        let slot = self.choose_slot(&gap, start, end, expected).ok_or(NoSpace)?;
        // Below the function, gap slots with a greater start would violate the order.
        let left_start = if gap.is_tidy { boundary.min(slot) } else { gap.start_slot };
        let value = if left_start > gap.start_slot { self.start(left_start - 1) } else { gap.low };
        self.set_all(left_start..slot, value);
        // Above the function, so would gap slots with a start below its end.
        let right_start = slot + 1;
        let right_end = if gap.is_tidy {
            self.count_up_to(end - 1).clamp(right_start, gap.end_slot.max(right_start))
        } else {
            gap.end_slot.max(right_start)
        };
        let value = if right_end < gap.end_slot { self.start(right_end) } else { gap.high };
        self.set_all(right_start..right_end, value);
        if right_start < gap.end_slot {
            self.set(right_start, end, 0);
        }
        self.set(slot, start, fde);
        self.functions += 1;
        Ok(())
    }

    /// Returns the slot for a function in `gap`. The spare slots are divided in proportion to the addresses left and
    /// right of the function. Code placed upwards, downwards or anywhere then finds spare slots where the next function
    /// is likely to be.
    fn choose_slot(&self, gap: &Gap, start: u32, end: u32, expected: usize) -> Option<usize> {
        let slots = gap.end_slot - gap.start_slot;
        // Keep a slot after every function, even if the next one follows directly: when one of them is removed, a
        // shorter function and its end slot fit.
        let left_end = usize::from(gap.start_slot > 0 && (gap.low < start || slots >= 3));
        let own_end = usize::from(end < gap.high || slots >= 3);
        let spare = slots.checked_sub(left_end + 1 + own_end)?;
        let below = u64::from(start - gap.low);
        let above = u64::from(gap.high.saturating_sub(end));
        let mut spare_below = (spare as u64 * below / (below + above).max(1)) as usize;
        if gap.start_slot == 0 {
            // The front of the table is untouched: do not write all of it for the first function.
            spare_below = spare_below.max(spare.saturating_sub(self.functions.max(16)));
        }
        spare_below = spare_below.min(spare - spare.min(2 * (expected.max(1) - 1)));
        Some(gap.start_slot + left_end + spare_below)
    }

    /// Removes the function that starts at `start` with this FDE. Returns false, without a change, if there is no such
    /// function.
    pub(crate) fn remove(&mut self, start: u32, fde: u32) -> bool {
        let Some(slot) = self.count_up_to(start).checked_sub(1) else { return false };
        let is_match = self.start(slot) == start && self.fde(slot) == fde;
        if is_match {
            self.set(slot, start, 0);
            self.functions -= 1;
        }
        is_match
    }

    /// Clears the table, which no info may reference any longer.
    pub(crate) fn clear(&mut self) {
        for cell in &self.cells[self.first_written..] {
            cell.store(0, Relaxed);
        }
        (self.functions, self.first_written) = (0, SLOTS);
    }

    /// Fills an empty table with `functions`, in address order, and distributes spare slots: some in every gap, and
    /// space for at least `expected` more functions in the gap around `address`.
    pub(crate) fn fill(&mut self, functions: &[Function], address: u32, expected: usize) {
        let count = functions.len();
        let spare_total = SLOTS.saturating_sub(2 * count);
        let bonus_slots = (count / 2).max(32).max(2 * expected).min(spare_total / 2);
        let gap_count = functions.windows(2).filter(|pair| pair[1].start - pair[0].end >= MIN_GAP_BYTES).count() + 1;
        let spare_per_gap = ((spare_total - bonus_slots) / gap_count).min(MAX_SPARE_SLOTS) & !1;
        let address_index = functions.partition_point(|function| function.start <= address).checked_sub(1);
        let mut slot = SLOTS;
        let mut next_start = MAX_START;
        for (index, function) in functions.iter().enumerate().rev() {
            let spare = if next_start - function.end >= MIN_GAP_BYTES { spare_per_gap } else { 0 };
            let spare = spare + if address_index == Some(index) { bonus_slots } else { 0 };
            self.set_all(slot - spare..slot, next_start);
            slot -= spare + 2;
            self.set(slot + 1, function.end, 0);
            self.set(slot, function.start, function.fde);
            next_start = function.start;
        }
        self.functions = count;
    }
}

/// Searches the cells like libunwind: returns the FDE of the last slot whose start is not above `offset`.
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
