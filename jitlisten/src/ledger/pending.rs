//! Pending objects (loaded, not yet final), indexed by id, text address and `.eh_frame` address.
//!
//! A host may load thousands of objects before the first becomes executable, so no operation visits all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::ranges::Ranges;
use crate::{Address, AddressRange, ObjectId};

/// Addresses at which a linker placed an object.
#[derive(Clone, Debug)]
pub(crate) struct LinkedCode {
    pub(crate) id: ObjectId,
    pub(crate) text: Vec<AddressRange>,
    pub(crate) eh_frame: Option<AddressRange>,
}

/// An object that is loaded but not yet final.
pub(super) struct Pending {
    pub(super) code: LinkedCode,
    /// True if changes to the object's memory are watched to detect when its code is final.
    pub(super) is_watched: bool,
    /// Index of a text range that was not executable at the last check.
    first_missing: usize,
    /// True if the object's memory was freed or now belongs to another object. The object can no longer become final at
    /// this address.
    displaced: bool,
}

/// Maximum number of overdue objects; beyond it, the oldest are dropped. Code that was linked for another process never
/// becomes executable here.
const MAX_OVERDUE: usize = 1 << 16;

impl Pending {
    /// Returns true if all text of the object is executable. An object without code, such as the first one that Numba
    /// loads, is always ready.
    fn is_executable(&mut self, executable: &Ranges) -> bool {
        let text = &self.code.text;
        // The range that was not executable at the last check probably still is not. Check it first, so that checking
        // an object with many ranges stays cheap.
        if text.get(self.first_missing).is_some_and(|&text| !executable.covers(text)) {
            return false;
        }
        let missing_index = text.iter().position(|&text| !executable.covers(text));
        self.first_missing = missing_index.unwrap_or_default();
        missing_index.is_none()
    }
}

#[derive(Default)]
pub(super) struct PendingObjects {
    objects: BTreeMap<ObjectId, Pending>,
    /// Start, end and owner of each text range.
    text: BTreeSet<(u64, u64, ObjectId)>,
    /// Total text size and id of each object.
    sizes: BTreeSet<(u64, ObjectId)>,
    /// Upper bound for the length of a text range.
    max_text_bytes: u64,
    /// Start and owner of each `.eh_frame`.
    eh_frames: BTreeSet<(u64, ObjectId)>,
    /// Objects whose timeout has expired.
    overdue: BTreeSet<ObjectId>,
    /// Last object that `next_overdue` returned.
    last_returned: Option<ObjectId>,
}

impl PendingObjects {
    /// Adds an object, replacing any object with the same id.
    pub(super) fn insert(&mut self, code: LinkedCode) {
        self.remove(code.id);
        self.eh_frames.extend(code.eh_frame.map(|range| (range.start().0, code.id)));
        self.sizes.insert((code.size(), code.id));
        self.add(code, true);
    }

    /// Adds an object whose memory is not watched. It can be found only by the addresses of its text.
    pub(super) fn insert_unwatched(&mut self, code: LinkedCode) {
        self.add(code, false);
    }

    fn add(&mut self, code: LinkedCode, is_watched: bool) {
        for text in &code.text {
            self.text.insert((text.start().0, text.end().0, code.id));
            self.max_text_bytes = self.max_text_bytes.max(text.size());
        }
        self.objects.insert(code.id, Pending { code, is_watched, first_missing: 0, displaced: false });
    }

    pub(super) fn remove(&mut self, id: ObjectId) -> Option<Pending> {
        let pending = self.objects.remove(&id)?;
        self.overdue.remove(&id);
        self.sizes.remove(&(pending.code.size(), id));
        self.remove_from_indexes(&pending.code);
        if self.objects.is_empty() {
            self.max_text_bytes = 0;
        }
        Some(pending)
    }

    fn remove_from_indexes(&mut self, code: &LinkedCode) {
        for text in &code.text {
            self.text.remove(&(text.start().0, text.end().0, code.id));
        }
        if let Some(range) = code.eh_frame {
            self.eh_frames.remove(&(range.start().0, code.id));
        }
    }

    /// Removes and returns an object if all of its text is executable.
    pub(super) fn take_if_executable(&mut self, id: ObjectId, executable: &Ranges) -> Option<Pending> {
        let pending = self.objects.get_mut(&id)?;
        if !pending.displaced && pending.is_executable(executable) { self.remove(id) } else { None }
    }

    /// Marks the pending objects in `range` as displaced, because the memory was freed, or belongs to the object `new`.
    /// They cannot become final there. Overdue objects are removed and returned; the others may turn up at another
    /// address, if their host copied them.
    pub(super) fn displace(&mut self, range: AddressRange, new: Option<ObjectId>) -> Vec<ObjectId> {
        let displaced_ids = self.within(range).into_iter().filter(|&id| Some(id) != new).collect::<Vec<_>>();
        let mut dropped = Vec::new();
        for id in displaced_ids {
            if self.overdue.contains(&id) {
                self.remove(id);
                dropped.push(id);
            } else if let Some(mut pending) = self.objects.remove(&id) {
                pending.displaced = true;
                self.remove_from_indexes(&pending.code);
                self.objects.insert(id, pending);
            }
        }
        dropped
    }

