//! The executable pages, for the shim's hooks of libraries without LLVM, which may take no lock and allocate nothing.
//!
//! An allocator calls `munmap(2)` under its own locks, and may allocate for the thread that holds ours. Therefore a
//! bitmap shows calls that do not concern code: one bit for each page, a leaf for each GiB that ever held code.
//!
//! The [`Ledger`](super::Ledger) has all data of these pages, under the lock.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use crate::AddressRange;
use once_cell::race::OnceBox;

/// The smallest page there is.
const PAGE: u64 = 4096;
/// The pages of a leaf.
const LEAF: u64 = 1 << 18;
/// The leaves of the address space of a program: 48 bits on AArch64, 47 on x86-64. More is only for programs that ask
/// for it.
const LEAVES: usize = if cfg!(target_arch = "aarch64") { 1 << 18 } else { 1 << 17 };

type Words = Box<[AtomicU64]>;

static PAGES: CodePages = CodePages::new();

/// A set of pages.
struct CodePages {
    leaves: [OnceBox<Words>; LEAVES],
}

/// `range` may be executed from now on.
pub(crate) fn insert(range: AddressRange) {
    PAGES.each(range, |leaf, word, bits| {
        if let Some(leaf) = PAGES.leaves.get(leaf) {
            leaf.get_or_init(|| Box::new((0..LEAF / 64).map(|_| AtomicU64::new(0)).collect()))[word]
                .fetch_or(bits, Ordering::Release);
        }
        false
    });
}

/// `range` may not be executed any more.
pub(crate) fn remove(range: AddressRange) {
    PAGES.each(range, |leaf, word, bits| {
        if let Some(words) = PAGES.leaf(leaf) {
            words[word].fetch_and(!bits, Ordering::Release);
        }
        false
    });
}

/// Whether a page of `range` may be executed. Lock-free, and no memory is taken.
pub fn overlaps(range: AddressRange) -> bool {
    PAGES.each(range, |leaf, word, bits| {
        PAGES.leaf(leaf).is_some_and(|words| words[word].load(Ordering::Acquire) & bits != 0)
    })
}

impl CodePages {
    const fn new() -> CodePages {
        CodePages { leaves: [const { OnceBox::new() }; LEAVES] }
    }

    fn leaf(&self, index: usize) -> Option<&Words> {
        self.leaves.get(index)?.get()
    }

    /// Calls `work` with leaf, word and bits until it returns true, and returns whether it did. Leaves that are not
    /// there are passed over in one step, unless `work` is to make them.
    fn each(&self, range: AddressRange, mut work: impl FnMut(usize, usize, u64) -> bool) -> bool {
        let end = range.end().0.div_ceil(PAGE).min(LEAVES as u64 * LEAF);
        let mut page = range.start().0 / PAGE;
        while page < end {
            let (leaf, bit) = ((page / LEAF) as usize, page % 64);
            let count = (64 - bit).min(end - page);
            let bits = (u64::MAX >> (64 - count)) << bit;
            if work(leaf, (page % LEAF / 64) as usize, bits) {
                return true;
            }
            page += count;
            if self.leaf(leaf).is_none() {
                page = page.max((leaf as u64 + 1) * LEAF);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranges::range;
    use super::*;

    /// One test, because there is one set: in addresses that no mapping of a test has.
    #[test]
    fn pages_come_and_go() {
        let base = 0x1000_0000_0000;
        let all = range(base - (1 << 31), base + (1 << 33));
        assert!(!overlaps(all));
        insert(range(base + 0x3f000, base + 0x42000));
        assert!(overlaps(all));
        assert!(overlaps(range(base + 0x3f000, base + 0x40000)) && overlaps(range(base + 0x41800, base + 0x50000)));
        assert!(!overlaps(range(base, base + 0x3f000)) && !overlaps(range(base + 0x42000, base + (1 << 32))));
        remove(range(base + 0x40000, base + 0x41000));
        assert!(!overlaps(range(base + 0x40000, base + 0x41000)) && overlaps(range(base + 0x41000, base + 0x41001)));
        // Across the border of two leaves.
        insert(range(base + (1 << 30) - 0x1000, base + (1 << 30) + 0x1000));
        assert!(overlaps(range(base + (1 << 30), base + (1 << 30) + 1)));
        remove(all);
        assert!(!overlaps(all));
        // The last page: on AArch64, stacks and libraries are there.
        let last = LEAVES as u64 * LEAF * PAGE - PAGE;
        assert_eq!(last >> 47, u64::from(cfg!(target_arch = "aarch64")));
        insert(range(last, last + PAGE));
        assert!(overlaps(range(last, last + PAGE)) && !overlaps(range(last - PAGE, last)));
        remove(range(last, last + PAGE));
        assert!(!overlaps(range(last, last + PAGE)));
        // Where no program has memory.
        insert(range(1 << 62, (1 << 62) + 0x1000));
        assert!(!overlaps(range(1 << 62, (1 << 62) + 0x1000)) && !overlaps(range(0, !0xfff)));
    }
}
