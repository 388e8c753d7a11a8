//! Objects that are loaded and not final, by number, by address of their text, and by address of their `.eh_frame`.
//!
//! A host may load thousands before the first becomes executable, so nothing here visits all of them.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::ranges::Ranges;
use crate::{Address, AddressRange, ObjectId};

/// Where a linker has put an object.
#[derive(Clone, Debug)]
pub(crate) struct LinkedCode {
    pub(crate) id: ObjectId,
    /// Where its code is.
    pub(crate) text: Vec<AddressRange>,
    /// Where its live `.eh_frame` is.
    pub(crate) eh_frame: Option<AddressRange>,
}

/// One of them.
pub(super) struct Pending {
    pub(super) code: LinkedCode,
    /// Whether its memory says when it is final.
    pub(super) is_watched: bool,
    /// A text range that may not run yet, when it was last looked at.
    waits_for: usize,
    /// Its memory was freed, or belongs to another object: it cannot become final at this address.
    displaced: bool,
}

/// So many that have had time enough stay; of more, the oldest are given up: code that runs in another process never
/// comes.
const MOST_OVERDUE: usize = 1 << 16;

impl Pending {
    /// Whether all of its text may run. An object without code, such as Numba's first, has nothing to wait for.
    fn runs(&mut self, executable: &Ranges) -> bool {
        let text = &self.code.text;
        // The range that was missing is probably missing still; many ranges and many calls must not multiply.
        if text.get(self.waits_for).is_some_and(|&text| !executable.covers(text)) {
            return false;
        }
        let missing = text.iter().position(|&text| !executable.covers(text));
        self.waits_for = missing.unwrap_or_default();
        missing.is_none()
    }
}

#[derive(Default)]
pub(super) struct PendingObjects {
    objects: BTreeMap<ObjectId, Pending>,
    /// Start, end and owner of their text.
    text: BTreeSet<(u64, u64, ObjectId)>,
    /// The size of all text of one, and its owner.
    sizes: BTreeSet<(u64, ObjectId)>,
    /// At least as long as each of these.
    longest: u64,
    /// Start and owner of their `.eh_frame`.
    eh_frames: BTreeSet<(u64, ObjectId)>,
    /// Those that have had time enough.
    overdue: BTreeSet<ObjectId>,
    /// The one of them that was looked at last.
    looked_at: Option<ObjectId>,
}

impl PendingObjects {
    /// Adds an object, in place of one of that number.
    pub(super) fn insert(&mut self, code: LinkedCode) {
        self.remove(code.id);
        self.eh_frames.extend(code.eh_frame.map(|range| (range.start().0, code.id)));
        self.sizes.insert((code.size(), code.id));
        self.add(code, true);
    }

    /// Adds one whose memory is not watched: it is only known to be there.
    pub(super) fn insert_unwatched(&mut self, code: LinkedCode) {
        self.add(code, false);
    }

    fn add(&mut self, code: LinkedCode, is_watched: bool) {
        for text in &code.text {
            self.text.insert((text.start().0, text.end().0, code.id));
            self.longest = self.longest.max(text.size());
        }
        self.objects.insert(code.id, Pending { code, is_watched, waits_for: 0, displaced: false });
    }

    pub(super) fn remove(&mut self, id: ObjectId) -> Option<Pending> {
        let pending = self.objects.remove(&id)?;
        self.overdue.remove(&id);
        self.sizes.remove(&(pending.code.size(), id));
        self.forget_places(&pending.code);
        if self.objects.is_empty() {
            self.longest = 0;
        }
        Some(pending)
    }

    fn forget_places(&mut self, code: &LinkedCode) {
        for text in &code.text {
            self.text.remove(&(text.start().0, text.end().0, code.id));
        }
        if let Some(range) = code.eh_frame {
            self.eh_frames.remove(&(range.start().0, code.id));
        }
    }

    /// Takes an object out, if all of its text may run.
    pub(super) fn take_if_runs(&mut self, id: ObjectId, executable: &Ranges) -> Option<Pending> {
        let pending = self.objects.get_mut(&id)?;
        if !pending.displaced && pending.runs(executable) { self.remove(id) } else { None }
    }

