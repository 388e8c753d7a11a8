//! Partition of the address space into leaves, with one table per leaf.

use super::slots::{Function, NoSpace, SLOTS, Slots};
use super::{MAX_RETIRED_TABLES, QUARANTINE_NS, SHORT_QUARANTINE_NS};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Size of a new leaf. Leaves are large to keep their number small. A new leaf excludes ranges that other code has
/// registered before us ([`Publish::clip`]).
const LEAF_BYTES: u64 = 64 << 20;

/// Minimum number of functions at which a full leaf is split. A leaf with fewer functions redistributes them in a new
/// table.
const MIN_FUNCTIONS_TO_SPLIT: usize = SLOTS / 16 * 3;

/// Number of a leaf, in order of creation. A leaf hides earlier ones in the same range.
pub(crate) type LeafId = usize;

/// A part of the address space that has its own table.
pub(crate) struct Leaf {
    pub(crate) id: LeafId,
    /// Range of the leaf's info. Slots are relative to `info.start`. Later leaves may hide parts of it.
    pub(crate) info: Range<u64>,
    /// Part of the range that no later leaf hides.
    visible: Range<u64>,
    slots: Slots,
}

impl Leaf {
    pub(crate) fn cells(&self) -> &'static [AtomicU64] {
        self.slots.cells()
    }
}

/// Receiver of new leaves and replaced tables; implemented by the list of all libunwinds in the process.
pub(crate) trait Publish {
    /// Publishes a new leaf, which hides the same range of earlier leaves. Every search that starts after this returns
    /// sees it.
    fn leaf(&mut self, id: LeafId, info: &Range<u64>, cells: &'static [AtomicU64]);
    /// Replaces the table of a leaf with another one that contains the same functions.
    fn table(&mut self, id: LeafId, cells: &'static [AtomicU64]);
    /// Returns the part of `range` around `address` that contains no registered foreign code.
    fn clip(&self, range: Range<u64>, address: u64) -> Range<u64> {
        let _ = address;
        range
    }
}

pub(crate) struct Size {
    pub(crate) infos: usize,
    /// Touched bytes of tables in use.
    pub(crate) table_bytes: usize,
    /// Touched bytes of replaced tables.
    pub(crate) retired_table_bytes: usize,
}

/// All leaves, ordered by address.
pub(crate) struct Forest {
    /// Leaves by their first visible address.
    leaves: BTreeMap<u64, Leaf>,
    /// Number of leaves created so far.
    created: usize,
    /// Leaves that were split in two, with the time of the split. Searches that started earlier may still reach them.
    hidden: VecDeque<(u64, Leaf)>,
    /// Replaced tables, with the time of replacement.
    retired: VecDeque<(u64, Slots)>,
    /// Empty table for leaves that no search can reach any longer.
    empty: Option<Slots>,
}

/// Unwraps a leaf that the caller has just found or added.
fn expect_leaf<T>(leaf: Option<T>) -> T {
    #[expect(
        clippy::expect_used,
        reason = "the caller has seen it; without it the loops above would not end, and every hook catches a panic"
    )]
    leaf.expect("a leaf that is there")
}

impl Forest {
    pub(crate) const fn new() -> Self {
        Forest { leaves: BTreeMap::new(), created: 0, hidden: VecDeque::new(), retired: VecDeque::new(), empty: None }
    }

    /// Returns the leaves in order of creation.
    pub(crate) fn leaves_by_id(&self) -> Vec<&Leaf> {
        let mut leaves_by_id: Vec<&Leaf> = self.leaves.values().collect();
        leaves_by_id.sort_by_key(|leaf| leaf.id);
        leaves_by_id
    }

    /// Returns the number of infos and the memory used.
    pub(crate) fn size(&self) -> Size {
        let table_bytes = self.leaves.values().map(|leaf| leaf.slots.resident()).sum();
        let hidden = self.hidden.iter().map(|(_, leaf)| &leaf.slots);
        let retired_table_bytes = self.retired.iter().map(|(_, slots)| slots).chain(hidden).map(Slots::resident).sum();
        Size { infos: self.created, table_bytes, retired_table_bytes }
    }

    /// Adds a function. `expected` is the number of functions that the caller is about to add near it, including this
    /// one.
    ///
    /// Functions that overlap it are removed: a caller that places new code there knows that the old code is gone.
    /// Returns their number.
    pub(crate) fn insert(
        &mut self,
        range: &Range<u64>,
        fde: u32,
        expected: usize,
        now: u64,
        publish: &mut dyn Publish,
    ) -> usize {
        let (mut address, mut replaced) = (range.start, 0);
        while address < range.end {
            let leaf = self.leaf_for(address, publish);
            let piece = address..range.end.min(leaf.visible.end);
            let offset = |address: u64| (address - leaf.info.start) as u32;
            let function = Function { start: offset(piece.start), end: offset(piece.end), fde };
            for overlapping in leaf.slots.overlapping(function.start, function.end) {
                replaced += usize::from(leaf.slots.remove(overlapping.start, overlapping.fde));
            }
            match leaf.slots.insert(function, expected) {
                Ok(()) => address = piece.end,
                Err(NoSpace) => self.make_space(address, expected, now, publish),
            }
        }
        replaced
    }

    /// Removes the remaining parts of a function that [`Forest::insert`] added.
    pub(crate) fn remove(&mut self, range: &Range<u64>, fde: u32) {
        let mut address = range.start;
        while address < range.end {
            for (_, leaf) in self.hidden.iter_mut().filter(|(_, leaf)| leaf.info.contains(&address)) {
                leaf.slots.remove((address - leaf.info.start) as u32, fde);
            }
            let Some(leaf) = self.leaf_at(address) else { return };
            leaf.slots.remove((address - leaf.info.start) as u32, fde);
            // A leaf that was split off inside this range still starts with a piece of it, because a split never falls
            // inside a function.
            address = leaf.visible.end;
        }
    }

