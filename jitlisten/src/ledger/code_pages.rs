//! Lock-free bitmap of the executable pages, for the shim's hooks in libraries other than LLVM. Those hooks must
//! neither lock nor allocate.
//!
//! An allocator calls `munmap(2)` under its own locks, and the thread that holds our lock may be waiting for that
//! allocator. The bitmap lets a hook recognise calls that do not concern code: one bit for each page, one leaf for each
//! GiB that ever held code.
//!
//! The [`Ledger`](super::Ledger) holds the full record of these pages, under the session's lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::AddressRange;
use once_cell::race::OnceBox;

/// Smallest page size of any supported kernel.
const PAGE_BYTES: u64 = 4096;
const PAGES_PER_LEAF: u64 = 1 << 18;
/// Leaves for the user address space: 48 bits on AArch64, 47 on x86-64. The kernel uses higher addresses only for
/// programs that request them.
const MAX_LEAVES: usize = if cfg!(target_arch = "aarch64") { 1 << 18 } else { 1 << 17 };

type Words = Box<[AtomicU64]>;

static PAGES: CodePages = CodePages::new();

/// Set of pages, as a sparse bitmap.
struct CodePages {
    leaves: [OnceBox<Words>; MAX_LEAVES],
}

/// Marks the pages of `range` as executable.
pub(crate) fn insert(range: AddressRange) {
    PAGES.visit_words(range, |leaf, word, bits| {
        if let Some(leaf) = PAGES.leaves.get(leaf) {
            leaf.get_or_init(|| Box::new((0..PAGES_PER_LEAF / 64).map(|_| AtomicU64::new(0)).collect()))[word]
                .fetch_or(bits, Ordering::Release);
        }
        false
    });
}

/// Marks the pages of `range` as not executable.
pub(crate) fn remove(range: AddressRange) {
    PAGES.visit_words(range, |leaf, word, bits| {
        if let Some(words) = PAGES.leaf(leaf) {
            words[word].fetch_and(!bits, Ordering::Release);
        }
        false
    });
}

/// Returns true if a page of `range` is executable. Takes no lock and allocates nothing.
pub fn overlaps(range: AddressRange) -> bool {
    PAGES.visit_words(range, |leaf, word, bits| {
        PAGES.leaf(leaf).is_some_and(|words| words[word].load(Ordering::Acquire) & bits != 0)
    })
}

impl CodePages {
    const fn new() -> CodePages {
        CodePages { leaves: [const { OnceBox::new() }; MAX_LEAVES] }
    }

    fn leaf(&self, index: usize) -> Option<&Words> {
        self.leaves.get(index)?.get()
    }

    /// Calls `visit` with the leaf index, word index and bit mask of each word. Stops and returns true as soon as
    /// `visit` returns true. Missing leaves are skipped in one step, unless `visit` creates them.
    fn visit_words(&self, range: AddressRange, mut visit: impl FnMut(usize, usize, u64) -> bool) -> bool {
        let end = range.end().0.div_ceil(PAGE_BYTES).min(MAX_LEAVES as u64 * PAGES_PER_LEAF);
        let mut page = range.start().0 / PAGE_BYTES;
        while page < end {
            let (leaf, bit) = ((page / PAGES_PER_LEAF) as usize, page % 64);
            let count = (64 - bit).min(end - page);
            let bits = (u64::MAX >> (64 - count)) << bit;
            if visit(leaf, (page % PAGES_PER_LEAF / 64) as usize, bits) {
                return true;
            }
            page += count;
            if self.leaf(leaf).is_none() {
                page = page.max((leaf as u64 + 1) * PAGES_PER_LEAF);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::ranges::range;
    use super::*;

    /// A single test, because the page set is global. No other test maps these addresses.
    #[test]
    fn pages_come_and_go() {
        let base = 0x1000_0000_0000;
        let everything = range(base - (1 << 31), base + (1 << 33));
        assert!(!overlaps(everything));
        insert(range(base + 0x3f000, base + 0x42000));
        assert!(overlaps(everything));
        assert!(overlaps(range(base + 0x3f000, base + 0x40000)) && overlaps(range(base + 0x41800, base + 0x50000)));
        assert!(!overlaps(range(base, base + 0x3f000)) && !overlaps(range(base + 0x42000, base + (1 << 32))));
        remove(range(base + 0x40000, base + 0x41000));
        assert!(!overlaps(range(base + 0x40000, base + 0x41000)) && overlaps(range(base + 0x41000, base + 0x41001)));
        // This range crosses a leaf boundary.
        insert(range(base + (1 << 30) - 0x1000, base + (1 << 30) + 0x1000));
        assert!(overlaps(range(base + (1 << 30), base + (1 << 30) + 1)));
        remove(everything);
        assert!(!overlaps(everything));
        // This range ends with the last page of the user address space, where AArch64 places stacks and libraries.
        let last = MAX_LEAVES as u64 * PAGES_PER_LEAF * PAGE_BYTES - PAGE_BYTES;
        assert_eq!(last >> 47, u64::from(cfg!(target_arch = "aarch64")));
        insert(range(last, last + PAGE_BYTES));
        assert!(overlaps(range(last, last + PAGE_BYTES)) && !overlaps(range(last - PAGE_BYTES, last)));
        remove(range(last, last + PAGE_BYTES));
        assert!(!overlaps(range(last, last + PAGE_BYTES)));
        // This range lies outside the user address space.
        insert(range(1 << 62, (1 << 62) + 0x1000));
        assert!(!overlaps(range(1 << 62, (1 << 62) + 0x1000)) && !overlaps(range(0, !0xfff)));
    }
}
