//! System calls of the host that change its memory and have not returned.
//!
//! The hooks cannot hold the session's lock across the host's call. So they list it before, under the lock, and take it
//! off the list after: memory that is not listed does not change while the lock is held. Images rely on it
//! (`sink/image/pages.rs`).

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use crate::AddressRange;

/// A system call under way.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(Clone))]
#[must_use = "no image is made there until it ends"]
pub struct MemoryChange(u64);

/// All of them. A thread that never returns from one (`siglongjmp`) leaves it here: then there are no images, and no
/// harm.
#[derive(Default)]
#[cfg_attr(test, derive(Clone, PartialEq, Eq, PartialOrd, Ord))]
pub(crate) struct MemoryChanges {
    last: u64,
    under_way: BTreeMap<MemoryChange, AddressRange>,
}

impl MemoryChanges {
    /// The memory in `range` is about to get another protection, or to be unmapped or replaced.
    pub(crate) fn begin(&mut self, range: AddressRange) -> MemoryChange {
        self.last += 1;
        self.under_way.insert(MemoryChange(self.last), range);
        MemoryChange(self.last)
    }

    /// The system call has returned.
    pub(crate) fn end(&mut self, change: &MemoryChange) {
        self.under_way.remove(change);
    }

    /// Returns whether one concerns a byte of `range`.
    pub(crate) fn overlap(&self, range: AddressRange) -> bool {
        self.under_way.values().any(|changing| changing.overlaps(range))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranges::range;
    use super::*;

    #[test]
    fn each_is_there_until_it_ends() {
        let mut changes = MemoryChanges::default();
        let (one, two) = (changes.begin(range(0x1000, 0x3000)), changes.begin(range(0x2000, 0x4000)));
        changes.end(&one);
        assert!(changes.overlap(range(0x2fff, 0x3000)), "two threads change the same page");
        assert!(!changes.overlap(range(0x1000, 0x2000)) && !changes.overlap(range(0x4000, 0x5000)));
        changes.end(&two);
        changes.end(&one);
        assert!(!changes.overlap(range(0, 0x5000)));
    }
}
