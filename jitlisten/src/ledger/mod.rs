//! The code of the process: which memory may run, which objects are pending or final there, and what a change of it
//! finalizes or frees. The one place that knows whether code is alive, and whose it is.
//!
//! ```text
//!   loaded, reported        executable, eh_frame_registered, overdue, moved, finalized
//!        `-> pending  ----------------------------------------------------------> final
//!               `--- unmapped, displaced, overdue ---> freed <--- not_executable, unmapped, replaced ---'
//! ```
//!
//! Pure: the session holds it under its lock, and notifies the sinks of each [`Outcome`]. The shim reports system
//! calls. Of objects that only their producer has reported, no memory is watched: the producer's word counts. What
//! others read without that lock is made from it: `code_pages.rs` (hooks of `munmap`), `modules/` and the sampler's
//! code map.

#![forbid(unsafe_code)]

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

/// What became of objects.
#[must_use = "objects whose end is not reported stay in every sink, and those that are final never come there"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Those whose code is final.
    pub finalized: Vec<ObjectId>,
    /// Those whose code is gone.
    pub freed: Vec<ObjectId>,
}

impl Outcome {
    /// Adds what came next.
    fn and(&mut self, next: Outcome) {
        self.finalized.extend(next.finalized);
        self.freed.extend(next.freed);
    }

    /// Whether nothing became of any object.
    pub fn is_empty(&self) -> bool {
        self.finalized.is_empty() && self.freed.is_empty()
    }
}

/// What may be done with executable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executable {
    /// What is there is final.
    Only,
    /// It may still be relocated (`PROT_WRITE` too).
    Writable,
}

/// See the module's head.
#[derive(Default)]
pub struct Ledger {
    executable: Ranges,
    /// The part of `executable` that is writable too.
    writable: Ranges,
    /// Loaded, not finalized.
    pending: PendingObjects,
    /// Those of them that may be ready when the next object is loaded, and that nothing else may announce.
    candidates: BTreeSet<ObjectId>,
    /// Text of finalized objects: start to end and owner.
    text: BTreeMap<u64, (u64, ObjectId)>,
    /// The same by owner.
    finalized: BTreeMap<ObjectId, FinalCode>,
}

struct FinalCode {
    text: Vec<AddressRange>,
    /// Whether a change of its memory frees it.
    is_watched: bool,
}

impl Ledger {
    /// An object was discovered. It is finalized at once if its text already may run (ORC's JITLink registers late),
    /// except where it may also be written: there the registration of its `.eh_frame`, if it has one, decides.
    ///
    /// One that is reported once more (by its linker and by the list, or by its producer) is what it was. From now on
    /// its memory is watched.
    pub(crate) fn loaded(&mut self, code: LinkedCode) -> Outcome {
        if let Some(known) = self.finalized.get_mut(&code.id) {
            known.is_watched = true;
            return Outcome::default();
        }
        let id = code.id;
        let unfinished = code.eh_frame.is_some() && code.text.iter().any(|&text| self.writable.overlaps(text));
        let mut displaced = Outcome::default();
        for &text in code.text.iter().filter(|text| text.size() > 0) {
            displaced.and(self.displace(text, Some(id)));
        }
        self.candidates.remove(&id);
        if unfinished {
            self.candidates.insert(id);
            self.pending.insert(code);
            return displaced;
        }
        let candidates = std::mem::take(&mut self.candidates);
        displaced.and(self.take_finalized(candidates));
        if code.text.iter().all(|&text| self.executable.covers(text)) {
            self.pending.remove(id);
            self.make_final(code, true, &mut displaced);
        } else {
            self.pending.insert(code);
        }
        displaced
    }

    /// An object was reported by its producer.
    pub(crate) fn reported(&mut self, code: LinkedCode) {
        self.pending.insert_unwatched(code);
    }