    /// Marks an object as overdue. Returns the object that is dropped as a result, if any: the object itself if it was
    /// displaced, or the oldest one beyond the limit.
    pub(super) fn overdue(&mut self, id: ObjectId) -> Option<ObjectId> {
        let displaced = self.objects.get(&id)?.displaced;
        self.overdue.insert(id);
        let dropped = if displaced {
            Some(id)
        } else {
            self.overdue.first().copied().filter(|_| self.overdue.len() > MAX_OVERDUE)
        };
        self.remove(dropped?).map(|pending| pending.code.id)
    }

    /// Returns the next `count` overdue objects, round-robin.
    pub(super) fn next_overdue(&mut self, count: usize) -> Vec<ObjectId> {
        let start_bound = self.last_returned.map_or(Bound::Unbounded, Bound::Excluded);
        let next_ids: Vec<ObjectId> =
            self.overdue.range((start_bound, Bound::Unbounded)).take(count).copied().collect();
        self.last_returned = next_ids.last().copied().filter(|_| next_ids.len() == count);
        next_ids
    }

    pub(super) fn text(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.objects.get(&id).filter(|pending| pending.is_watched).map(|pending| pending.code.text.as_slice())
    }

    /// Watched objects with text in `range`, in load order.
    pub(super) fn within(&self, range: AddressRange) -> BTreeSet<ObjectId> {
        self.watched(range).collect()
    }

    /// Watched objects with `size` bytes of text, at any address.
    pub(super) fn with_text_size(&self, size: u64) -> impl Iterator<Item = ObjectId> + '_ {
        self.sizes.range((size, ObjectId(0))..=(size, ObjectId(u64::MAX))).map(|&(_, id)| id)
    }

    pub(super) fn is_free(&self, range: AddressRange) -> bool {
        self.watched(range).next().is_none()
    }

    /// Returns true if an object has text in `range`, watched or not.
    pub(super) fn overlaps(&self, range: AddressRange) -> bool {
        self.overlapping(range).next().is_some()
    }

    /// Most recently loaded object whose text starts at `address`.
    pub(super) fn starting_at(&self, address: Address) -> Option<ObjectId> {
        let matches = self.text.range((address.0, 0, ObjectId(0))..=(address.0, u64::MAX, ObjectId(u64::MAX)));
        matches.map(|&(.., id)| id).max()
    }

    /// Start address of the first text at or after `address`.
    pub(super) fn next_text(&self, address: Address) -> Option<Address> {
        self.text.range((address.0, 0, ObjectId(0))..).next().map(|&(start, ..)| Address(start))
    }

    pub(super) fn with_eh_frame(&self, address: Address) -> Vec<ObjectId> {
        let owners = self.eh_frames.range((address.0, ObjectId(0))..=(address.0, ObjectId(u64::MAX)));
        owners.map(|&(_, id)| id).collect()
    }

    fn watched(&self, range: AddressRange) -> impl Iterator<Item = ObjectId> + '_ {
        let is_watched = |id: &ObjectId| self.objects.get(id).is_some_and(|pending| pending.is_watched);
        self.overlapping(range).filter(is_watched)
    }

    /// Objects with text in `range`. A text that starts more than the maximum text length before `range` cannot reach
    /// it.
    fn overlapping(&self, range: AddressRange) -> impl Iterator<Item = ObjectId> + '_ {
        let (start, end) = (range.start().0, range.end().0);
        let first_key = (start.saturating_sub(self.max_text_bytes), 0, ObjectId(0));
        let candidates = self.text.range(first_key..(end, 0, ObjectId(0)));
        candidates.filter(move |&&(_, text_end, _)| text_end > start).map(|&(.., id)| id)
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
        // Replaces the object with the same id, at another address.
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
        assert!(pending.take_if_executable(ObjectId(2), &executable).is_none());
        assert_eq!((pending.overdue(ObjectId(1)), pending.overdue(ObjectId(2))), (None, Some(ObjectId(2))));
        assert_eq!((pending.overdue(ObjectId(2)), pending.text(ObjectId(2))), (None, None));
        assert_eq!(pending.displace(range(0x10ff, 0x1100), Some(ObjectId(1))), []);
        assert_eq!(pending.displace(range(0x10ff, 0x1100), None), [ObjectId(1)]);
        // Replaces a displaced object with the same id, at its old address.
        pending.insert(object(3, &[(0x1000, 0x1100)]));
        pending.displace(range(0x1000, 0x1100), None);
        assert_eq!(pending.with_text_size(0x100).collect::<Vec<_>>(), [ObjectId(3)]);
        pending.insert(object(3, &[(0x1000, 0x1100)]));
        assert!(pending.take_if_executable(ObjectId(3), &executable).is_some());
        assert_eq!(pending.with_text_size(0x100).count(), 0);
    }

    #[test]
    fn those_that_have_had_time_enough_are_looked_at_in_turn_and_are_not_kept_without_bound() {
        let mut pending = PendingObjects::default();
        let max = MAX_OVERDUE as u64;
        for id in 0..max {
            pending.insert(LinkedCode { id: ObjectId(id), text: vec![], eh_frame: None });
            assert_eq!(pending.overdue(ObjectId(id)), None);
        }
        assert_eq!(pending.next_overdue(2), [ObjectId(0), ObjectId(1)]);
        assert_eq!(pending.next_overdue(2), [ObjectId(2), ObjectId(3)]);
        assert_eq!(pending.next_overdue(MAX_OVERDUE).len(), MAX_OVERDUE - 4);
        assert_eq!(pending.next_overdue(1), [ObjectId(0)]);
        pending.insert(object(max, &[]));
        assert_eq!((pending.overdue(ObjectId(max)), pending.text(ObjectId(0))), (Some(ObjectId(0)), None));
    }
}