    /// The memory in `range` was freed, or belongs to the object `new`. Other pending objects there cannot become
    /// final: an object that has had time enough is taken out and returned; others may be found elsewhere, where their
    /// host has copied them.
    pub(super) fn displace(&mut self, range: AddressRange, new: Option<ObjectId>) -> Vec<ObjectId> {
        let others = self.within(range).into_iter().filter(|&id| Some(id) != new).collect::<Vec<_>>();
        let mut given_up = Vec::new();
        for id in others {
            if self.overdue.contains(&id) {
                self.remove(id);
                given_up.push(id);
            } else if let Some(mut pending) = self.objects.remove(&id) {
                pending.displaced = true;
                self.forget_places(&pending.code);
                self.objects.insert(id, pending);
            }
        }
        given_up
    }

    /// An object has had time enough. Those that are given up for that are taken out and returned: itself, where it was
    /// displaced.
    pub(super) fn overdue(&mut self, id: ObjectId) -> Option<ObjectId> {
        let displaced = self.objects.get(&id)?.displaced;
        self.overdue.insert(id);
        let given_up = if displaced {
            Some(id)
        } else {
            self.overdue.first().copied().filter(|_| self.overdue.len() > MOST_OVERDUE)
        };
        self.remove(given_up?).map(|pending| pending.code.id)
    }

    /// The next `count` of those that have had time enough, in turn.
    pub(super) fn next_overdue(&mut self, count: usize) -> Vec<ObjectId> {
        let from = self.looked_at.map_or(Bound::Unbounded, Bound::Excluded);
        let next: Vec<ObjectId> = self.overdue.range((from, Bound::Unbounded)).take(count).copied().collect();
        self.looked_at = next.last().copied().filter(|_| next.len() == count);
        next
    }

    /// Where an object is that is watched.
    pub(super) fn text(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.objects.get(&id).filter(|pending| pending.is_watched).map(|pending| pending.code.text.as_slice())
    }

    /// Those that are watched and have text in `range`, in the order in which they were loaded.
    pub(super) fn within(&self, range: AddressRange) -> BTreeSet<ObjectId> {
        self.watched(range).collect()
    }

    /// Those with so much text, wherever it is.
    pub(super) fn of_size(&self, size: u64) -> impl Iterator<Item = ObjectId> + '_ {
        self.sizes.range((size, ObjectId(0))..=(size, ObjectId(u64::MAX))).map(|&(_, id)| id)
    }

    pub(super) fn is_free(&self, range: AddressRange) -> bool {
        self.watched(range).next().is_none()
    }

    /// Whether one has text in `range`, watched or not.
    pub(super) fn overlaps(&self, range: AddressRange) -> bool {
        self.overlapping(range).next().is_some()
    }

    /// The last one whose text begins at `address`.
    pub(super) fn beginning_at(&self, address: Address) -> Option<ObjectId> {
        let there = self.text.range((address.0, 0, ObjectId(0))..=(address.0, u64::MAX, ObjectId(u64::MAX)));
        there.map(|&(.., id)| id).max()
    }

    /// Where the first text begins at or behind `address`.
    pub(super) fn next_text(&self, address: Address) -> Option<Address> {
        self.text.range((address.0, 0, ObjectId(0))..).next().map(|&(start, ..)| Address(start))
    }

    /// Those whose `.eh_frame` begins at `address`.
    pub(super) fn with_eh_frame(&self, address: Address) -> Vec<ObjectId> {
        let owners = self.eh_frames.range((address.0, ObjectId(0))..=(address.0, ObjectId(u64::MAX)));
        owners.map(|&(_, id)| id).collect()
    }

    fn watched(&self, range: AddressRange) -> impl Iterator<Item = ObjectId> + '_ {
        let is_watched = |id: &ObjectId| self.objects.get(id).is_some_and(|pending| pending.is_watched);
        self.overlapping(range).filter(is_watched)
    }

    /// Text that begins further below than the longest cannot reach into `range`.
    fn overlapping(&self, range: AddressRange) -> impl Iterator<Item = ObjectId> + '_ {
        let (start, end) = (range.start().0, range.end().0);
        let first = (start.saturating_sub(self.longest), 0, ObjectId(0));
        let near = self.text.range(first..(end, 0, ObjectId(0)));
        near.filter(move |&&(_, text_end, _)| text_end > start).map(|&(.., id)| id)
    }
}