    /// The producer of an object says that it is final.
    pub(crate) fn finalized(&mut self, id: ObjectId) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(pending) = self.pending.remove(id) {
            self.make_final(pending.code, pending.is_watched, &mut outcome);
        }
        outcome
    }

    /// `range` may be executed from now on.
    pub fn executable(&mut self, range: AddressRange, how: Executable) -> Outcome {
        self.executable.insert(range);
        match how {
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

    /// `range` may not be executed any more.
    pub(crate) fn not_executable(&mut self, range: AddressRange) -> Outcome {
        self.executable.remove(range);
        self.writable.remove(range);
        let freed: Vec<ObjectId> = self.watched_owners(range).collect();
        freed.iter().for_each(|&id| self.freed(id));
        Outcome { freed, ..Outcome::default() }
    }

    /// `range` is unmapped or replaced: pending objects there cannot become executable.
    pub(crate) fn unmapped(&mut self, range: AddressRange) -> Outcome {
        let mut outcome = self.not_executable(range);
        outcome.and(self.displace(range, None));
        outcome
    }

    /// See [`PendingObjects::displace`].
    fn displace(&mut self, range: AddressRange, new: Option<ObjectId>) -> Outcome {
        let freed = self.pending.displace(range, new);
        freed.iter().for_each(|&id| self.freed(id));
        Outcome { freed, ..Outcome::default() }
    }

    /// Whether a byte of `range` may be executed.
    pub fn has_executable(&self, range: AddressRange) -> bool {
        self.executable.overlaps(range)
    }

    /// Memory that may be executed and written.
    pub fn writable(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.writable.iter()
    }

    /// Those that begin at `address` or behind it.
    pub fn writable_from(&self, address: u64) -> impl Iterator<Item = AddressRange> + '_ {
        self.writable.iter_from(address)
    }

    /// Whether a byte of `range` may be executed and written.
    pub fn is_writable(&self, range: AddressRange) -> bool {
        self.writable.overlaps(range)
    }

    /// Where an object that is not finalized waits for the right to run.
    pub fn pending(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.pending.text(id)
    }

    /// Those with so much text, wherever it was linked for.
    pub fn pending_of_size(&self, size: u64) -> impl Iterator<Item = ObjectId> + '_ {
        self.pending.of_size(size)
    }

    /// An object that waits is elsewhere, where it may run: it is finalized.
    pub(crate) fn moved(&mut self, code: LinkedCode) -> Outcome {
        let id = code.id;
        if self.pending.text(id).is_some() {
            self.pending.insert(code);
        }
        self.take_finalized([id])
    }

    /// Whether no object was discovered that has its code in `range`. One that its producer has reported there may be
    /// discovered, too.
    pub fn is_free(&self, range: AddressRange) -> bool {
        self.watched_owners(range).next().is_none() && self.pending.is_free(range)
    }

    /// An object has had time enough: it is finalized if all of its text may run, whatever else may be done with it,
    /// and freed if its memory was unmapped.
    pub(crate) fn overdue(&mut self, id: ObjectId) -> Outcome {
        let mut outcome = self.take_finalized([id]);
        let given_up = self.pending.overdue(id);
        given_up.into_iter().for_each(|id| self.freed(id));
        outcome.freed.extend(given_up);
        outcome
    }

    /// A few of those that have had time enough and are not final, in turn.
    pub(crate) fn next_overdue(&mut self, count: usize) -> Vec<ObjectId> {
        self.pending.next_overdue(count)
    }

    /// LLVM has handed the `.eh_frame` at `address` to the unwinder: it is relocated. For memory that is writable and
    /// executable all the time this is the only sign.
    pub(crate) fn eh_frame_registered(&mut self, address: Address) -> Outcome {
        self.take_finalized(self.pending.with_eh_frame(address))
    }

    /// Whether an object that waits has its `.eh_frame` at `address`.
    pub fn has_eh_frame(&self, address: Address) -> bool {
        !self.pending.with_eh_frame(address).is_empty()
    }

    /// An object was freed by other news than a change of its memory.
    pub(crate) fn freed(&mut self, id: ObjectId) {
        self.pending.remove(id);
        self.candidates.remove(&id);
        for range in self.finalized.remove(&id).map(|code| code.text).unwrap_or_default() {
            if self.text.get(&range.start().0).is_some_and(|&(_, owner)| owner == id) {
                self.text.remove(&range.start().0);
            }
        }
    }

    /// The text of an object that is finalized.
    pub fn text(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.finalized.get(&id).map(|code| code.text.as_slice())
    }

    /// The object whose text begins at `address`: one that is pending there, or else the final one.
    pub(crate) fn beginning_at(&self, address: Address) -> Option<ObjectId> {
        let is_final = || self.text.get(&address.0).map(|&(_, owner)| owner);
        self.pending.beginning_at(address).or_else(is_final)
    }

    /// Where the first text begins at or behind `address`, of all objects.
    pub(crate) fn next_text(&self, address: Address) -> Option<Address> {
        let is_final = self.text.range(address.0..).next().map(|(&start, _)| Address(start));
        is_final.into_iter().chain(self.pending.next_text(address)).min()
    }

    /// Whether an object is pending in `range`.
    pub(crate) fn is_pending(&self, range: AddressRange) -> bool {
        self.pending.overlaps(range)
    }

    /// The finalized objects with text in `range`, by number.
    pub(crate) fn owners(&self, range: AddressRange) -> BTreeSet<ObjectId> {
        let (start, end) = (range.start().0, range.end().0);
        let below = self.text.range(..end).rev().take_while(|(_, (text_end, _))| *text_end > start);
        below.map(|(_, &(_, owner))| owner).collect()
    }

    /// Those of them whose memory is watched.
    fn watched_owners(&self, range: AddressRange) -> impl Iterator<Item = ObjectId> {
        let is_watched = |id: &ObjectId| self.finalized.get(id).is_some_and(|code| code.is_watched);
        self.owners(range).into_iter().filter(is_watched)
    }

    fn take_finalized(&mut self, concerned: impl IntoIterator<Item = ObjectId>) -> Outcome {
        let mut outcome = Outcome::default();
        for id in concerned {
            if let Some(pending) = self.pending.take_if_runs(id, &self.executable) {
                self.make_final(pending.code, pending.is_watched, &mut outcome);
            }
        }
        outcome
    }

    fn make_final(&mut self, LinkedCode { id, text, .. }: LinkedCode, is_watched: bool, outcome: &mut Outcome) {
        for &range in &text {
            // Whatever had its code there is gone, seen or not.
            for owner in self.owners(range) {
                self.freed(owner);
                outcome.freed.push(owner);
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

    /// A failed link: its memory is freed, and the next code is in the same pages, at another offset.
    #[test]
    fn what_waits_in_memory_that_is_given_back_is_never_final_there() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.loaded(object(1, &[(0x1000, 0x1100)], Some((0x5000, 0x5100)))), finalized(&[]));
        assert_eq!(ledger.loaded(object(2, &[(0x3000, 0x3100)], None)), finalized(&[]));
        assert_eq!(ledger.unmapped(range(0x1000, 0x2000)), freed(&[]));
        assert_eq!(ledger.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.eh_frame_registered(Address(0x5000)), finalized(&[]));
        // It may have been copied before: for a while it is looked for elsewhere.
        assert!(ledger.pending(ObjectId(1)).is_some() && ledger.is_free(range(0x1000, 0x1100)));
        assert_eq!(ledger.overdue(ObjectId(1)), freed(&[1]));
        // Making it writable once more is no end.
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

    /// Where the end of the first was not reported.
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
        let at = |start: u64| object(start, &[(start, start + 0x100)], None);
        ledger.reported(at(0x1000));
        assert!(ledger.is_pending(range(0x10ff, 0x2000)) && ledger.is_free(range(0x1000, 0x2000)));
        assert_eq!(ledger.executable(range(0x1000, 0x3000), Executable::Only), finalized(&[]));
        assert_eq!(ledger.finalized(ObjectId(0x1000)), finalized(&[0x1000]));
        assert_eq!(ledger.finalized(ObjectId(0x1000)), finalized(&[]));
        assert!(!ledger.is_pending(range(0x1000, 0x2000)) && ledger.is_free(range(0x1000, 0x2000)));
        assert_eq!(ledger.unmapped(range(0x1000, 0x2000)), freed(&[]));
        // The new one's place is its own, whoever was there.
        ledger.reported(object(1, &[(0x1080, 0x1200)], None));
        assert_eq!(
            ledger.finalized(ObjectId(1)),
            Outcome { finalized: vec![ObjectId(1)], freed: vec![ObjectId(0x1000)] }
        );
        // Discovered, too.
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
        let at = |address: u64| ledger.beginning_at(Address(address)).map(|id| id.0);
        assert_eq!([at(0x1000), at(0x3000), at(0x5000), at(0x5001)], [Some(1), Some(2), Some(3), None]);
        let next = |address: u64| ledger.next_text(Address(address)).map(|next| next.0);
        assert_eq!(
            [next(0), next(0x1001), next(0x3001), next(0x5001)],
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
        // Nothing will announce an object without one.
        assert_eq!(ledger.loaded(object(2, &[(0x1200, 0x1300)], None)), finalized(&[2]));
    }
}
