//! The executable memory of each LLVM, and the objects that a change of it finalizes or frees.
//!
//! Pure bookkeeping: the hooks report system calls and carry out the outcome.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use jitlisten::plumbing::Loaded;
use jitlisten::{Address, AddressRange, ObjectId};

use crate::memory::pending::PendingObjects;
use crate::memory::ranges::Ranges;

/// What became of objects. The sinks have still to be notified.
#[must_use = "objects whose end is not reported stay in every sink, and those that are final never come there"]
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) finalized: Vec<ObjectId>,
    pub(crate) freed: Vec<ObjectId>,
}

impl Outcome {
    /// Adds what came next.
    pub(crate) fn and(&mut self, next: Outcome) {
        self.finalized.extend(next.finalized);
        self.freed.extend(next.freed);
    }
}

/// What may be done with executable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executable {
    /// What is there is final.
    Only,
    /// It may still be relocated (`PROT_WRITE` too).
    Writable,
}

#[derive(Default)]
pub(crate) struct Memory {
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
    finalized: BTreeMap<ObjectId, Vec<AddressRange>>,
}

impl Memory {
    /// An object was loaded. It is finalized at once if its text already may run (ORC's JITLink registers late), except
    /// where it may also be written: there the registration of its `.eh_frame`, if it has one, decides.
    ///
    /// One that is reported once more (by its linker and by the list) is what it was.
    pub(crate) fn loaded(&mut self, loaded: Loaded) -> Outcome {
        if self.finalized.contains_key(&loaded.id) {
            return Outcome::default();
        }
        let unfinished = loaded.eh_frame.is_some() && loaded.text.iter().any(|&text| self.writable.overlaps(text));
        let mut displaced = Outcome::default();
        for &text in loaded.text.iter().filter(|text| text.size() > 0) {
            displaced.and(self.displace(text, Some(loaded.id)));
        }
        self.candidates.insert(loaded.id);
        self.pending.insert(loaded);
        if !unfinished {
            let candidates = std::mem::take(&mut self.candidates);
            displaced.and(self.take_finalized(candidates));
        }
        displaced
    }

    /// `range` may be executed from now on.
    pub(crate) fn executable(&mut self, range: AddressRange, how: Executable) -> Outcome {
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
        let freed = self.owners(range);
        for &id in &freed {
            self.freed(id);
        }
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
    pub(crate) fn has_executable(&self, range: AddressRange) -> bool {
        self.executable.overlaps(range)
    }

    /// Memory that may be executed and written.
    pub(crate) fn writable(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.writable.iter()
    }

    /// Those that begin at `address` or behind it.
    pub(crate) fn writable_from(&self, address: u64) -> impl Iterator<Item = AddressRange> + '_ {
        self.writable.iter_from(address)
    }

    /// Whether a byte of `range` may be executed and written.
    pub(crate) fn is_writable(&self, range: AddressRange) -> bool {
        self.writable.overlaps(range)
    }

    /// Where an object that is not finalized waits for the right to run.
    pub(crate) fn pending(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.pending.text(id)
    }

