//! The address space, cut into leaves; one table per leaf.

use super::slots::{Function, NoSpace, SLOTS, Slots};
use super::{MANY, QUARANTINE, SHORT_QUARANTINE};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// How much of the address space a new leaf covers: large, so that there are few; not larger, because what others
/// registered there before us must be left out ([`Publish::clip`]).
const WINDOW: u64 = 64 << 20;

/// With more functions than this, a table without a spare slot where one is needed is split instead of being spread
/// again.
const FULL: usize = SLOTS / 16 * 3;

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

/// What is notified of a new leaf and of a table's replacement: every libunwind in the process.
pub(crate) trait Publish {
    /// A new leaf hides what it covers of the earlier ones. When this returns, every new reader sees it.
    fn leaf(&mut self, id: LeafId, info: &Range<u64>, cells: &'static [AtomicU64]);
    /// The leaf has another table, with the same functions in it.
    fn table(&mut self, id: LeafId, cells: &'static [AtomicU64]);
    /// The part of `range` around `address` in which nothing else is registered.
    fn clip(&self, range: Range<u64>, address: u64) -> Range<u64> {
        let _ = address;
        range
    }
}

/// What a [`Forest`] takes.
pub(crate) struct Size {
    pub(crate) infos: usize,
    /// Touched in them.
    pub(crate) table_bytes: usize,
    /// Touched in replaced tables.
    pub(crate) retired_table_bytes: usize,
}

/// All leaves.
pub(crate) struct Forest {
    /// By the first address that is visible.
    leaves: BTreeMap<u64, Leaf>,
    born: usize,
    /// Leaves that two later ones hide, and since when. Searches that began before may still come to them.
    hidden: VecDeque<(u64, Leaf)>,
    retired: VecDeque<(u64, Slots)>,
    /// What hidden leaves point to in the end.
    empty: Option<Slots>,
}

/// A leaf that the caller has found or added.
fn present<T>(leaf: Option<T>) -> T {
    #[expect(
        clippy::expect_used,
        reason = "the caller has seen it; without it the loops above would not end, and every hook catches a panic"
    )]
    leaf.expect("a leaf that is there")
}

impl Forest {
    pub(crate) const fn new() -> Self {
        Forest { leaves: BTreeMap::new(), born: 0, hidden: VecDeque::new(), retired: VecDeque::new(), empty: None }
    }

    /// Leaves in the order of their birth.
    pub(crate) fn leaves(&self) -> Vec<&Leaf> {
        let mut leaves: Vec<&Leaf> = self.leaves.values().collect();
        leaves.sort_by_key(|leaf| leaf.id);
        leaves
    }

    /// What it takes.
    pub(crate) fn size(&self) -> Size {
        let used = self.leaves.values().map(|leaf| leaf.slots.resident()).sum();
        let hidden = self.hidden.iter().map(|(_, leaf)| &leaf.slots);
        let waiting = self.retired.iter().map(|(_, slots)| slots).chain(hidden).map(Slots::resident).sum();
        Size { infos: self.born, table_bytes: used, retired_table_bytes: waiting }
    }

