//! Objects that are loaded and not final: by number, by where their text is, by where their `.eh_frame` is.
//!
//! A host may load thousands before the first of them may run, so none of this looks at all of them.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use jitlisten::{Address, AddressRange, Loaded, ObjectId};

use crate::ranges::Ranges;

/// One of them.
struct Pending {
    loaded: Loaded,
    /// A text range that may not run yet, when it was last looked at.
    waits_for: usize,
}

impl Pending {
    /// Whether all of its text may run. An object without code, such as Numba's first, has nothing to wait for.
    fn runs(&mut self, executable: &Ranges) -> bool {
        let text = &self.loaded.text;
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
pub(crate) struct PendingObjects {
    objects: BTreeMap<ObjectId, Pending>,
    /// Start, end and owner of their text.
    text: BTreeSet<(u64, u64, ObjectId)>,
    /// At least as long as each of these.
    longest: u64,
    /// Start and owner of their `.eh_frame`.
    eh_frames: BTreeSet<(u64, ObjectId)>,
}

impl PendingObjects {
    /// Adds an object, in place of one of that number.
    pub(crate) fn insert(&mut self, loaded: Loaded) {
        self.remove(loaded.id);
        for text in &loaded.text {
            self.text.insert((text.start().0, text.end().0, loaded.id));
            self.longest = self.longest.max(text.size());
        }
        self.eh_frames.extend(loaded.eh_frame.map(|range| (range.start().0, loaded.id)));
        self.objects.insert(loaded.id, Pending { loaded, waits_for: 0 });
    }

    pub(crate) fn remove(&mut self, id: ObjectId) -> Option<Loaded> {
        let Pending { loaded, .. } = self.objects.remove(&id)?;
        for text in &loaded.text {
            self.text.remove(&(text.start().0, text.end().0, id));
        }
        if let Some(range) = loaded.eh_frame {
            self.eh_frames.remove(&(range.start().0, id));
        }
        if self.objects.is_empty() {
            self.longest = 0;
        }
        Some(loaded)
    }

    /// Takes an object out, if all of its text may run.
    pub(crate) fn take_if_runs(&mut self, id: ObjectId, executable: &Ranges) -> Option<Loaded> {
        if self.objects.get_mut(&id)?.runs(executable) { self.remove(id) } else { None }
    }

    pub(crate) fn text(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.objects.get(&id).map(|pending| pending.loaded.text.as_slice())
    }

    /// Those with text in `range`, in the order in which they were loaded.
    pub(crate) fn within(&self, range: AddressRange) -> BTreeSet<ObjectId> {
        self.overlapping(range).collect()
    }

    pub(crate) fn is_free(&self, range: AddressRange) -> bool {
        self.overlapping(range).next().is_none()
    }

    /// Those whose `.eh_frame` begins at `address`.
    pub(crate) fn with_eh_frame(&self, address: Address) -> Vec<ObjectId> {
        let owners = self.eh_frames.range((address.0, ObjectId(0))..=(address.0, ObjectId(u64::MAX)));
        owners.map(|&(_, id)| id).collect()
    }

    /// Text that begins further below than the longest cannot reach into `range`.
    fn overlapping(&self, range: AddressRange) -> impl Iterator<Item = ObjectId> + '_ {
        let (start, end) = (range.start().0, range.end().0);
        let first = (start.saturating_sub(self.longest), 0, ObjectId(0));
        let near = self.text.range(first..(end, 0, ObjectId(0)));
        near.filter(move |&&(_, text_end, _)| text_end > start).map(|&(.., id)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), end - start).unwrap()
    }

    fn object(id: u64, text: &[(u64, u64)]) -> Loaded {
        let text = text.iter().map(|&(start, end)| range(start, end)).collect();
        Loaded { id: ObjectId(id), text, eh_frame: Some(range(0x9000, 0x9100)) }
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
}