    /// Those with so much text, wherever it was linked for.
    pub(crate) fn pending_of_size(&self, size: u64) -> impl Iterator<Item = ObjectId> + '_ {
        self.pending.of_size(size)
    }

    /// An object that waits is elsewhere, where it may run: it is finalized.
    pub(crate) fn moved(&mut self, loaded: Loaded) -> Outcome {
        let id = loaded.id;
        if self.pending.text(id).is_some() {
            self.pending.insert(loaded);
        }
        self.take_finalized([id])
    }

    /// Whether no object is known to have its code in `range`.
    pub(crate) fn is_free(&self, range: AddressRange) -> bool {
        self.owners(range).is_empty() && self.pending.is_free(range)
    }

    /// An object has had time enough: it is finalized if all of its text may run, whatever else may be done with it,
    /// and freed if its memory was given back.
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
    pub(crate) fn has_eh_frame(&self, address: Address) -> bool {
        !self.pending.with_eh_frame(address).is_empty()
    }

    /// An object was freed by other news than a system call.
    pub(crate) fn freed(&mut self, id: ObjectId) {
        self.pending.remove(id);
        self.candidates.remove(&id);
        for range in self.finalized.remove(&id).unwrap_or_default() {
            if self.text.get(&range.start().0).is_some_and(|&(_, owner)| owner == id) {
                self.text.remove(&range.start().0);
            }
        }
    }

    /// The text of an object that is finalized.
    pub(crate) fn text(&self, id: ObjectId) -> Option<&[AddressRange]> {
        self.finalized.get(&id).map(Vec::as_slice)
    }

    fn take_finalized(&mut self, concerned: impl IntoIterator<Item = ObjectId>) -> Outcome {
        let mut outcome = Outcome::default();
        for id in concerned {
            let Some(loaded) = self.pending.take_if_runs(id, &self.executable) else { continue };
            for &text in &loaded.text {
                // Whatever had its code there is gone, seen or not.
                for id in self.owners(text) {
                    self.freed(id);
                    outcome.freed.push(id);
                }
                self.text.insert(text.start().0, (text.end().0, loaded.id));
            }
            outcome.finalized.push(loaded.id);
            self.finalized.insert(loaded.id, loaded.text);
        }
        outcome
    }

    /// The finalized objects with text in `range`.
    fn owners(&self, range: AddressRange) -> Vec<ObjectId> {
        let (start, end) = (range.start().0, range.end().0);
        let below = self.text.range(..end).rev().take_while(|(_, (text_end, _))| *text_end > start);
        let mut owners: Vec<ObjectId> = below.map(|(_, &(_, owner))| owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ranges::range;

    fn object(id: u64, text: &[(u64, u64)], eh_frame: Option<(u64, u64)>) -> Loaded {
        let text = text.iter().map(|&(start, end)| range(start, end)).collect();
        Loaded { id: ObjectId(id), text, eh_frame: eh_frame.map(|(start, end)| range(start, end)) }
    }

    fn finalized(ids: &[u64]) -> Outcome {
        Outcome { finalized: ids.iter().map(|&id| ObjectId(id)).collect(), freed: vec![] }
    }

    fn freed(ids: &[u64]) -> Outcome {
        Outcome { finalized: vec![], freed: ids.iter().map(|&id| ObjectId(id)).collect() }
    }

    #[test]
    fn an_object_is_finalized_when_its_last_text_range_may_run() {
        let mut memory = Memory::default();
        assert_eq!(memory.loaded(object(1, &[(0x1000, 0x1100), (0x3000, 0x3100)], None)), finalized(&[]));
        assert_eq!(memory.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(memory.executable(range(0x3000, 0x4000), Executable::Only), finalized(&[1]));
        assert_eq!(memory.executable(range(0x3000, 0x4000), Executable::Only), finalized(&[]));
    }

    #[test]
    fn an_object_that_is_reported_once_more_is_not_freed() {
        let mut memory = Memory::default();
        assert_eq!(memory.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(memory.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[1]));
        assert_eq!(memory.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[]));
        assert_eq!(memory.not_executable(range(0x1000, 0x2000)), freed(&[1]));
        assert_eq!(memory.loaded(object(2, &[(0x5000, 0x5100)], None)), finalized(&[]));
        assert_eq!(memory.loaded(object(2, &[(0x5000, 0x5100)], None)), finalized(&[]));
        assert_eq!(memory.executable(range(0x5000, 0x6000), Executable::Only), finalized(&[2]));
    }

    #[test]
    fn an_object_without_code_waits_for_nothing() {
        let mut memory = Memory::default();
        assert_eq!(memory.loaded(object(1, &[], None)), finalized(&[1]));
    }

    #[test]
    fn text_that_may_run_already_is_finalized_when_loaded() {
        let mut memory = Memory::default();
        assert_eq!(memory.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(memory.executable(range(0x2000, 0x3000), Executable::Only), finalized(&[]));
        assert_eq!(memory.loaded(object(1, &[(0x1f00, 0x2100)], None)), finalized(&[1]));
    }

    #[test]
    fn code_goes_with_its_memory_or_with_the_right_to_run() {
        let mut memory = Memory::default();
        assert_eq!(memory.executable(range(0x1000, 0x4000), Executable::Only), finalized(&[]));
        assert_eq!(memory.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[1]));
        assert_eq!(memory.loaded(object(2, &[(0x1100, 0x1200)], None)), finalized(&[2]));
        assert_eq!(memory.loaded(object(3, &[(0x3000, 0x3100)], None)), finalized(&[3]));
        assert_eq!(memory.not_executable(range(0x1000, 0x2000)), freed(&[1, 2]));
        assert_eq!(memory.not_executable(range(0x1000, 0x2000)), freed(&[]));
        assert!(!memory.has_executable(range(0x1000, 0x2000)));
        assert!(memory.has_executable(range(0x0, 0x2001)));
        assert_eq!(memory.loaded(object(4, &[(0x1000, 0x1100)], None)), finalized(&[]));
        assert_eq!(memory.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[4]));
        memory.freed(ObjectId(3));
        assert_eq!(memory.not_executable(range(0x3000, 0x4000)), freed(&[]));
    }

    /// A failed link: its memory is freed, and the next code is in the same pages, at another offset.
    #[test]
    fn what_waits_in_memory_that_is_given_back_is_never_final_there() {
        let mut memory = Memory::default();
        assert_eq!(memory.loaded(object(1, &[(0x1000, 0x1100)], Some((0x5000, 0x5100)))), finalized(&[]));
        assert_eq!(memory.loaded(object(2, &[(0x3000, 0x3100)], None)), finalized(&[]));
        assert_eq!(memory.unmapped(range(0x1000, 0x2000)), freed(&[]));
        assert_eq!(memory.executable(range(0x1000, 0x2000), Executable::Only), finalized(&[]));
        assert_eq!(memory.eh_frame_registered(Address(0x5000)), finalized(&[]));
        // It may have been copied before: for a while it is looked for elsewhere.
        assert!(memory.pending(ObjectId(1)).is_some() && memory.is_free(range(0x1000, 0x1100)));
        assert_eq!(memory.overdue(ObjectId(1)), freed(&[1]));
        // Making it writable once more is no end.
        assert_eq!((memory.overdue(ObjectId(2)), memory.next_overdue(4)), (freed(&[]), vec![ObjectId(2)]));
        assert_eq!(memory.not_executable(range(0x3000, 0x4000)), freed(&[]));
        assert_eq!(memory.unmapped(range(0x3000, 0x4000)), freed(&[2]));
        assert!(memory.pending(ObjectId(2)).is_none() && memory.next_overdue(4).is_empty());
    }

    #[test]
    fn a_copy_is_final_although_its_first_place_was_given_back() {
        let mut memory = Memory::default();
        assert_eq!(memory.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[]));
        assert_eq!(memory.unmapped(range(0x1000, 0x2000)), finalized(&[]));
        assert_eq!(memory.executable(range(0x8000, 0x9000), Executable::Only), finalized(&[]));
        assert_eq!(memory.moved(object(1, &[(0x8000, 0x8100)], None)), finalized(&[1]));
    }

    /// Where the end of the first was not reported.
    #[test]
    fn an_object_takes_the_place_of_one_that_waits_there() {
        let mut memory = Memory::default();
        assert_eq!(memory.loaded(object(1, &[(0x1000, 0x1100)], None)), finalized(&[]));
        assert_eq!(memory.overdue(ObjectId(1)), finalized(&[]));
        assert_eq!(memory.loaded(object(2, &[(0x2000, 0x2100)], None)), finalized(&[]));
        assert_eq!(memory.loaded(object(3, &[(0x10f0, 0x10f8), (0x20f0, 0x2200)], None)), freed(&[1]));
        assert_eq!(memory.executable(range(0x1000, 0x3000), Executable::Only), finalized(&[3]));
        assert_eq!(memory.overdue(ObjectId(2)), freed(&[2]));
    }

    #[test]
    fn in_memory_that_stays_writable_the_eh_frame_decides() {
        let mut memory = Memory::default();
        assert_eq!(memory.executable(range(0x1000, 0x2000), Executable::Writable), finalized(&[]));
        assert_eq!(memory.loaded(object(1, &[(0x1000, 0x1100)], Some((0x5000, 0x5100)))), finalized(&[]));
        assert_eq!(memory.eh_frame_registered(Address(0x6000)), finalized(&[]));
        assert_eq!(memory.eh_frame_registered(Address(0x5000)), finalized(&[1]));
        // Nothing will announce an object without one.
        assert_eq!(memory.loaded(object(2, &[(0x1200, 0x1300)], None)), finalized(&[2]));
    }
}