    fn leaf_at(&mut self, address: u64) -> Option<&mut Leaf> {
        let (_, leaf) = self.leaves.range_mut(..=address).next_back()?;
        leaf.visible.contains(&address).then_some(leaf)
    }

    /// Returns the leaf that covers `address`; creates it if necessary.
    fn leaf_for(&mut self, address: u64, publish: &mut dyn Publish) -> &mut Leaf {
        if self.leaf_at(address).is_none() {
            let range = publish.clip(self.vacant(address), address);
            self.add(range, Slots::new(), publish);
        }
        let (_, leaf) = expect_leaf(self.leaves.range_mut(..=address).next_back());
        leaf
    }

    /// Returns the part of the window around `address` that no leaf covers: the whole window, unless earlier leaves
    /// were clipped.
    fn vacant(&self, address: u64) -> Range<u64> {
        let window_start = address & !(LEAF_BYTES - 1);
        let below = self.leaves.range(..=address).next_back().map_or(0, |(_, leaf)| leaf.visible.end);
        let above = self.leaves.range(address..).next().map_or(u64::MAX, |(&start, _)| start);
        window_start.max(below)..window_start.saturating_add(LEAF_BYTES).min(above)
    }

    fn add(&mut self, range: Range<u64>, slots: Slots, publish: &mut dyn Publish) {
        let id = self.created;
        self.created += 1;
        publish.leaf(id, &range, slots.cells());
        self.leaves.insert(range.start, Leaf { id, info: range.clone(), visible: range, slots });
    }

    /// Returns an empty table: a replaced one that no thread can still be reading, or a new one.
    fn take_empty_table(&mut self, now: u64) -> Slots {
        let quarantine = if self.retired.len() > MAX_RETIRED_TABLES { SHORT_QUARANTINE_NS } else { QUARANTINE_NS };
        match self.retired.pop_front() {
            Some((retired_at, mut slots)) if now.saturating_sub(retired_at) >= quarantine => {
                slots.clear();
                slots
            }
            Some(table) => {
                self.retired.push_front(table);
                Slots::new()
            }
            None => Slots::new(),
        }
    }

    /// Makes space near `address` by redistributing the functions of its leaf in a new table, or by splitting the leaf.
    fn make_space(&mut self, address: u64, expected: usize, now: u64, publish: &mut dyn Publish) {
        self.retire_hidden(now, publish);
        if self.leaf_at(address).is_some_and(|leaf| leaf.slots.functions() >= MIN_FUNCTIONS_TO_SPLIT) {
            return self.split(address, expected, now, publish);
        }
        let mut slots = self.take_empty_table(now);
        let leaf = expect_leaf(self.leaf_at(address));
        let functions: Vec<Function> = leaf.slots.iter().collect();
        slots.fill(&functions, (address - leaf.info.start) as u32, expected);
        publish.table(leaf.id, slots.cells());
        let old_table = std::mem::replace(&mut leaf.slots, slots);
        self.retired.push_back((now, old_table));
    }

    /// Splits the leaf at `address`. If all its functions lie on one side, one new leaf takes the other side, so that
    /// code which grows in one direction fills its leaves. Otherwise, two new leaves replace the old one.
    fn split(&mut self, address: u64, expected: usize, now: u64, publish: &mut dyn Publish) {
        let leaf = expect_leaf(self.leaf_at(address));
        let (base, visible) = (leaf.info.start, leaf.visible.clone());
        let functions: Vec<Function> = leaf.slots.iter().collect();
        let offset = (address - base) as u32;
        let (first, last) = (functions[0], functions[functions.len() - 1]);
        let mut old_leaf = expect_leaf(self.leaves.remove(&visible.start));
        if offset >= last.end {
            old_leaf.visible.end = address;
            self.leaves.insert(visible.start, old_leaf);
            let slots = self.take_empty_table(now);
            self.add(address..visible.end, slots, publish);
        } else if offset < first.start {
            let boundary = base + u64::from(first.start);
            old_leaf.visible.start = boundary;
            self.leaves.insert(boundary, old_leaf);
            let slots = self.take_empty_table(now);
            self.add(visible.start..boundary, slots, publish);
        } else {
            let (lower, upper) = functions.split_at(functions.len() / 2);
            let boundary = base + u64::from(upper[0].start);
            for (range, half) in [(visible.start..boundary, lower), (boundary..visible.end, upper)] {
                let shift = (range.start - base) as u32;
                let shifted = half.iter().map(|f| Function { start: f.start - shift, end: f.end - shift, ..*f });
                let mut slots = self.take_empty_table(now);
                slots.fill(&shifted.collect::<Vec<_>>(), offset.saturating_sub(shift), expected);
                self.add(range, slots, publish);
            }
            // Keep the old leaf's table: a search that has already passed the head of the list may still reach it.
            self.hidden.push_back((now, old_leaf));
        }
    }

    /// Retires the tables of leaves that searches can no longer reach. Their infos stay in the list and point to an
    /// empty table.
    fn retire_hidden(&mut self, now: u64, publish: &mut dyn Publish) {
        while self.hidden.front().is_some_and(|(hidden_at, _)| now.saturating_sub(*hidden_at) >= QUARANTINE_NS) {
            let Some((_, leaf)) = self.hidden.pop_front() else { return };
            publish.table(leaf.id, self.empty.get_or_insert_with(Slots::new).cells());
            self.retired.push_back((now, leaf.slots));
        }
    }
}

#[cfg(test)]
#[path = "forest_tests.rs"]
mod tests;
