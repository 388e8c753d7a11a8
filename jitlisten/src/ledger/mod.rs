//! Record of executable memory: which memory is executable, which objects in it are pending or final, and which of them
//! a change finalizes or frees. No other module decides whether code is live, or which object owns it.
//!
//! ```text
//!   loaded, reported        executable, eh_frame_registered, overdue, moved, finalized
//!        `-> pending  ----------------------------------------------------------> final
//!               `--- unmapped, displaced, overdue ---> freed <--- not_executable, unmapped, replaced ---'
//! ```
//!
//! The ledger performs no I/O. The session keeps it under its lock and notifies the sinks of each [`Outcome`]; the shim
//! reports system calls. The ledger does not watch the memory of objects that only their producer reported, because the
//! producer itself reports when such objects become final and when they are freed. Readers without the lock use data
//! derived from the ledger: `code_pages.rs` (hooks of `munmap`), `modules/` and the sampler's code map.

mod changes;
pub mod code_pages;
mod pending;
mod ranges;

use std::collections::{BTreeMap, BTreeSet};

use crate::{Address, AddressRange, ObjectId};
pub use changes::MemoryChange;
pub(crate) use changes::MemoryChanges;
pub(crate) use pending::LinkedCode;
use pending::PendingObjects;
pub use ranges::Ranges;

/// Objects that one event finalized or freed.
#[must_use = "objects whose end is not reported stay in every sink, and those that are final never come there"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Objects whose code became final.
    pub finalized: Vec<ObjectId>,
    /// Objects whose code was freed.
    pub freed: Vec<ObjectId>,
}

impl Outcome {
    fn append(&mut self, later: Outcome) {
        self.finalized.extend(later.finalized);
        self.freed.extend(later.freed);
    }

    /// Returns true if no object was finalized or freed.
    pub fn is_empty(&self) -> bool {
        self.finalized.is_empty() && self.freed.is_empty()
    }
}

/// Access rights of executable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executable {
    /// Executable and not writable: the code there is final.
    Only,
    /// Executable and writable (`PROT_WRITE`): the code there may still be relocated.
    Writable,
}

/// Record of executable memory and the objects in it; see the module documentation.
#[derive(Default)]
pub struct Ledger {
    executable: Ranges,
    /// Part of `executable` that is also writable.
    writable: Ranges,
    /// Objects that are loaded but not yet final.
    pending: PendingObjects,
    /// Pending objects that possibly no further event will finalize. They are checked again when the next object is
    /// loaded.
    candidates: BTreeSet<ObjectId>,
    /// Text of finalized objects: start address to end address and owner.
    text: BTreeMap<u64, (u64, ObjectId)>,
    finalized: BTreeMap<ObjectId, FinalCode>,
}

struct FinalCode {
    text: Vec<AddressRange>,
    /// True if a change to the object's memory frees it.
    is_watched: bool,
}

impl Ledger {
    /// Adds a discovered object. If its text is already executable (ORC's JITLink registers late), the object is
    /// finalized immediately. Exception: if the text is also writable and the object has an `.eh_frame`, the object is
    /// finalized when that `.eh_frame` is registered.
    ///
    /// If the object is already known because its linker, the GDB list or its producer reported it before, the only
    /// effect is that its memory is watched from now on.
    pub(crate) fn loaded(&mut self, code: LinkedCode) -> Outcome {
        if let Some(final_code) = self.finalized.get_mut(&code.id) {
            final_code.is_watched = true;
            return Outcome::default();
        }
        let id = code.id;
        let may_be_relocated = code.eh_frame.is_some() && code.text.iter().any(|&text| self.writable.overlaps(text));
        let mut outcome = Outcome::default();
        for &text in code.text.iter().filter(|text| text.size() > 0) {
            outcome.append(self.displace(text, Some(id)));
        }
        self.candidates.remove(&id);
        if may_be_relocated {
            self.candidates.insert(id);
            self.pending.insert(code);
            return outcome;
        }
        let candidates = std::mem::take(&mut self.candidates);
        outcome.append(self.take_finalized(candidates));
        if code.text.iter().all(|&text| self.executable.covers(text)) {
            self.pending.remove(id);
            self.make_final(code, true, &mut outcome);
        } else {
            self.pending.insert(code);
        }
        outcome
    }

