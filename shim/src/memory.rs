//! Which memory of an LLVM is executable, and which objects that finalizes or frees.
//!
//! Pure bookkeeping: the hooks tell it what the system calls did, and do what it answers.

use std::collections::BTreeMap;

use jitlisten::{Address, AddressRange, Loaded, ObjectId};

/// What became of objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) finalized: Vec<ObjectId>,
    pub(crate) freed: Vec<ObjectId>,
}

#[derive(Default)]
pub(crate) struct Memory {
    /// Executable memory: start to end, merged.
    executable: BTreeMap<u64, u64>,
    /// Loaded, not finalized.
    pending: Vec<Loaded>,
    /// Text of finalized objects: start to end and owner.
    text: BTreeMap<u64, (u64, ObjectId)>,
    /// The same by owner.
    finalized: BTreeMap<ObjectId, Vec<AddressRange>>,
}

impl Memory {
    /// An object was loaded. It is finalized at once if its text already may run (ORC's JITLink tells late).
    pub(crate) fn loaded(&mut self, loaded: Loaded) -> Outcome {
        self.pending.push(loaded);
        self.take_finalized(|_| true)
    }

    /// `range` may be executed from now on.
    pub(crate) fn executable(&mut self, range: AddressRange) -> Outcome {
        let (mut start, mut end) = (range.start().0, range.end().0);
        while let Some((&below, &below_end)) = self.executable.range(..=end).next_back() {
            if below_end < start {
                break;
            }
            (start, end) = (start.min(below), end.max(below_end));
            self.executable.remove(&below);
        }
        self.executable.insert(start, end);
        self.take_finalized(|loaded| loaded.text.iter().any(|text| text.overlaps(range)))
    }

    /// `range` may not be executed any more, or is gone.
    pub(crate) fn not_executable(&mut self, range: AddressRange) -> Outcome {
        self.cut(range);
        let (start, end) = (range.start().0, range.end().0);
        let below = self.text.range(..end).rev().take_while(|(_, (text_end, _))| *text_end > start);
        let mut freed: Vec<ObjectId> = below.map(|(_, &(_, owner))| owner).collect();
        freed.sort_unstable();
        freed.dedup();
        for &id in &freed {
            self.freed(id);
        }
        Outcome { freed, ..Outcome::default() }
    }

    /// Whether a byte of `range` may be executed.
    pub(crate) fn has_executable(&self, range: AddressRange) -> bool {
        self.executable.range(..range.end().0).next_back().is_some_and(|(_, &end)| end > range.start().0)
    }

    /// LLVM has handed the `.eh_frame` at `address` to the unwinder: it is relocated. For memory that is executable from
    /// the start this is the only sign.
    pub(crate) fn eh_frame_registered(&mut self, address: Address) -> Outcome {
        self.take_finalized(|loaded| loaded.eh_frame.is_some_and(|range| range.start() == address))
    }

    /// An object was freed by other news than a system call.
    pub(crate) fn freed(&mut self, id: ObjectId) {
        self.pending.retain(|loaded| loaded.id != id);
        for range in self.finalized.remove(&id).unwrap_or_default() {
            if self.text.get(&range.start().0).is_some_and(|&(_, owner)| owner == id) {
                self.text.remove(&range.start().0);
            }
        }
    }

    fn take_finalized(&mut self, concerned: impl Fn(&Loaded) -> bool) -> Outcome {
        let loaded = std::mem::take(&mut self.pending);
        let runs = |loaded: &Loaded| !loaded.text.is_empty() && loaded.text.iter().all(|&text| self.covers(text));
        let (ready, pending): (Vec<_>, Vec<_>) =
            loaded.into_iter().partition(|loaded| concerned(loaded) && runs(loaded));
        self.pending = pending;
        for loaded in &ready {
            for text in &loaded.text {
                self.text.insert(text.start().0, (text.end().0, loaded.id));
            }
            self.finalized.insert(loaded.id, loaded.text.clone());
        }
        Outcome { finalized: ready.iter().map(|loaded| loaded.id).collect(), ..Outcome::default() }
    }

    fn covers(&self, range: AddressRange) -> bool {
        self.executable.range(..=range.start().0).next_back().is_some_and(|(_, &end)| end >= range.end().0)
    }

    fn cut(&mut self, range: AddressRange) {
        let (start, end) = (range.start().0, range.end().0);
        while let Some((&below, &below_end)) = self.executable.range(..end).next_back() {
            if below_end <= start {
                break;
            }
            self.executable.remove(&below);
            if below < start {
                self.executable.insert(below, start);
            }
            if below_end > end {
                self.executable.insert(end, below_end);
            }
        }
    }
}