impl LinkedCode {
    fn size(&self) -> u64 {
        self.text.iter().map(|text| text.size()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranges::range;
    use super::*;

    fn object(id: u64, text: &[(u64, u64)]) -> LinkedCode {
        let text = text.iter().map(|&(start, end)| range(start, end)).collect();
        LinkedCode { id: ObjectId(id), text, eh_frame: Some(range(0x9000, 0x9100)) }
    }

    #[test]
    fn a_long_text_is_found_behind_many_short_ones() {
        let mut pending = PendingObjects::default();
        pending.insert(object(1, &[(0x1000, 0x8000)]));
        pending.insert(object(2, &[(0x1100, 0x1200), (0x2000, 0x2100)]));
        let within = |pending: &PendingObjects, start, end| -> Vec<u64> {
            pending.within(range(start, end)).into_iter().map(|id| id.0).collect()
        };
        assert_eq!(within(&pending, 0x7fff, 0x8000), [1]);
        assert_eq!(within(&pending, 0x1180, 0x2001), [1, 2]);
        assert!(pending.is_free(range(0x8000, 0x9000)) && pending.is_free(range(0x500, 0x1000)));
        assert_eq!(pending.with_eh_frame(Address(0x9000)), [ObjectId(1), ObjectId(2)]);
        // Of the same number, elsewhere.
        pending.insert(object(1, &[(0x5000, 0x5100)]));
        assert_eq!(within(&pending, 0x1180, 0x5001), [1, 2]);
        assert_eq!(within(&pending, 0x7fff, 0x8000), [0_u64; 0]);
        assert_eq!(pending.text(ObjectId(1)).unwrap(), [range(0x5000, 0x5100)]);
        assert!(pending.remove(ObjectId(1)).is_some() && pending.remove(ObjectId(1)).is_none());
        assert_eq!(pending.with_eh_frame(Address(0x9000)), [ObjectId(2)]);
    }

    #[test]
    fn what_is_displaced_is_given_up_once_it_has_had_time_enough() {
        let (mut pending, mut executable) = (PendingObjects::default(), Ranges::default());
        executable.insert(range(0x1000, 0x9000));
        pending.insert(object(1, &[(0x1000, 0x1100)]));
        pending.insert(object(2, &[(0x2000, 0x2100), (0x3000, 0x3100)]));
        assert_eq!(pending.displace(range(0x3000, 0x4000), None), []);
        assert!(pending.is_free(range(0x2000, 0x4000)) && pending.text(ObjectId(2)).is_some());
        assert_eq!(pending.with_eh_frame(Address(0x9000)), [ObjectId(1)]);
        assert!(pending.take_if_runs(ObjectId(2), &executable).is_none());
        assert_eq!((pending.overdue(ObjectId(1)), pending.overdue(ObjectId(2))), (None, Some(ObjectId(2))));
        assert_eq!((pending.overdue(ObjectId(2)), pending.text(ObjectId(2))), (None, None));
        assert_eq!(pending.displace(range(0x10ff, 0x1100), Some(ObjectId(1))), []);
        assert_eq!(pending.displace(range(0x10ff, 0x1100), None), [ObjectId(1)]);
        // Of a number that was displaced, at its place again.
        pending.insert(object(3, &[(0x1000, 0x1100)]));
        pending.displace(range(0x1000, 0x1100), None);
        assert_eq!(pending.of_size(0x100).collect::<Vec<_>>(), [ObjectId(3)]);
        pending.insert(object(3, &[(0x1000, 0x1100)]));
        assert!(pending.take_if_runs(ObjectId(3), &executable).is_some());
        assert_eq!(pending.of_size(0x100).count(), 0);
    }

    #[test]
    fn those_that_have_had_time_enough_are_looked_at_in_turn_and_are_not_kept_without_bound() {
        let mut pending = PendingObjects::default();
        let most = MOST_OVERDUE as u64;
        for id in 0..most {
            pending.insert(LinkedCode { id: ObjectId(id), text: vec![], eh_frame: None });
            assert_eq!(pending.overdue(ObjectId(id)), None);
        }
        assert_eq!(pending.next_overdue(2), [ObjectId(0), ObjectId(1)]);
        assert_eq!(pending.next_overdue(2), [ObjectId(2), ObjectId(3)]);
        assert_eq!(pending.next_overdue(MOST_OVERDUE).len(), MOST_OVERDUE - 4);
        assert_eq!(pending.next_overdue(1), [ObjectId(0)]);
        pending.insert(object(most, &[]));
        assert_eq!((pending.overdue(ObjectId(most)), pending.text(ObjectId(0))), (Some(ObjectId(0)), None));
    }
}