    /// Adds an object that its producer reported. The object's memory is not watched.
    pub(crate) fn reported(&mut self, code: LinkedCode) {
        self.pending.insert_unwatched(code);
    }

    /// Finalizes a pending object, as reported by its producer.
    pub(crate) fn finalized(&mut self, id: ObjectId) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(pending) = self.pending.remove(id) {
            self.make_final(pending.code, pending.is_watched, &mut outcome);
        }
        outcome
    }

    /// Records that `range` became executable.
    pub fn executable(&mut self, range: AddressRange, rights: Executable) -> Outcome {
        self.executable.insert(range);
        match rights {
            Executable::Only => {
                self.writable.remove(range);
                self.take_finalized(self.pending.within(range))
            }
            Executable::Writable => {
                self.writable.insert(range);
                self.candidates.extend(self.pending.within(range));
                Outcome::default()
            }
        }
    }

    /// Records that `range` is no longer executable.
    pub(crate) fn not_executable(&mut self, range: AddressRange) -> Outcome {
        self.executable.remove(range);
        self.writable.remove(range);
        let freed: Vec<ObjectId> = self.watched_owners(range).collect();
        freed.iter().for_each(|&id| self.freed(id));
        Outcome { freed, ..Outcome::default() }
    }

    /// Records that `range` was unmapped or replaced: pending objects there cannot become executable.
    pub(crate) fn unmapped(&mut self, range: AddressRange) -> Outcome {
        let mut outcome = self.not_executable(range);
        outcome.append(self.displace(range, None));
        outcome
    }

    /// Displaces pending objects; see [`PendingObjects::displace`].
    fn displace(&mut self, range: AddressRange, new: Option<ObjectId>) -> Outcome {
        let freed = self.pending.displace(range, new);
        freed.iter().for_each(|&id| self.freed(id));
        Outcome { freed, ..Outcome::default() }
    }

    /// Returns true if a byte of `range` is executable.
    pub fn has_executable(&self, range: AddressRange) -> bool {
        self.executable.overlaps(range)
    }

    /// Executable and writable ranges.
    pub fn writable(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.writable.iter()
    }

    /// Executable and writable ranges that start at or after `address`.
    pub fn writable_from(&self, address: u64) -> impl Iterator<Item = AddressRange> + '_ {
        self.writable.iter_from(address)
    }

    /// Returns true if a byte of `range` is executable and writable.
    pub fn is_writable(&self, range: AddressRange) -> bool {
        self.writable.overlaps(range)
    }

    /// Text ranges of a pending object whose memory is watched.
    pub fn pending(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.pending.text(id)
    }

    /// Pending objects with `size` bytes of text, at any address.
    pub fn pending_with_text_size(&self, size: u64) -> impl Iterator<Item = ObjectId> + '_ {
        self.pending.with_text_size(size)
    }

    /// Finalizes a pending object that was found in executable memory at another address.
    pub(crate) fn moved(&mut self, code: LinkedCode) -> Outcome {
        let id = code.id;
        if self.pending.text(id).is_some() {
            self.pending.insert(code);
        }
        self.take_finalized([id])
    }

    /// Returns true if no discovered object has code in `range`. Objects reported only by their producer do not count,
    /// because they may still be discovered.
    pub fn is_free(&self, range: AddressRange) -> bool {
        self.watched_owners(range).next().is_none() && self.pending.is_free(range)
    }

    /// Handles a pending object whose timeout has expired. It is finalized if all of its text is executable, writable
    /// or not, and freed if its memory was unmapped.
    pub(crate) fn overdue(&mut self, id: ObjectId) -> Outcome {
        let mut outcome = self.take_finalized([id]);
        let dropped = self.pending.overdue(id);
        dropped.into_iter().for_each(|id| self.freed(id));
        outcome.freed.extend(dropped);
        outcome
    }

    /// Returns the next `count` overdue pending objects, round-robin.
    pub(crate) fn next_overdue(&mut self, count: usize) -> Vec<ObjectId> {
        self.pending.next_overdue(count)
    }

    /// Finalizes the pending objects whose `.eh_frame` is at `address`: LLVM registers an `.eh_frame` with the unwinder
    /// only after relocating it. In memory that is always writable and executable, no other event shows that the code
    /// is final.
    pub(crate) fn eh_frame_registered(&mut self, address: Address) -> Outcome {
        self.take_finalized(self.pending.with_eh_frame(address))
    }

    /// Returns true if a pending object has its `.eh_frame` at `address`.
    pub fn has_eh_frame(&self, address: Address) -> bool {
        !self.pending.with_eh_frame(address).is_empty()
    }

    /// Removes an object that was freed without a memory change.
    pub(crate) fn freed(&mut self, id: ObjectId) {
        self.pending.remove(id);
        self.candidates.remove(&id);
        for range in self.finalized.remove(&id).map(|code| code.text).unwrap_or_default() {
            if self.text.get(&range.start().0).is_some_and(|&(_, owner)| owner == id) {
                self.text.remove(&range.start().0);
            }
        }
    }

    /// Text ranges of a finalized object.
    pub fn text(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.finalized.get(&id).map(|code| code.text.as_slice())
    }

    /// The object whose text starts at `address`; a pending one takes precedence over a final one.
    pub(crate) fn starting_at(&self, address: Address) -> Option<ObjectId> {
        let find_final = || self.text.get(&address.0).map(|&(_, owner)| owner);
        self.pending.starting_at(address).or_else(find_final)
    }

    /// Start address of the first text at or after `address`, of pending and final objects.
    pub(crate) fn next_text(&self, address: Address) -> Option<Address> {
        let next_final = self.text.range(address.0..).next().map(|(&start, _)| Address(start));
        next_final.into_iter().chain(self.pending.next_text(address)).min()
    }

    /// Returns true if a pending object has text in `range`.
    pub(crate) fn is_pending(&self, range: AddressRange) -> bool {
        self.pending.overlaps(range)
    }

    /// Finalized objects with text in `range`, ordered by id.
    pub(crate) fn owners(&self, range: AddressRange) -> BTreeSet<ObjectId> {
        let (start, end) = (range.start().0, range.end().0);
        let overlapping = self.text.range(..end).rev().take_while(|(_, (text_end, _))| *text_end > start);
        overlapping.map(|(_, &(_, owner))| owner).collect()
    }

    /// Finalized objects with text in `range` whose memory is watched.
    fn watched_owners(&self, range: AddressRange) -> impl Iterator<Item = ObjectId> {
        let is_watched = |id: &ObjectId| self.finalized.get(id).is_some_and(|code| code.is_watched);
        self.owners(range).into_iter().filter(is_watched)
    }

    fn take_finalized(&mut self, ids: impl IntoIterator<Item = ObjectId>) -> Outcome {
        let mut outcome = Outcome::default();
        for id in ids {
            if let Some(pending) = self.pending.take_if_executable(id, &self.executable) {
                self.make_final(pending.code, pending.is_watched, &mut outcome);
            }
        }
        outcome
    }

    fn make_final(&mut self, LinkedCode { id, text, .. }: LinkedCode, is_watched: bool, outcome: &mut Outcome) {
        for &range in &text {
            // Any object that still owns this memory has been freed, even if no hook observed that.
            for previous in self.owners(range) {
                self.freed(previous);
                outcome.freed.push(previous);
            }
            self.text.insert(range.start().0, (range.end().0, id));
        }
        outcome.finalized.push(id);
        self.finalized.insert(id, FinalCode { text, is_watched });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ranges::range;

    fn object(id: u64, text: &[(u64, u64)], eh_frame: Option<(u64, u64)>) -> LinkedCode {
        let text = text.iter().map(|&(start, end)| range(start, end)).collect();
        LinkedCode { id: ObjectId(id), text, eh_frame: eh_frame.map(|(start, end)| range(start, end)) }
    }

    fn finalized(ids: &[u64]) -> Outcome {
        Outcome { finalized: ids.iter().map(|&id| ObjectId(id)).collect(), freed: vec![] }
    }

    fn freed(ids: &[u64]) -> Outcome {
        Outcome { finalized: vec![], freed: ids.iter().map(|&id| ObjectId(id)).collect() }
    }

    #[test]
    fn an_object_is_finalized_when_its_last_text_range_may_run() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100), (0x3000, 0x3100)], None)), finalized(&[]));
        assert_eq!(ledger.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.executable(range(0x3000, 0x4000), Executable::Only), finalized(&[1]));
        assert_eq!(ledger.executable(range(0x3000, 0x4000), Executable::Only), finalized(&[]));
    }

    #[test]
    fn an_object_that_is_reported_once_more_is_not_freed() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[1]));
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[]));
        assert_eq!(ledger.not_executable(range(0x1000, 0x2000)), freed(&[1]));
        assert_eq!(ledger.loaded(object(2, &[(0x5000, 0x5100)], None)), finalized(&[]));
        assert_eq!(ledger.loaded(object(2, &[(0x5000, 0x5100)], None)), finalized(&[]));
        assert_eq!(ledger.executable(range(0x5000, 0x6000), Executable::Only), finalized(&[2]));
    }

    #[test]
    fn an_object_without_code_waits_for_nothing() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.loaded(object(1, &[], None)), finalized(&[1]));
    }

    #[test]
    fn text_that_may_run_already_is_finalized_when_loaded() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.executable(range(0x2000, 0x3000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.loaded(object(1, &[(0x1f00, 0x2100)], None)), finalized(&[1]));
    }

    #[test]
    fn code_goes_with_its_memory_or_with_the_right_to_run() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.executable(range(0x1000, 0x4000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[1]));
        assert_eq!(ledger.loaded(object(2, &[(0x1100, 0x1200)], None)), finalized(&[2]));
        assert_eq!(ledger.loaded(object(3, &[(0x3000, 0x3100)], None)), finalized(&[3]));
        assert_eq!(ledger.not_executable(range(0x1000, 0x2000)), freed(&[1, 2]));
        assert_eq!(ledger.not_executable(range(0x1000, 0x2000)), freed(&[]));
        assert!(!ledger.has_executable(range(0x1000, 0x2000)));
        assert!(ledger.has_executable(range(0x0, 0x2001)));
        assert_eq!(ledger.loaded(object(4, &[(0x1000, 0x1100)], None)), finalized(&[]));
        assert_eq!(ledger.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[4]));
        ledger.freed(ObjectId(3));
        assert_eq!(ledger.not_executable(range(0x3000, 0x4000)), freed(&[]));
    }

    /// After a failed link, the memory is unmapped, and the next code reuses the pages at another offset.
    #[test]
    fn what_waits_in_memory_that_is_given_back_is_never_final_there() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], Some((0x5000, 0x5100)))), finalized(&[]));
        assert_eq!(ledger.loaded(object(2, &[(0x3000, 0x3100)], None)), finalized(&[]));
        assert_eq!(ledger.unmapped(range(0x1000, 0x2000)), freed(&[]));
        assert_eq!(ledger.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.eh_frame_registered(Address(0x5000)), finalized(&[]));
        // The host may have copied the object before, so the session looks for a copy at other addresses until the
        // object's timeout.
        assert!(ledger.pending(ObjectId(1)).is_some() && ledger.is_free(range(0x1000, 0x1100)));
        assert_eq!(ledger.overdue(ObjectId(1)), freed(&[1]));
        // Making memory writable again does not free pending objects.
        assert_eq!((ledger.overdue(ObjectId(2)), ledger.next_overdue(4)), (freed(&[]), vec![ObjectId(2)]));
        assert_eq!(ledger.not_executable(range(0x3000, 0x4000)), freed(&[]));
        assert_eq!(ledger.unmapped(range(0x3000, 0x4000)), freed(&[2]));
        assert!(ledger.pending(ObjectId(2)).is_none() && ledger.next_overdue(4).is_empty());
    }

    #[test]
    fn a_copy_is_final_although_its_first_place_was_given_back() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[]));
        assert_eq!(ledger.unmapped(range(0x1000, 0x2000)), finalized(&[]));
        assert_eq!(ledger.executable(range(0x8000, 0x9000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.moved(object(1, &[(0x8000, 0x8100)], None)), finalized(&[1]));
    }

    /// The first object was freed, but no event reported it.
    #[test]
    fn an_object_takes_the_place_of_one_that_waits_there() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[]));
        assert_eq!(ledger.overdue(ObjectId(1)), finalized(&[]));
        assert_eq!(ledger.loaded(object(2, &[(0x2000, 0x2100)], None)), finalized(&[]));
        assert_eq!(ledger.loaded(object(3, &[(0x10f0, 0x10f8), (0x20f0, 0x2200)], None)), freed(&[1]));
        assert_eq!(ledger.executable(range(0x1000, 0x3000), Executable::Only), finalized(&[3]));
        assert_eq!(ledger.overdue(ObjectId(2)), freed(&[2]));
    }

    #[test]
    fn of_what_its_producer_reports_the_producer_decides() {
        let mut ledger = Ledger::default();
        let object_at = |start: u64| object(start, &[(start, start + 0x100)], None);
        ledger.reported(object_at(0x1000));
        assert!(ledger.is_pending(range(0x10ff, 0x2000)) && ledger.is_free(range(0x1000, 0x2000)));
        assert_eq!(ledger.executable(range(0x1000, 0x3000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.finalized(ObjectId(0x1000)), finalized(&[0x1000]));
        assert_eq!(ledger.finalized(ObjectId(0x1000)), finalized(&[]));
        assert!(!ledger.is_pending(range(0x1000, 0x2000)) && ledger.is_free(range(0x1000, 0x2000)));
        assert_eq!(ledger.unmapped(range(0x1000, 0x2000)), freed(&[]));
        // A new object takes over memory from any previous owner.
        ledger.reported(object(1, &[(0x1080, 0x1200)], None));
        assert_eq!(
            ledger.finalized(ObjectId(1)),
            Outcome { finalized: vec![ObjectId(1)], freed: vec![ObjectId(0x1000)] }
        );
        // The reported object is discovered, too.
        assert_eq!(ledger.loaded(object(1, &[(0x1080, 0x1200)], None)), finalized(&[]));
        assert!(!ledger.is_free(range(0x1000, 0x2000)));
        assert_eq!(ledger.not_executable(range(0x1000, 0x2000)), freed(&[1]));
    }

    #[test]
    fn text_is_found_by_its_first_address_and_in_order() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[1]));
        ledger.reported(object(2, &[(0x5000, 0x5100), (0x3000, 0x3100)], None));
        ledger.reported(object(3, &[(0x5000, 0x5200)], None));
        let starting_at = |address: u64| ledger.starting_at(Address(address)).map(|id| id.0);
        assert_eq!(
            [starting_at(0x1000), starting_at(0x3000), starting_at(0x5000), starting_at(0x5001)],
            [Some(1), Some(2), Some(3), None]
        );
        let next_text = |address: u64| ledger.next_text(Address(address)).map(|next_text| next_text.0);
        assert_eq!(
            [next_text(0), next_text(0x1001), next_text(0x3001), next_text(0x5001)],
            [Some(0x1000), Some(0x3000), Some(0x5000), None]
        );
    }

    #[test]
    fn in_memory_that_stays_writable_the_eh_frame_decides() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.executable(range(0x1000, 0x2000), Executable::Writable), finalized(&[]));
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], Some((0x5000, 0x5100)))), finalized(&[]));
        assert_eq!(ledger.eh_frame_registered(Address(0x6000)), finalized(&[]));
        assert_eq!(ledger.eh_frame_registered(Address(0x5000)), finalized(&[1]));
        // No event will follow for an object without `.eh_frame`.
        assert_eq!(ledger.loaded(object(2, &[(0x1200, 0x1300)], None)), finalized(&[2]));
    }
}
