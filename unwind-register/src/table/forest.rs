//! The address space, cut into leaves; one table per leaf.

use super::QUARANTINE;
use super::slots::{Function, NoRoom, Slots};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// How much of the address space a new leaf covers: large, so that there are few; not larger, because what others registered there
/// before us must be left out ([`Publish::clip`]).
const WINDOW: u64 = 64 << 20;

/// With more functions than this, a table without a spare slot where one is needed is split instead of being spread again.
const FULL: usize = 3072;

/// The number of a leaf; counts up, and later leaves hide earlier ones.
pub(crate) type LeafId = usize;

/// A part of the address space and its table.
pub(crate) struct Leaf {
    pub(crate) id: LeafId,
    /// What its info says. Slots count from `info.start`; later leaves may hide parts of it.
    pub(crate) info: Range<u64>,
    /// What no later leaf hides.
    visible: Range<u64>,
    slots: Slots,
}

impl Leaf {
    /// The cells of its table.
    pub(crate) fn cells(&self) -> &'static [AtomicU64] {
        self.slots.cells()
    }
}

/// Whom a leaf's birth and a table's replacement are told to: every libunwind in the process.
pub(crate) trait Publish {
    /// A new leaf hides what it covers of the earlier ones. When this returns, every new reader sees it.
    fn leaf(&mut self, id: LeafId, info: &Range<u64>, cells: &'static [AtomicU64]);
    /// The leaf has another table, with the same functions in it.
    fn table(&mut self, id: LeafId, cells: &'static [AtomicU64]);
    /// The part of `range` around `address` in which nobody else has registered something.
    fn clip(&self, range: Range<u64>, address: u64) -> Range<u64> {
        let _ = address;
        range
    }
}

/// All leaves.
pub(crate) struct Forest {
    /// By the first address that is visible.
    leaves: BTreeMap<u64, Leaf>,
    born: usize,
    retired: VecDeque<(u64, Slots)>,
}

impl Forest {
    pub(crate) const fn new() -> Self {
        Forest { leaves: BTreeMap::new(), born: 0, retired: VecDeque::new() }
    }

    /// Leaves in the order of their birth.
    pub(crate) fn leaves(&self) -> Vec<&Leaf> {
        let mut leaves: Vec<&Leaf> = self.leaves.values().collect();
        leaves.sort_by_key(|leaf| leaf.id);
        leaves
    }

    /// (tables in use, bytes touched in them, bytes touched in replaced tables).
    pub(crate) fn size(&self) -> (usize, usize, usize) {
        let used = self.leaves.values().map(|leaf| leaf.slots.resident()).sum();
        (self.leaves.len(), used, self.retired.iter().map(|(_, slots)| slots.resident()).sum())
    }

    /// Adds a function; `want` counts the functions the caller is about to add near it, this one included.
    ///
    /// Functions that overlap it are removed: whoever placed new code there knows that the old code is gone. Returns how many.
    pub(crate) fn insert(
        &mut self,
        range: &Range<u64>,
        fde: u32,
        want: usize,
        now: u64,
        publish: &mut dyn Publish,
    ) -> usize {
        let (mut at, mut replaced) = (range.start, 0);
        while at < range.end {
            let leaf = self.leaf_for(at, publish);
            let piece = at..range.end.min(leaf.visible.end);
            let offset = |address: u64| (address - leaf.info.start) as u32;
            let function = Function { start: offset(piece.start), end: offset(piece.end), fde };
            for old in leaf.slots.overlapping(function.start, function.end) {
                replaced += usize::from(leaf.slots.remove(old.start, old.fde));
            }
            match leaf.slots.insert(function, want) {
                Ok(()) => at = piece.end,
                Err(NoRoom) => self.make_room(at, want, now, publish),
            }
        }
        replaced
    }

    /// Removes what [`Forest::insert`] added, as far as it is still there.
    pub(crate) fn remove(&mut self, range: &Range<u64>, fde: u32) {
        let mut at = range.start;
        while at < range.end {
            let Some(leaf) = self.leaf_at(at) else { return };
            leaf.slots.remove((at - leaf.info.start) as u32, fde);
            // A leaf that was split inside this range still begins with a piece of it: nothing is split inside a function.
            at = leaf.visible.end;
        }
    }

    fn leaf_at(&mut self, address: u64) -> Option<&mut Leaf> {
        let (_, leaf) = self.leaves.range_mut(..=address).next_back()?;
        leaf.visible.contains(&address).then_some(leaf)
    }

    fn leaf_for(&mut self, address: u64, publish: &mut dyn Publish) -> &mut Leaf {
        if self.leaf_at(address).is_none() {
            let range = publish.clip(self.vacant(address), address);
            self.add(range, Slots::new(), publish);
        }
        let (_, leaf) = self.leaves.range_mut(..=address).next_back().expect("it was there or has just been added");
        leaf
    }

    /// The part of the window of `address` that no leaf covers. The whole window, unless earlier leaves of it were clipped.
    fn vacant(&self, address: u64) -> Range<u64> {
        let window = address & !(WINDOW - 1);
        let below = self.leaves.range(..=address).next_back().map_or(0, |(_, leaf)| leaf.visible.end);
        let above = self.leaves.range(address..).next().map_or(u64::MAX, |(&start, _)| start);
        window.max(below)..window.saturating_add(WINDOW).min(above)
    }

    fn add(&mut self, range: Range<u64>, slots: Slots, publish: &mut dyn Publish) {
        let id = self.born;
        self.born += 1;
        publish.leaf(id, &range, slots.cells());
        self.leaves.insert(range.start, Leaf { id, info: range.clone(), visible: range, slots });
    }

    /// A table whose content nobody can still be reading, emptied; or a new one.
    fn fresh(&mut self, now: u64) -> Slots {
        if self.retired.front().is_none_or(|(since, _)| now.saturating_sub(*since) < QUARANTINE) {
            return Slots::new();
        }
        let (_, mut slots) = self.retired.pop_front().expect("there is a front");
        slots.clear();
        slots
    }

    /// Spreads the table of the leaf at `finger` again, or splits the leaf.
    fn make_room(&mut self, finger: u64, want: usize, now: u64, publish: &mut dyn Publish) {
        let mut slots = self.fresh(now);
        let leaf = self.leaf_at(finger).expect("the caller found it");
        if leaf.slots.functions() >= FULL {
            self.retired.push_front((0, slots));
            return self.split(finger, want, now, publish);
        }
        let functions: Vec<Function> = leaf.slots.iter().collect();
        slots.fill(&functions, (finger - leaf.info.start) as u32, want);
        publish.table(leaf.id, slots.cells());
        let old = std::mem::replace(&mut leaf.slots, slots);
        self.retired.push_back((now, old));
    }

    /// Gives a part of the leaf at `finger` to a new leaf: everything above or below its functions if the finger is there (code
    /// that grows in one direction then fills its leaves), else the upper half.
    fn split(&mut self, finger: u64, want: usize, now: u64, publish: &mut dyn Publish) {
        let mut upper = self.fresh(now);
        let mut lower = self.fresh(now);
        let leaf = self.leaf_at(finger).expect("the caller found it");
        let (base, visible) = (leaf.info.start, leaf.visible.clone());
        let functions: Vec<Function> = leaf.slots.iter().collect();
        let offset = (finger - base) as u32;
        let (first, last) = (functions[0], functions[functions.len() - 1]);
        if offset >= last.end {
            leaf.visible.end = finger;
            self.add(finger..visible.end, upper, publish);
            return self.retired.push_front((0, lower));
        }
        if offset < first.start {
            let border = base + u64::from(first.start);
            let mut old = self.leaves.remove(&visible.start).expect("it is this leaf's key");
            old.visible.start = border;
            self.leaves.insert(border, old);
            self.add(visible.start..border, lower, publish);
            return self.retired.push_front((0, upper));
        }
        let (low, high) = functions.split_at(functions.len() / 2);
        let border = high[0].start;
        let at = base + u64::from(border);
        let moved =
            high.iter().map(|f| Function { start: f.start - border, end: (f.end - border).min(i32::MAX as u32), ..*f });
        upper.fill(&moved.collect::<Vec<_>>(), offset.saturating_sub(border), want);
        lower.fill(low, offset, want);
        leaf.visible.end = at;
        let (id, old) = (leaf.id, std::mem::replace(&mut leaf.slots, lower));
        self.add(at..visible.end, upper, publish);
        let leaf = self.leaf_at(visible.start).expect("the lower half");
        publish.table(id, leaf.slots.cells());
        self.retired.push_back((now, old));
    }
}

#[cfg(test)]
#[path = "forest_tests.rs"]
mod tests;
