//! The host's memory-changing system calls that are in progress.
//!
//! The hooks cannot hold the session's lock across the host's system call. Instead, a hook adds the call to this list
//! before making it, and removes it afterwards; it takes the lock for each of the two steps. Hence memory that no
//! listed call covers does not change while the lock is held. Images rely on this (`sink/image/pages.rs`).

use std::collections::BTreeMap;

use crate::AddressRange;

/// Handle of a system call in progress.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(Clone))]
#[must_use = "no image is made there until it ends"]
pub struct MemoryChange(u64);

/// System calls in progress. If a thread leaves a call by `siglongjmp`, the call stays in the list forever. This is
/// harmless, because the memory in question merely gets no images.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, PartialOrd, Ord))]
pub(crate) struct MemoryChanges {
    last_id: u64,
    in_progress: BTreeMap<MemoryChange, AddressRange>,
}

impl MemoryChanges {
    /// Records that a system call is about to unmap, replace or reprotect `range`.
    pub(crate) fn begin(&mut self, range: AddressRange) -> MemoryChange {
        self.last_id += 1;
        self.in_progress.insert(MemoryChange(self.last_id), range);
        MemoryChange(self.last_id)
    }

    /// Records that the system call has returned.
    pub(crate) fn end(&mut self, change: &MemoryChange) {
        self.in_progress.remove(change);
    }

    /// Returns true if a system call in progress may change a byte of `range`.
    pub(crate) fn overlap(&self, range: AddressRange) -> bool {
        self.in_progress.values().any(|changed_range| changed_range.overlaps(range))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranges::range;
    use super::*;

    #[test]
    fn each_is_there_until_it_ends() {
        let mut changes = MemoryChanges::default();
        let (first, second) = (changes.begin(range(0x1000, 0x3000)), changes.begin(range(0x2000, 0x4000)));
        changes.end(&first);
        assert!(changes.overlap(range(0x2fff, 0x3000)), "two threads change the same page");
        assert!(!changes.overlap(range(0x1000, 0x2000)) && !changes.overlap(range(0x4000, 0x5000)));
        changes.end(&second);
        changes.end(&first);
        assert!(!changes.overlap(range(0, 0x5000)));
    }
}