    /// Adds a function; `want` counts the functions the caller is about to add near it, this one included.
    ///
    /// Functions that overlap it are removed: a caller that places new code there knows that the old code is gone.
    /// Returns how many.
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
                Err(NoSpace) => self.make_space(at, want, now, publish),
            }
        }
        replaced
    }

    /// Removes what [`Forest::insert`] added, as far as it is still there.
    pub(crate) fn remove(&mut self, range: &Range<u64>, fde: u32) {
        let mut at = range.start;
        while at < range.end {
            for (_, leaf) in self.hidden.iter_mut().filter(|(_, leaf)| leaf.info.contains(&at)) {
                leaf.slots.remove((at - leaf.info.start) as u32, fde);
            }
            let Some(leaf) = self.leaf_at(at) else { return };
            leaf.slots.remove((at - leaf.info.start) as u32, fde);
            // A leaf that was split inside this range still begins with a piece of it: nothing is split inside a
            // function.
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
        let (_, leaf) = present(self.leaves.range_mut(..=address).next_back());
        leaf
    }

    /// The part of the window of `address` that no leaf covers. The whole window, unless earlier leaves of it were
    /// clipped.
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

    /// A table whose content no thread can still be reading, emptied; or a new one.
    fn fresh(&mut self, now: u64) -> Slots {
        let wait = if self.retired.len() > MANY { SHORT_QUARANTINE } else { QUARANTINE };
        match self.retired.pop_front() {
            Some((since, mut slots)) if now.saturating_sub(since) >= wait => {
                slots.clear();
                slots
            }
            Some(young) => {
                self.retired.push_front(young);
                Slots::new()
            }
            None => Slots::new(),
        }
    }

    /// Spreads the table of the leaf at `finger` again, or splits the leaf.
    fn make_space(&mut self, finger: u64, want: usize, now: u64, publish: &mut dyn Publish) {
        self.bury(now, publish);
        if self.leaf_at(finger).is_some_and(|leaf| leaf.slots.functions() >= FULL) {
            return self.split(finger, want, now, publish);
        }
        let mut slots = self.fresh(now);
        let leaf = present(self.leaf_at(finger));
        let functions: Vec<Function> = leaf.slots.iter().collect();
        slots.fill(&functions, (finger - leaf.info.start) as u32, want);
        publish.table(leaf.id, slots.cells());
        let old = std::mem::replace(&mut leaf.slots, slots);
        self.retired.push_back((now, old));
    }

    /// Adds a leaf above or below the functions of the leaf at `finger`, if the finger is there (code that grows in one
    /// direction then fills its leaves); else two leaves take its place.
    fn split(&mut self, finger: u64, want: usize, now: u64, publish: &mut dyn Publish) {
        let leaf = present(self.leaf_at(finger));
        let (base, visible) = (leaf.info.start, leaf.visible.clone());
        let functions: Vec<Function> = leaf.slots.iter().collect();
        let offset = (finger - base) as u32;
        let (first, last) = (functions[0], functions[functions.len() - 1]);
        let mut old = present(self.leaves.remove(&visible.start));
        if offset >= last.end {
            old.visible.end = finger;
            self.leaves.insert(visible.start, old);
            let slots = self.fresh(now);
            self.add(finger..visible.end, slots, publish);
        } else if offset < first.start {
            let border = base + u64::from(first.start);
            old.visible.start = border;
            self.leaves.insert(border, old);
            let slots = self.fresh(now);
            self.add(visible.start..border, slots, publish);
        } else {
            let (low, high) = functions.split_at(functions.len() / 2);
            let border = base + u64::from(high[0].start);
            for (range, half) in [(visible.start..border, low), (border..visible.end, high)] {
                let shift = (range.start - base) as u32;
                let moved = half.iter().map(|f| Function { start: f.start - shift, end: f.end - shift, ..*f });
                let mut slots = self.fresh(now);
                slots.fill(&moved.collect::<Vec<_>>(), offset.saturating_sub(shift), want);
                self.add(range, slots, publish);
            }
            // The old leaf's table stays as it is: a search that has passed the head of the list may still come here.
            self.hidden.push_back((now, old));
        }
    }

    /// Takes the tables of leaves that no search can come to any more. Their infos stay in the list, and point to an
    /// empty table.
    fn bury(&mut self, now: u64, publish: &mut dyn Publish) {
        while self.hidden.front().is_some_and(|(since, _)| now.saturating_sub(*since) >= QUARANTINE) {
            let Some((_, leaf)) = self.hidden.pop_front() else { return };
            publish.table(leaf.id, self.empty.get_or_insert_with(Slots::new).cells());
            self.retired.push_back((now, leaf.slots));
        }
    }
}

#[cfg(test)]
#[path = "forest_tests.rs"]
mod tests;
